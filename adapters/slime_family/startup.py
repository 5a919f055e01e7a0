"""What a user may configure, right or wrong, as slime and miles spell it, and what they decline.

Settings are typed on the command line or stand in a file that the framework reads after it. What
passes the framework's validation goes on through its conversion, its split and its train step,
where a job's injected fault meets it as a user's own rollout code would: in the samples, or
after the framework's conversion of them.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from adapters.contract import Refused, Unsupported
from adapters.contract.configuration import (
    DEFAULT_CONFIGURATION,
    REDUCER_DIVISOR,
    FaultInjection,
    Setting,
)
from adapters.contract.objective import ENTROPY_COEFFICIENT, KL_COEFFICIENT
from adapters.toolkit.sizes import rollouts_per_step
from reference.aggregation import Mode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import torch

    from adapters.contract import Job

    Columns = dict[str, Any]
    Conversion = Callable[[Any, Sequence[Any]], Columns]

MODE_OPTION = "loss-aggregation"
DIVISOR_OPTION = "loss-aggregation-divisor"
OLDER_DIVISOR_OPTION = "pg-loss-divisor"
PER_TOKEN_OPTION = "calculate-per-token-loss"
FILE_OPTION = "custom-config-path"
REDUCER_OPTION = "custom-pg-loss-reducer-function-path"
CONVERSION_OPTION = "custom-convert-samples-to-train-data-path"

MASK_SUMS, GROUP_INDICES = "prompt_mask_sums", "prompt_group_indices"
"""Columns of train data: what `prompt_mean` divides a sample by, and which group it is of."""

CP_HELPERS = ("slime.backends.megatron_utils.cp_utils", "miles.backends.training_utils.cp_utils")
"""Where frameworks keep the reducers that a custom one is built on."""

YAML_NUMBERS = {"nan": ".nan", "inf": ".inf", "-inf": "-.inf"}
"""Numbers that YAML spells otherwise than Python."""


@dataclass(frozen=True)
class CliFlag:
    """One option, and the setting that it belongs to if it may stand in a file; flags are true."""

    option: str
    text: str = "true"
    setting: Setting | None = None
    flag: bool = False

    @property
    def on_command_line(self) -> str:
        """As typed."""
        return f"--{self.option}" if self.flag else f"--{self.option}={self.text}"

    @property
    def in_file(self) -> str:
        """As a line of YAML, which gives the value a type of its own."""
        return f"{self.option.replace('-', '_')}: {YAML_NUMBERS.get(self.text, self.text)}\n"


def knows(parser: argparse.ArgumentParser, option: str) -> bool:
    """Whether this version has an option."""
    return f"--{option}" in parser._option_string_actions


@contextmanager
def settings(job: Job, parser: argparse.ArgumentParser) -> Iterator[list[str]]:
    """What is typed of a job's settings; inside, the configuration file is there, if there is one.

    Raises:
        Unsupported: this version lacks an option that is needed.
    """
    spelt = [*_spelt(job, parser)]
    for setting in spelt:
        _require(parser, setting.option)
    lines = [setting.in_file for setting in spelt if setting.setting in job.configuration.in_file]
    typed = [
        setting.on_command_line
        for setting in spelt
        if setting.setting not in job.configuration.in_file
    ]
    with ExitStack() as stack:
        if lines:
            _require(parser, FILE_OPTION)
            file = stack.enter_context(tempfile.NamedTemporaryFile("w", suffix=".yaml"))
            file.writelines(lines)
            file.flush()
            typed.append(f"--{FILE_OPTION}={file.name}")
        yield typed


@contextmanager
def refusals() -> Iterator[None]:
    """Inside, a framework that objects declines the job.

    Raises:
        Refused: with the framework's words.
    """
    try:
        yield
    except (argparse.ArgumentError, AssertionError, ValueError, NotImplementedError) as error:
        raise Refused(f"{type(error).__name__}: {error}") from error
    except SystemExit as error:
        reason = (
            error.__context__ if isinstance(error.__context__, argparse.ArgumentError) else error
        )
        raise Refused(f"{type(reason).__name__}: {reason}") from error


@contextmanager
def judged(job: Job) -> Iterator[None]:
    """Inside, a framework may decline a configuration that is not the ordinary one at any time.

    Raises:
        Refused: with the framework's words.
    """
    with ExitStack() as stack:
        if job.configuration != DEFAULT_CONFIGURATION:
            stack.enter_context(refusals())
        yield


def sent(samples: list[Any], job: Job) -> list[Any]:
    """The sample objects as a job's rollout side sends them to be converted."""
    configuration = job.configuration
    if configuration.corrects:
        for sample in samples:
            if getattr(sample, "rollout_log_probs", None) is None:
                sample.rollout_log_probs = [0.0] * sample.response_length
    if configuration.fault_injection is FaultInjection.GROUPS_MISSING:
        for sample in samples:
            sample.group_index = None
    if configuration.fault_injection is FaultInjection.GROUP_INCOMPLETE:
        _take_from_first_group(samples)
    return samples


