"""Everything is right except a factor: the size of something."""

from __future__ import annotations

from typing import TYPE_CHECKING

from adapters.native.packing import Packed
from reference.aggregation import Mode
from tests.mutants.mutant import MEANS, Mutant

if TYPE_CHECKING:
    import torch


class Scaled(Mutant):
    """The loss of each micro-batch is multiplied by ``factor``."""

    @property
    def factor(self) -> float:
        """The factor, wrong unless it is 1."""
        raise NotImplementedError

    def reduce(self, token_losses: torch.Tensor, packed: Packed) -> torch.Tensor:
        return super().reduce(token_losses, packed) * self.factor

    @property
    def samples(self) -> int:
        return self.job.steps[0].size

    @property
    def prompts(self) -> int:
        return len(set(self.job.steps[0].groups.tolist()))


class AveragedOverDp(Scaled):
    """DDP averages gradients that are already divided by counts of the whole step."""

    diagnosis = "divided_by_dp"

    @property
    def factor(self) -> float:
        return 1 / self.layout.dp


class AveragedOverCp(Scaled):
    """Context-parallel ranks are averaged, although each has only the sum of its own tokens."""

    diagnosis = "divided_by_cp"

    @property
    def factor(self) -> float:
        return 1 / self.layout.cp


class AveragedOverDpAndCp(Scaled):
    """DDP averages over data- and context-parallel ranks, and nothing compensates."""

    diagnosis = "divided_by_dp_cp"

    @property
    def factor(self) -> float:
        return 1 / (self.layout.dp * self.layout.cp)


class MultipliedByDp(Scaled):
    """A factor that undid DDP's average remained when DDP was told to sum."""

    diagnosis = "multiplied_by_dp"

    @property
    def factor(self) -> float:
        return self.layout.dp


class MultipliedByCp(Scaled):
    """The loss is scaled by cp, which the schedule already does (SkyRL 0.2.0 on Megatron)."""

    diagnosis = "multiplied_by_cp"

    @property
    def factor(self) -> float:
        return self.layout.cp


class MultipliedByDpAndCp(Scaled):
    """An average over all ranks is undone although none was taken."""

    diagnosis = "multiplied_by_dp_cp"

    @property
    def factor(self) -> float:
        return self.layout.dp * self.layout.cp


class DividedByMicroBatches(Scaled):
    """Gradient accumulation divides by its steps, as if losses were means of micro-batches."""

    diagnosis = "divided_by_micro_batches"

    @property
    def factor(self) -> float:
        return 1 / self.micro_batches


class MultipliedByMicroBatches(Scaled):
    """A division by the number of micro-batches is undone that this path lacks."""

    diagnosis = "multiplied_by_micro_batches"

    @property
    def factor(self) -> float:
        return self.micro_batches


class DividedByGroupSize(Scaled):
    """An extra factor of 1 / group size: the mean over a prompt's rollouts is taken twice."""

    diagnosis = "divided_by_group_size"

    @property
    def factor(self) -> float:
        step = self.job.steps[0]
        return 1 / max(len(set(step.rollouts[step.groups == group])) for group in step.groups)


class SummedOverSamples(Scaled):
    """A sample's mean is taken, but not the mean over samples."""

    diagnosis = "multiplied_by_samples"
    modes = (Mode.SAMPLE_MEAN,)

    @property
    def factor(self) -> float:
        return self.samples


class SummedOverPrompts(Scaled):
    """A prompt's mean is taken, but not the mean over prompts."""

    diagnosis = "multiplied_by_prompts"
    modes = (Mode.PROMPT_MEAN,)

    @property
    def factor(self) -> float:
        return self.prompts


class DividedBySamplesTwice(Scaled):
    """The train step's final divisor is the batch size, by which the loss is already divided."""

    diagnosis = "divided_by_samples"
    modes = MEANS

    @property
    def factor(self) -> float:
        return 1 / self.samples


class DivisorAppliedTwice(Scaled):
    """The reducer divides, and the per-token path divides again (miles pull request 1328)."""

    diagnosis = "divided_by_divisor"
    modes = (Mode.CONSTANT,)

    @property
    def factor(self) -> float:
        return 1 / self.job.aggregation.divisor


class DivisorNeverApplied(Scaled):
    """The per-token path uses the masked sum as it is, and silently ignores the divisor."""

    diagnosis = "multiplied_by_divisor"
    modes = (Mode.CONSTANT,)

    @property
    def factor(self) -> float:
        return self.job.aggregation.divisor


class HardCodedDivisor(Scaled):
    """The divisor is always 1000 (miles pull request 1328)."""

    diagnosis = "other_divisor"
    modes = (Mode.CONSTANT,)

    @property
    def factor(self) -> float:
        return self.job.aggregation.divisor / 1000


class StaleBatchSize(Scaled):
    """A configuration file changes the batch size after 37 was derived from the command line."""

    diagnosis = "samples_miscounted"
    modes = (Mode.SAMPLE_MEAN,)

    @property
    def factor(self) -> float:
        return self.samples / 37


class StaleNumberOfPrompts(Scaled):
    """The number of prompts is the command line's, 19, instead of the step's."""

    diagnosis = "prompts_miscounted"
    modes = (Mode.PROMPT_MEAN,)

    @property
    def factor(self) -> float:
        return self.prompts / 19
