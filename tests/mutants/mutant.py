"""A mutant is the trainer of `native` with one plausible human mistake."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from adapters.contract import Job, Layout
from adapters.native.adapter import NativeAdapter
from adapters.native.packing import SampleTensors
from adapters.native.trainer import Trainer, assign_denominators
from conformance.corpus.cases import ALL_CASES, Case
from conformance.plan.checks import CheckSpec, check_spec
from reference.aggregation import DEFAULT_CONVENTIONS, Aggregation, Conventions, Mode

LARGEST = 4
"""The ranks that layouts use."""

EVERY = tuple(Mode)
MEANS = (Mode.SAMPLE_MEAN, Mode.PROMPT_MEAN, Mode.TOKEN_MEAN)
SAMPLE, PROMPT, TOKEN, CONSTANT = ((mode,) for mode in Mode)


EVERYDAY = tuple(case for case in ALL_CASES if not case.layouts)
"""Without the cases that are too large for most layouts, and that few mutants need."""


def trained_only(right: torch.Tensor, wrong: torch.Tensor) -> torch.Tensor:
    """The value of one and the gradient of the other: the logged number stays right."""
    return right.detach() + wrong - wrong.detach()


class Mutant(Trainer):
    """A trainer with a mistake, described by its docstring as a colleague would.

    ``diagnosis`` is the expected name of the mistake, and ``as_well`` has names that say more
    where both give the same numbers; ``spec`` is the check that sees it;
    ``modes``, ``corpus`` and ``further_layouts`` are where it is tried, ``case`` a step of its own
    if no case of the corpus shows it, ``conventions`` the declared ones.
    """

    diagnosis: ClassVar[str]
    as_well: ClassVar[Sequence[str]] = ()
    spec: ClassVar[CheckSpec] = check_spec("weights")
    modes: ClassVar[Sequence[Mode]] = EVERY
    corpus: ClassVar[Sequence[Case]] = EVERYDAY
    further_layouts: ClassVar[Sequence[Layout]] = ()
    case: ClassVar[Case | None] = None
    conventions: ClassVar[Conventions] = DEFAULT_CONVENTIONS

    def __init_subclass__(cls, check: str | None = None, **says: object) -> None:
        """Take a mutant's properties, and a method of one line, from its class statement."""
        super().__init_subclass__()
        if check is not None:
            cls.spec = check_spec(check)
        for name, value in says.items():
            setattr(cls, name, value)

    @property
    def micro_batches(self) -> int:
        """The number of this rank's micro-batches."""
        samples = range(self.job.steps[0].size // self.layout.dp)
        return len(Trainer.cut(self, [*samples]))  # type: ignore[list-item]

    @classmethod
    def started(cls, job: Job) -> None:
        """Validate at startup."""
        NativeAdapter().started(job)


@dataclass(frozen=True, kw_only=True)
class MutantJob(Job):
    """A job that is trained by a mutant."""

    mutant: type[Mutant]


class MutantAdapter(NativeAdapter):
    """`native`, trained by the mutant that a job names."""

    name = "mutant"

    def started(self, job: Job) -> None:
        """Start as the job's mutant does."""
        assert isinstance(job, MutantJob)
        job.mutant.started(job)

    def aggregation(self, job: Job) -> Aggregation:
        """The job's aggregation, whatever a mutant accepts."""
        return job.aggregation

    def trainer(self, job: Job, rank: int) -> Trainer:
        """The job's mutant."""
        assert isinstance(job, MutantJob)
        return job.mutant(job, rank)


class Counting(Mutant):
    """A mutant that gets denominators wrong, from the samples of the whole step."""

    def divided(self, samples: list[SampleTensors]) -> list[SampleTensors]:
        return assign_denominators(samples, self.counted(samples))

    def counted(self, samples: list[SampleTensors]) -> list[float]:
        """The divisor of each sample's masked loss sum."""
        raise NotImplementedError