def conversion(job: Job, own: Conversion) -> Conversion | None:
    """The custom conversion of samples that a job has: the framework's ``own``, tampered with."""
    tamper = CONVERSIONS.get(job.configuration.fault_injection)
    if tamper is None:
        return None

    def convert(args: Any, samples: Sequence[Any]) -> Columns:
        columns = own(args, samples)
        if MASK_SUMS not in columns:
            raise Unsupported(f"no {MASK_SUMS} in train data")
        tamper(columns, [sample.group_index for sample in samples])
        return columns

    return convert


def of_steps(gradients: list[Any], job: Job) -> list[Any]:
    """What a job's step trained, where a batch size of its own makes several steps of it: all."""
    if job.configuration.batch_size is None or len(job.steps) > 1:
        return gradients
    return [sum(gradients)]


def reducer(
    total_lengths: list[int],
    response_lengths: list[int],
    loss_masks: list[torch.Tensor],
    calculate_per_token_loss: bool,
) -> Callable[[torch.Tensor], torch.Tensor]:
    """A custom reducer: the masked sum over a number of its own, sliced by the framework."""
    [helpers] = [sys.modules[name] for name in CP_HELPERS if name in sys.modules]
    masked_sum = helpers.get_sum_of_sample_mean(
        total_lengths, response_lengths, loss_masks, calculate_per_token_loss=True
    )
    return lambda losses: masked_sum(losses) / REDUCER_DIVISOR


def correction(
    *, pg_loss: torch.Tensor, loss_masks: list[torch.Tensor], **others: Any
) -> tuple[torch.Tensor, list[torch.Tensor], dict[str, torch.Tensor]]:
    """A custom function for truncated importance sampling that finds nothing to correct."""
    return pg_loss, loss_masks, {}


def _spelt(job: Job, parser: argparse.ArgumentParser) -> Iterator[CliFlag]:
    """Every setting of a job, and what else its configuration needs."""
    configuration = job.configuration
    size = configuration.batch_size or rollouts_per_step(job.steps)
    yield CliFlag("global-batch-size", str(size), Setting.BATCH_SIZE)
    yield from _mode(job, parser)
    if configuration.per_token:
        yield CliFlag(PER_TOKEN_OPTION, setting=Setting.PER_TOKEN, flag=True)
    if configuration.entropy:
        yield CliFlag("entropy-coef", str(ENTROPY_COEFFICIENT), Setting.ENTROPY)
    if configuration.kl:
        yield CliFlag("use-kl-loss", setting=Setting.KL, flag=True)
        yield CliFlag("kl-loss-coef", str(KL_COEFFICIENT), Setting.KL)
        yield CliFlag("ref-load", tempfile.gettempdir())  # a folder that exists, never read
    if configuration.corrects:
        yield CliFlag("use-tis", flag=True)
        yield CliFlag("custom-tis-function-path", _path(correction))
    if configuration.reduces:
        yield CliFlag(REDUCER_OPTION, _path(reducer))
    if configuration.fault_injection in CONVERSIONS:
        yield CliFlag(CONVERSION_OPTION, _path(conversion))


def _mode(job: Job, parser: argparse.ArgumentParser) -> Iterator[CliFlag]:
    """The mode and the divisor, by the options for the four modes or by what there was before."""
    mode = job.aggregation.mode
    divisor = _divisor(job)
    if not knows(parser, MODE_OPTION):
        yield from _older_mode(job, parser)
        return
    if job.configuration.says_mode:
        yield CliFlag(MODE_OPTION, str(mode), Setting.MODE)
    if divisor:
        yield CliFlag(DIVISOR_OPTION, divisor, Setting.DIVISOR)


