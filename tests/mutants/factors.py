"""Everything is right but for a factor: the size of something."""

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
        """Wrong unless it is 1."""
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
    """Context-parallel ranks are averaged, though each has the sum of its own tokens alone."""

    diagnosis = "divided_by_cp"

    @property
    def factor(self) -> float:
        return 1 / self.layout.cp


class AveragedOverDpAndCp(Scaled):
    """DDP averages over the group of data and context parallelism, and nothing makes up for it."""

    diagnosis = "divided_by_dp_cp"

    @property
    def factor(self) -> float:
        return 1 / (self.layout.dp * self.layout.cp)


class MultipliedByDp(Scaled):
    """The factor that was to undo DDP's average stayed when DDP was told to sum."""

    diagnosis = "multiplied_by_dp"

    @property
    def factor(self) -> float:
        return self.layout.dp


class MultipliedByCp(Scaled):
    """The loss is scaled by cp, which the schedule does already (SkyRL 0.2.0 on Megatron)."""

    diagnosis = "multiplied_by_cp"

    @property
    def factor(self) -> float:
        return self.layout.cp


class MultipliedByDpAndCp(Scaled):
    """An average over all ranks is undone that was never taken."""

    diagnosis = "multiplied_by_dp_cp"

    @property
    def factor(self) -> float:
        return self.layout.dp * self.layout.cp


class DividedByMicroBatches(Scaled):
    """Gradient accumulation divides by its steps, as where losses are means of micro-batches."""

    diagnosis = "divided_by_micro_batches"

    @property
    def factor(self) -> float:
        return 1 / self.micro_batches


class MultipliedByMicroBatches(Scaled):
    """A division by the number of micro-batches is undone that this path does not have."""

    diagnosis = "multiplied_by_micro_batches"

    @property
    def factor(self) -> float:
        return self.micro_batches


class DividedByGroupSize(Scaled):
    """The mean over a prompt's rollouts is taken once too often."""

    diagnosis = "divided_by_group_size"

    @property
    def factor(self) -> float:
        step = self.job.steps[0]
        return 1 / max(len(set(step.rollouts[step.groups == group])) for group in step.groups)


class SummedOverSamples(Scaled):
    """A sample's mean is taken, and the mean over samples forgotten."""

    diagnosis = "multiplied_by_samples"
    modes = (Mode.SAMPLE_MEAN,)

    @property
    def factor(self) -> float:
        return self.samples


class SummedOverPrompts(Scaled):
    """A prompt's mean is taken, and the mean over prompts forgotten."""

    diagnosis = "multiplied_by_prompts"
    modes = (Mode.PROMPT_MEAN,)

    @property
    def factor(self) -> float:
        return self.prompts


class DividedBySamplesTwice(Scaled):
    """The train step's final divisor is the batch size, which the loss has divided by."""

    diagnosis = "divided_by_samples"
    modes = MEANS

    @property
    def factor(self) -> float:
        return 1 / self.samples


class DivisorAppliedTwice(Scaled):
    """Once in the reducer and once more on the per-token path (miles pull request 1328)."""

    diagnosis = "divided_by_divisor"
    modes = (Mode.CONSTANT,)

    @property
    def factor(self) -> float:
        return 1 / self.job.aggregation.divisor


class DivisorNeverApplied(Scaled):
    """The per-token path takes the masked sum as it is, and the divisor is silently ignored."""

    diagnosis = "multiplied_by_divisor"
    modes = (Mode.CONSTANT,)

    @property
    def factor(self) -> float:
        return self.job.aggregation.divisor


class HardCodedDivisor(Scaled):
    """The divisor is 1000 whatever was asked for (miles pull request 1328)."""

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
    """The number of prompts is that of the command line, 19, and not of the step."""

    diagnosis = "prompts_miscounted"
    modes = (Mode.PROMPT_MEAN,)

    @property
    def factor(self) -> float:
        return self.prompts / 19
