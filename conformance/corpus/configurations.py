"""Configurations and logs of micro-batches, with the way in which a framework must handle each.

The rules on configurations come from the reviews of miles' pull requests 1328, 1350 and 1498,
slime's 2090 and SkyRL's 1718. Each rule names a combination that would silently train with a wrong
denominator.

The rule on logs of micro-batches comes from miles' pull request 1498. Different keys, or the same
keys in another order, put a wrong number under a metric's name. This happens if a user's own
function adds metrics to the log of some micro-batches. Nothing else can be malformed: an entry's
keys and values come from one dictionary, and its form from one option.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from adapters.contract import Depth, Job, LogEntry
from adapters.contract.job import Configuration, FaultInjection, Setting
from conformance.corpus.cases import CORPUS
from conformance.findings.verdict import Check
from reference.aggregation import AuxiliaryAggregation, DenominatorMask, Mode

if TYPE_CHECKING:
    from adapters.contract import Layout
    from conformance.corpus.cases import Case
    from reference.aggregation import Conventions


class Demand(StrEnum):
    """The right way for a framework to handle a configuration."""

    REFUSE = "refuse"
    """Stop with an error that names the options."""

    SAME = "same"
    """Weigh every token as the plain mode does, bit for bit."""

    DEFAULT = "default"
    """Weigh every token as the documented default mode does."""

    ONE_DIVISOR = "one_divisor"
    """Divide all tokens of a step by the same number, or stop with an error that names the options.
    """

    REDUCER = "reducer"
    """Weigh every token as the custom reducer says, whatever the mode, or stop with an error that
    names the options."""


@dataclass(frozen=True, kw_only=True)
class ConfigCase:
    """A configuration and how a framework must handle it.

    ``says`` describes the configuration. An error that refuses it must contain the framework's name
    of one of its settings. ``origin`` is where the rule was first stated. If a framework does not
    state the rule, breaking it is advice.
    """

    name: str
    says: str
    configuration: Configuration
    modes: tuple[Mode, ...]
    demand: Demand = Demand.REFUSE
    case: str = "uneven_lengths"
    check: Check = Check.ARGUMENTS
    origin: str = "miles' pull request 1498"

    @property
    def rule(self) -> str:
        """The name of the rule; rules for the command line and for files differ."""
        return self.name

    def applies(self, conventions: Conventions) -> bool:
        """Whether the rule concerns a framework with these conventions."""
        if self.configuration.entropy:
            return conventions.entropy is AuxiliaryAggregation.SAMPLE_MEAN
        if self.configuration.kl:
            return conventions.kl is AuxiliaryAggregation.SAMPLE_MEAN
        if self.configuration.corrects:
            return conventions.denominator_mask is DenominatorMask.MODIFIED
        return True

    def fits(self, layout: Layout) -> bool:
        """Whether the case runs on a layout; one rank is enough."""
        return layout.world_size == 1 and layout.micro_batches == 2 and not layout.options

    @property
    def given(self) -> Case:
        """The corpus case that is trained with the configuration."""
        return next(case for case in CORPUS if case.name == self.case)


IN_FILE = "_in_file"

MEANS = (Mode.SAMPLE_MEAN, Mode.PROMPT_MEAN, Mode.TOKEN_MEAN)


def _divisor(name: str, typed: str, says: str) -> ConfigCase:
    return ConfigCase(
        name=f"divisor_{name}",
        says=f"constant with a divisor that {says}",
        configuration=Configuration(divisor=typed),
        modes=(Mode.CONSTANT,),
    )


def _faulty(
    fault_injection: FaultInjection, says: str, check: Check = Check.ARGUMENTS
) -> ConfigCase:
    return ConfigCase(
        name=fault_injection,
        says=f"prompt_mean {says}",
        configuration=Configuration(fault_injection=fault_injection),
        modes=(Mode.PROMPT_MEAN,),
        check=check,
    )


def file_case(case: ConfigCase, *settings: Setting) -> ConfigCase:
    """The same case, with these settings in a configuration file read after the command line."""
    return replace(
        case,
        name=f"{case.name}{IN_FILE}",
        says=f"{case.says}, by configuration file",
        configuration=replace(case.configuration, in_file=frozenset(settings)),
    )


DIVISORS = (
    _divisor("missing", "", "is missing"),
    _divisor("zero", "0", "is 0"),
    _divisor("negative", "-4", "is negative"),
    _divisor("nan", "nan", "is NaN"),
    _divisor("infinite", "inf", "is infinite"),
    _divisor("bool", "true", "is a bool"),
    _divisor("text", "long", "is text"),
)

DIVISOR_BY_DEFAULT = ConfigCase(
    name="divisor_by_default",
    says="constant with a divisor that is left to the framework",
    configuration=Configuration(divisor=""),
    modes=(Mode.CONSTANT,),
    demand=Demand.ONE_DIVISOR,
)

DIVISOR_OF_ANOTHER = ConfigCase(
    name="divisor_of_another_mode",
    says="a divisor with a mode that does not use one",
    configuration=Configuration(divisor="40"),
    modes=MEANS,
)

PER_TOKEN_WITH_ANOTHER = ConfigCase(
    name="per_token_with_another_mode",
    says="the per-token flag with a mode that it would renormalise",
    configuration=Configuration(per_token=True),
    modes=(Mode.PROMPT_MEAN, Mode.CONSTANT),
)

ENTROPY = ConfigCase(
    name="entropy_per_sample",
    says="token_mean with an entropy term",
    configuration=Configuration(entropy=True),
    modes=(Mode.TOKEN_MEAN,),
)
DIVERGENCE = ConfigCase(
    name="divergence_per_sample",
    says="token_mean with a KL term",
    configuration=Configuration(kl=True),
    modes=(Mode.TOKEN_MEAN,),
)

BATCH = ConfigCase(
    name="batch_of_partial_groups",
    says="prompt_mean with a step boundary inside a prompt group",
    configuration=Configuration(batch_size=12),
    modes=(Mode.PROMPT_MEAN,),
    case="split_groups",
)

CONFIG_CASES = (
    *DIVISORS,
    *(file_case(case, Setting.MODE, Setting.DIVISOR) for case in DIVISORS),
    DIVISOR_BY_DEFAULT,
    DIVISOR_OF_ANOTHER,
    file_case(DIVISOR_OF_ANOTHER, Setting.DIVISOR),
    PER_TOKEN_WITH_ANOTHER,
    # If the command line had only the divisor, it would be refused for lack of a mode there.
    file_case(PER_TOKEN_WITH_ANOTHER, Setting.MODE, Setting.DIVISOR, Setting.PER_TOKEN),
    ENTROPY,
    file_case(ENTROPY, Setting.ENTROPY),
    DIVERGENCE,
    file_case(DIVERGENCE, Setting.KL),
    BATCH,
    file_case(BATCH, Setting.BATCH_SIZE),
    _faulty(FaultInjection.GROUP_INCOMPLETE, "of an incomplete group"),
    _faulty(FaultInjection.GROUPS_MISSING, "of samples without a group"),
    _faulty(
        FaultInjection.DENOMINATORS_DROPPED, "whose denominators a custom conversion has dropped"
    ),
    ConfigCase(
        name="correction_across_the_step",
        says="a custom function that shrinks the mask although the normaliser spans the step",
        configuration=Configuration(corrects=True),
        modes=(Mode.PROMPT_MEAN, Mode.TOKEN_MEAN),
    ),
    ConfigCase(
        name="legacy_flag",
        says="the per-token flag alone is token_mean",
        configuration=Configuration(says_mode=False, per_token=True),
        modes=(Mode.TOKEN_MEAN,),
        demand=Demand.SAME,
    ),
    ConfigCase(
        name="default_mode",
        says="no mode at all is the default",
        configuration=Configuration(says_mode=False),
        modes=(Mode.SAMPLE_MEAN,),
        demand=Demand.DEFAULT,
    ),
    ConfigCase(
        name="custom_reducer",
        says="a custom reducer takes precedence over the mode",
        configuration=Configuration(reduces=True),
        modes=tuple(Mode),
        demand=Demand.REDUCER,
    ),
    ConfigCase(
        name="mode_in_file",
        says="the mode by configuration file is that of the command line",
        configuration=Configuration(in_file=frozenset({Setting.MODE})),
        modes=(Mode.PROMPT_MEAN, Mode.TOKEN_MEAN),
        demand=Demand.SAME,
    ),
    _faulty(FaultInjection.BOUNDARY_GAP, "with a sample between two groups", Check.SHARDING),
    _faulty(FaultInjection.BOUNDARY_OVERLAP, "with a sample in two groups", Check.SHARDING),
    _faulty(FaultInjection.BOUNDARY_SHORT, "with a sample after the last group", Check.SHARDING),
)
"""Configurations to refuse, then to accept, then malformed group boundaries."""


@dataclass(frozen=True)
class Trial:
    """A configuration that must change the weights of a step in at least one of its modes."""

    configuration: Configuration
    modes: tuple[Mode, ...] = (Mode.SAMPLE_MEAN,)

    def job(self, mode: Mode, layout: Layout) -> Job:
        """The step to train with the configuration."""
        return Job(
            steps=TRIED.steps,
            aggregation=TRIED.aggregation(mode),
            layout=layout,
            depth=Depth.STEP,
            configuration=self.configuration,
        )


TRIED = next(case for case in CORPUS if case.name == "uneven_lengths")

TRIALS = {
    # The default can equal only one of the two modes, so the other mode shows the setting.
    Setting.MODE: Trial(Configuration(says_mode=False), (Mode.SAMPLE_MEAN, Mode.TOKEN_MEAN)),
    Setting.DIVISOR: Trial(Configuration(divisor="1000"), (Mode.CONSTANT,)),
    Setting.ENTROPY: Trial(Configuration(entropy=True)),
    Setting.KL: Trial(Configuration(kl=True)),
    Setting.BATCH_SIZE: Trial(Configuration(batch_size=TRIED.fewest_samples // 2)),
}
"""Settings for which weights alone show whether an adapter passes them on. With any other setting,
the weights may stay the same because the framework ignores it."""


@dataclass(frozen=True, kw_only=True)
class LogCase:
    """Log entries of one rank's micro-batches, malformed unless ``is_well_formed``."""

    name: str
    says: str
    entries: tuple[LogEntry, ...]
    mode: Mode = Mode.TOKEN_MEAN
    is_well_formed: bool = False
    origin: str = "miles' pull request 1498"

    @property
    def rule(self) -> str:
        """The name of the rule that the case tests."""
        return f"log_{self.name}"


