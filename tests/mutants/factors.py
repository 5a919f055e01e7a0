"""Everything is right but for a factor: the size of something."""

from __future__ import annotations

from typing import TYPE_CHECKING

from adapters.native.packing import Packed
from tests.mutants.mutant import CONSTANT, MEANS, PROMPT, SAMPLE, Mutant

if TYPE_CHECKING:
    import torch


class Scaled(Mutant):
    """The loss of each micro-batch is multiplied by ``factor``."""

    def factor(self) -> float:
        """Wrong unless it is 1."""
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
    """Context-parallel ranks are averaged, though each has the sum of its own tokens alone."""


class AveragedOverDpAndCp(
    Scaled, diagnosis="divided_by_dp_cp", factor=lambda self: 1 / (self.layout.dp * self.layout.cp)
):
    """DDP averages over the group of data and context parallelism, and nothing makes up for it."""


class MultipliedByDp(Scaled, diagnosis="multiplied_by_dp", factor=lambda self: self.layout.dp):
    """The factor that was to undo DDP's average stayed when DDP was told to sum."""


class MultipliedByCp(Scaled, diagnosis="multiplied_by_cp", factor=lambda self: self.layout.cp):
    """The loss is scaled by cp, which the schedule does already (SkyRL 0.2.0 on Megatron)."""


class MultipliedByDpAndCp(
    Scaled, diagnosis="multiplied_by_dp_cp", factor=lambda self: self.layout.dp * self.layout.cp
):
    """An average over all ranks is undone that was never taken."""


class DividedByMicroBatches(
    Scaled, diagnosis="divided_by_micro_batches", factor=lambda self: 1 / self.micro_batches
):
    """Gradient accumulation divides by its steps, as where losses are means of micro-batches."""


class MultipliedByMicroBatches(
    Scaled, diagnosis="multiplied_by_micro_batches", factor=lambda self: self.micro_batches
):
    """A division by the number of micro-batches is undone that this path does not have."""


class DividedByGroupSize(Scaled, diagnosis="divided_by_group_size"):
    """The mean over a prompt's rollouts is taken once too often."""

    def factor(self) -> float:
        step = self.job.steps[0]
        return 1 / max(len(set(step.rollouts[step.groups == group])) for group in step.groups)


class SummedOverSamples(
    Scaled, diagnosis="multiplied_by_samples", modes=SAMPLE, factor=lambda self: self.samples
):
    """A sample's mean is taken, and the mean over samples forgotten."""


class SummedOverPrompts(
    Scaled, diagnosis="multiplied_by_prompts", modes=PROMPT, factor=lambda self: self.prompts
):
    """A prompt's mean is taken, and the mean over prompts forgotten."""


class DividedBySamplesTwice(
    Scaled, diagnosis="divided_by_samples", modes=MEANS, factor=lambda self: 1 / self.samples
):
    """The train step's final divisor is the batch size, which the loss has divided by."""


class DivisorAppliedTwice(Scaled, diagnosis="divided_by_divisor", modes=CONSTANT):
    """Once in the reducer and once more on the per-token path (miles pull request 1328)."""

    def factor(self) -> float:
        return 1 / self.job.aggregation.divisor


class DivisorNeverApplied(Scaled, diagnosis="multiplied_by_divisor", modes=CONSTANT):
    """The per-token path takes the masked sum as it is, and the divisor is silently ignored."""

    def factor(self) -> float:
        return self.job.aggregation.divisor


class HardCodedDivisor(Scaled, diagnosis="other_divisor", modes=CONSTANT):
    """The divisor is 1000 whatever was asked for (miles pull request 1328)."""

    def factor(self) -> float:
        return self.job.aggregation.divisor / 1000


class StaleBatchSize(
    Scaled, diagnosis="samples_miscounted", modes=SAMPLE, factor=lambda self: self.samples / 37
):
    """A configuration file changes the batch size after 37 was derived from the command line."""


class StaleNumberOfPrompts(
    Scaled, diagnosis="prompts_miscounted", modes=PROMPT, factor=lambda self: self.prompts / 19
):
    """The number of prompts is that of the command line, 19, and not of the step."""