def _older_mode(job: Job, parser: argparse.ArgumentParser) -> Iterator[CliFlag]:
    """The flag is `token_mean`, a divisor is `constant`, neither is `sample_mean`."""
    mode = job.aggregation.mode
    divisor = _divisor(job)
    if mode is Mode.PROMPT_MEAN or (
        mode is Mode.CONSTANT and not knows(parser, OLDER_DIVISOR_OPTION)
    ):
        raise Unsupported(f"no mode {mode}")
    if divisor:
        _require(parser, OLDER_DIVISOR_OPTION)
    if bool(divisor) != (mode is Mode.CONSTANT) and mode is not Mode.TOKEN_MEAN:
        raise Unsupported(f"no option --{MODE_OPTION}: a divisor alone makes a mode constant")
    if mode is Mode.TOKEN_MEAN and job.configuration.says_mode:
        yield CliFlag(PER_TOKEN_OPTION, setting=Setting.MODE, flag=True)
    if divisor:
        yield CliFlag(OLDER_DIVISOR_OPTION, divisor, Setting.DIVISOR)


def _divisor(job: Job) -> str:
    """As typed, nothing if none is given."""
    typed = job.configuration.divisor
    own = job.aggregation.divisor
    return typed if typed is not None else "" if own is None else str(own)


def _require(parser: argparse.ArgumentParser, option: str) -> None:
    if not knows(parser, option):
        raise Unsupported(f"no option --{option}")


def _path(function: Callable[..., Any]) -> str:
    """As a user names a function of theirs."""
    return f"{function.__module__}.{function.__name__}"


def _take_from_first_group(samples: list[Any]) -> None:
    """Put in the place of the first group's last sample one of another prompt.

    The numbers of samples and of rollouts stay what they were, as where a batch is filled up.
    """
    groups = [sample.group_index for sample in samples]
    members = [sample for sample in samples if sample.group_index == groups[0]]
    if len(members) < 2:
        raise Unsupported("no group of one sample that lacks one")
    members[-1].group_index = max(groups) + 1


def _drop_denominators(columns: Columns, groups: list[int]) -> None:
    for name in (MASK_SUMS, GROUP_INDICES):
        columns.pop(name, None)


def _leave_a_gap(columns: Columns, groups: list[int]) -> None:
    """The last sample of the first group is of none."""
    stray = max(i for i, group in enumerate(groups) if group == groups[0])
    _count(columns, groups, group=groups[0], sample=stray, sign=-1)
    columns[MASK_SUMS][stray] = 0
    if GROUP_INDICES in columns:
        columns[GROUP_INDICES][stray] = None


def _overlap(columns: Columns, groups: list[int]) -> None:
    """The first sample of another group counts in the first group too."""
    others = [i for i, group in enumerate(groups) if group != groups[0]]
    if not others:
        raise Unsupported("no two groups in a group alone")
    _count(columns, groups, group=groups[0], sample=others[0], sign=1)


def _end_short(columns: Columns, groups: list[int]) -> None:
    """The last sample is of no group, of which nothing is said."""
    _count(columns, groups, group=groups[-1], sample=len(groups) - 1, sign=-1)
    for name in (MASK_SUMS, GROUP_INDICES):
        if name in columns:
            del columns[name][-1]


def _count(columns: Columns, groups: list[int], *, group: int, sample: int, sign: int) -> None:
    """Count a sample's tokens in a group, or no longer."""
    tokens = sign * sum(columns["loss_masks"][sample])
    columns[MASK_SUMS] = [
        total + tokens if other == group else total
        for total, other in zip(columns[MASK_SUMS], groups, strict=True)
    ]


CONVERSIONS: dict[FaultInjection | None, Callable[[Columns, list[int]], None]] = {
    FaultInjection.DENOMINATORS_DROPPED: _drop_denominators,
    FaultInjection.BOUNDARY_GAP: _leave_a_gap,
    FaultInjection.BOUNDARY_OVERLAP: _overlap,
    FaultInjection.BOUNDARY_SHORT: _end_short,
}
"""What a custom conversion makes of the framework's columns."""
