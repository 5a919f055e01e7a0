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
"""The most ranks of a layout on which mutants are run."""

EVERY = tuple(Mode)
MEANS = (Mode.SAMPLE_MEAN, Mode.PROMPT_MEAN, Mode.TOKEN_MEAN)
SAMPLE, PROMPT, TOKEN, CONSTANT = ((mode,) for mode in Mode)


EVERYDAY = tuple(case for case in ALL_CASES if not case.layouts)
"""The cases that run on all layouts: those of production size are left out."""


def trained_only(right: torch.Tensor, wrong: torch.Tensor) -> torch.Tensor:
    """A tensor with the value of ``right`` and the gradient of ``wrong``: the log stays right."""
    return right.detach() + wrong - wrong.detach()


class Mutant(Trainer):
    """A trainer with a mistake, described by its docstring as a colleague would.

    ``diagnosis`` is the expected name of the mistake, and ``as_well`` has more precise names that
    may be given where both predict the same numbers; ``spec`` is the check that sees the mistake.
    The mutant is tried in ``modes``, on ``corpus`` and also on ``further_layouts``, or only on
    ``case`` if no case of the corpus shows the mistake. ``conventions`` are the declared ones.
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
        """Take attributes of a mutant, also methods of one line, from its class statement."""
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
    """A job that names the mutant which trains it."""

    mutant: type[Mutant]


class MutantAdapter(NativeAdapter):
    """`native`, with the trainer of the mutant that a job names."""

    name = "mutant"

    def started(self, job: Job) -> None:
        """Start as the job's mutant does."""
        assert isinstance(job, MutantJob)
        job.mutant.started(job)

    def aggregation(self, job: Job) -> Aggregation:
        """The job's aggregation, without validation: the mutant validates itself."""
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
