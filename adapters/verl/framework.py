"""The records of verl's engines: options as users type them, and verl's documents."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from adapters.contract import Framework, Job, Layout, Objective, Option, Unsupported
from adapters.contract.objective import CONSTANTS
from adapters.contract.tables import RecordFile, read_departures
from adapters.engines import experts
from adapters.engines.shells import CPU_AS_CUDA, ONE_BY_ONE, PIPELINE_STAGES, ZEROED
from adapters.toolkit import settings
from adapters.verl.importing import has_default_trainer, module

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from reference.arrays import Integers
    from reference.step import Step


CHECKPOINT = Path(__file__).parent / "checkpoint"
GIVEN = "given"
"""The name under which given advantages are registered as an estimator."""

DIVIDED = "seq-mean-token-sum-norm"
"""verl's mode with a divisor that users give."""


def mode_of_divisor(job: Job) -> str:
    """verl's mode for a job's divisor.

    Two modes take no divisor: one divides sums only by samples, the other does not divide them.
    """
    divisor, samples = job.aggregation.divisor or 0.0, float(settings.samples_per_step(job))
    return {samples: "seq-mean-token-sum", 1.0: "token-sum"}.get(divisor * samples, DIVIDED)


def divisor(job: Job) -> object:
    """The divisor as hydra parses it from the command line; None without a divisor."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    typed = job.configuration.divisor
    if typed == "" or mode_of_divisor(job) != DIVIDED:
        return None
    if typed:
        return OverridesParser.create().parse_override(f"divisor={typed}").value()
    return settings.plain_divisor(job)


def uses_legacy_trainer(job: Job) -> bool:
    """Whether the legacy trainer trains the job: it is chosen, or this version has no other."""
    return Option.LEGACY_TRAINER in job.layout.options or not has_default_trainer()


OF_ENGINE = ("batch", "mini_batch", "micro_batch", "samples_per_prompt", "token_budget")
"""The methods of `BatchSizes` that options refer to."""


@dataclass(frozen=True)
class BatchSizes:
    """The sizes of an engine's batches for a job, as values of options.

    Mini-batches are split over ``ranks``, and all have the same size. verl refuses mini-batches
    that ranks or micro-batches do not divide. If all prompts have the same number of samples, verl
    counts prompts; otherwise each sample counts as a separate prompt.
    """

    ranks: Callable[[Layout], int]

    def batch(self, job: Job) -> int:
        """The number of prompts of a batch of rollouts."""
        return self.mini_batch(job) * len(job.steps)

    def mini_batch(self, job: Job) -> int:
        """The number of prompts of a mini-batch."""
        return self._samples(job) // self.samples_per_prompt(job)

    def samples_per_prompt(self, job: Job) -> int:
        """The number of samples of every prompt; 1 if prompts or the mini-batch are uneven.

        It is also 1 for several steps of the legacy trainer, in which all samples of a prompt must
        be adjacent, across ranks and steps.
        """
        counts = {
            int(count)
            for step in job.steps
            for count in np.unique(step.groups, return_counts=True)[1]
        }
        of_prompt = counts.pop()
        does_not_fit = counts or self._samples(job) % of_prompt or job.configuration.batch_size
        is_mixed = uses_legacy_trainer(job) and len(job.steps) > 1
        return 1 if does_not_fit or is_mixed else of_prompt

    def micro_batch(self, job: Job) -> int:
        """The number of samples of a rank's micro-batch."""
        assert isinstance(job.layout.micro_batches, int)
        return max(self._samples(job) // job.layout.dp // job.layout.micro_batches, 1)

    def token_budget(self, job: Job) -> int:
        """The token budget of a micro-batch on each of its context-parallel ranks."""
        budget = settings.rank_budget(job)
        if self._samples(job) > settings.samples_per_step(job):
            padding = module("trainer.ppo.padding_utils")
            # Padding rows are short in versions before 0.9.1.
            budget = max(budget, getattr(padding, "SYNTHETIC_PADDING_SEQ_LEN", 0))
        return -(-budget // job.layout.cp)

    def _samples(self, job: Job) -> int:
        """The number of samples of a mini-batch, with the padding rows of the default trainer.

        Padding rows follow all samples: in a batch of several steps, they may only fill the last
        mini-batch.
        """
        samples, ranks = settings.samples_per_step(job), self.ranks(job.layout)
        if samples % ranks and job.objective is Objective.SFT:
            # `trainer/sft_trainer.py` gives each rank train_batch_size // ranks samples.
            raise Unsupported(f"steps of {samples} samples do not exist on {ranks} ranks")
        if len(job.steps) > 1 or uses_legacy_trainer(job):
            return samples
        return -(-samples // ranks) * ranks


def criterion(job: Job) -> str:
    """The criterion of rejection: each token's log-ratio, or its mean over a whole sample."""
    kept = [np.unique(step.mask[tokens]) for step in job.steps for tokens in _trained(step)]
    return "token_k1" if any(len(one) > 1 for one in kept) else "seq_mean_k1"


def _trained(step: Step) -> Iterator[Integers]:
    """The tokens of each sample that are active before rejection sampling."""
    for response in step.responses:
        tokens = np.arange(len(step.mask))[response]
        yield tokens[step.mask_before_rejection[response]]


def all_criteria(job: Job) -> str:
    """All criteria of this version: the rejecting one, and others that are only logged."""
    return ",".join(_criteria(job))


def bounds(job: Job) -> str:
    """The bounds of all criteria, such that only the job's criterion rejects tokens."""
    others = _criteria(job)[1:]
    lax = ("1e-30_1e30" if one.endswith("k1") else "1e30" for one in others)
    return ",".join(["0.5_2.0", *lax])


def _criteria(job: Job) -> list[str]:
    helper = module("trainer.ppo.rollout_corr_helper")
    others = {*getattr(helper, "SUPPORTED_ROLLOUT_RS_OPTIONS", ())} - {criterion(job)}
    return [criterion(job), *sorted(others)]


def _file(ranks: Callable[[Layout], int]) -> RecordFile:
    """The file of records, for an engine that splits mini-batches over this number of ranks."""
    of_engine = BatchSizes(ranks)
    return RecordFile(
        "adapters.verl",
        settings,
        globals(),
        {name: getattr(of_engine, name) for name in OF_ENGINE},
        batch_normalize=partial(
            settings.require_one_step,
            why="weights are normalised over a batch of rollouts, not over each step",
        ),
        checkpoint=str(CHECKPOINT),
        given=GIVEN,
        kept_bounds=f"{CONSTANTS.kept_low:g}_{CONSTANTS.truncation:g}",
        router={
            f"megatron.override_transformer_config.{name}": value
            for name, value in experts.OPTIONS.items()
        },
    )


DEFAULT_TRAINER = read_departures("adapters.verl", "default_trainer")
"""Departures of versions with the default trainer."""

_ON_FSDP = _file(attrgetter("world_size"))
_ON_MEGATRON = _file(attrgetter("dp"))

VERL = _ON_FSDP.record(*DEFAULT_TRAINER)
FSDP = _ON_FSDP.variant("fsdp", base=VERL)
FSDP2 = _ON_FSDP.variant("fsdp2", base=FSDP)
MEGATRON = _ON_MEGATRON.variant(
    "megatron",
    ZEROED,
    CPU_AS_CUDA,
    PIPELINE_STAGES,
    ONE_BY_ONE,
    base=_ON_MEGATRON.record(*DEFAULT_TRAINER),
)


def legacy_record(record: Framework) -> Framework:
    """An engine's record in versions before 0.9.0, whose only trainer is now the legacy one."""
    of_trainer = [one for one in record.departures if one not in DEFAULT_TRAINER]
    of_layout = record.layout.items()
    return replace(
        record,
        layout={part: chosen for part, chosen in of_layout if part != Option.LEGACY_TRAINER},
        departures=(*of_trainer, *read_departures("adapters.verl", "older_versions")),
    )