def _entry(keys: str = "loss kl", count: float = 1.0) -> LogEntry:
    return LogEntry(keys=tuple(keys.split()), values=(2.0, 3.0), count=count)


def _normalized(*normalizers: float) -> LogEntry:
    return replace(_entry(), normalizers=normalizers)


CUSTOM = "as a custom loss or importance-sampling function may add metrics"


LOG_CASES = (
    LogCase(
        name="well_formed",
        says="entries of one form",
        entries=(_entry(count=4.0), _entry(count=2.0)),
        mode=Mode.SAMPLE_MEAN,
        is_well_formed=True,
    ),
    LogCase(
        name="well_formed_normalizers",
        says="entries with a normalizer for each key",
        entries=(_normalized(4.0, 8.0), _normalized(2.0, 2.0)),
        is_well_formed=True,
    ),
    LogCase(
        name="different_keys",
        says=f"entries of different keys, {CUSTOM}",
        entries=(_entry(), _entry("loss entropy")),
        mode=Mode.SAMPLE_MEAN,
    ),
    LogCase(
        name="key_order",
        says=f"the same keys in another order, {CUSTOM}",
        entries=(_entry(), _entry("kl loss")),
        mode=Mode.SAMPLE_MEAN,
    ),
)

LOG_ENTRIES = {case.name: case.entries for case in LOG_CASES}
