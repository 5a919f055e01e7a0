"""Everything is right except a factor: the size of something."""

import torch

from adapters.native.packing import Packed
from tests.mutants.mutant import CONSTANT, MEANS, PROMPT, SAMPLE, Mutant


class Scaled(Mutant):
    """The loss of each micro-batch is multiplied by ``factor``."""

    def factor(self) -> float:
        """The factor, wrong unless it is 1."""
        raise NotImplementedError

    def reduce(self, token_losses: torch.Tensor, packed: Packed) -> torch.Tensor:
        return super().reduce(token_losses, packed) * self.factor()

    @property
    def samples(self) -> int:
        return self.job.steps[0].size

    @property
    def prompts(self) -> int:
        return len(set(self.job.steps[0].groups.tolist()))


class AveragedOverDp(Scaled, diagnosis="divided_by_dp", factor=lambda self: 1 / self.layout.dp):
    """DDP averages gradients that are already divided by counts of the whole step."""


class AveragedOverCp(Scaled, diagnosis="divided_by_cp", factor=lambda self: 1 / self.layout.cp):
    """Context-parallel ranks are averaged, although each has only the sum of its own tokens."""


class AveragedOverDpAndCp(
    Scaled, diagnosis="divided_by_dp_cp", factor=lambda self: 1 / (self.layout.dp * self.layout.cp)
):
    """DDP averages over data- and context-parallel ranks, and nothing compensates."""


class MultipliedByDp(Scaled, diagnosis="multiplied_by_dp", factor=lambda self: self.layout.dp):
    """A factor that undid DDP's average remained when DDP was told to sum."""


class MultipliedByCp(Scaled, diagnosis="multiplied_by_cp", factor=lambda self: self.layout.cp):
    """The loss is scaled by cp, which the schedule already does (SkyRL 0.2.0 on Megatron)."""


class MultipliedByDpAndCp(
    Scaled, diagnosis="multiplied_by_dp_cp", factor=lambda self: self.layout.dp * self.layout.cp
):
    """An average over all ranks is undone although none was taken."""


class DividedByMicroBatches(
    Scaled, diagnosis="divided_by_micro_batches", factor=lambda self: 1 / self.micro_batches
):
    """Gradient accumulation divides by its steps, as if losses were means of micro-batches."""


class MultipliedByMicroBatches(
    Scaled, diagnosis="multiplied_by_micro_batches", factor=lambda self: self.micro_batches
):
    """A division by the number of micro-batches is undone that this path lacks."""


class DividedByGroupSize(Scaled, diagnosis="divided_by_group_size"):
    """An extra factor of 1 / group size: the mean over a prompt's rollouts is taken twice."""

    def factor(self) -> float:
        step = self.job.steps[0]
        return 1 / max(len(set(step.rollouts[step.groups == group])) for group in step.groups)


class SummedOverSamples(
    Scaled, diagnosis="multiplied_by_samples", modes=SAMPLE, factor=lambda self: self.samples
):
    """A sample's mean is taken, but not the mean over samples."""


class SummedOverPrompts(
    Scaled, diagnosis="multiplied_by_prompts", modes=PROMPT, factor=lambda self: self.prompts
):
    """A prompt's mean is taken, but not the mean over prompts."""


class DividedBySamplesTwice(
    Scaled, diagnosis="divided_by_samples", modes=MEANS, factor=lambda self: 1 / self.samples
):
    """The train step's final divisor is the batch size, by which the loss is already divided."""


class DivisorAppliedTwice(Scaled, diagnosis="divided_by_divisor", modes=CONSTANT):
    """The reducer divides, and the per-token path divides again (miles pull request 1328)."""

    def factor(self) -> float:
        return 1 / self.job.aggregation.divisor


class DivisorNeverApplied(Scaled, diagnosis="multiplied_by_divisor", modes=CONSTANT):
    """The per-token path uses the masked sum as it is, and silently ignores the divisor."""

    def factor(self) -> float:
        return self.job.aggregation.divisor


class HardCodedDivisor(Scaled, diagnosis="other_divisor", modes=CONSTANT):
    """The divisor is always 1000 (miles pull request 1328)."""

    def factor(self) -> float:
        return self.job.aggregation.divisor / 1000


class StaleBatchSize(
    Scaled, diagnosis="samples_miscounted", modes=SAMPLE, factor=lambda self: self.samples / 37
):
    """A configuration file changes the batch size after 37 was derived from the command line."""


class StaleNumberOfPrompts(
    Scaled, diagnosis="prompts_miscounted", modes=PROMPT, factor=lambda self: self.prompts / 19
):
    """The number of prompts is the command line's, 19, instead of the step's."""
