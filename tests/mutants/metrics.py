"""The gradient is right, and the number that is reported of the step is not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from adapters.native import SampleTensors, denominators
from conformance.report import Check
from reference.aggregation import Aggregation, Mode
from tests.mutants.mutant import EVERY, SLICED, UNEVEN, UNITED, WIDE, Mutant

if TYPE_CHECKING:
    from adapters.native import LossFunction


class Misreporting(Mutant):
    """Its weights conform."""

    check = Check.METRIC


class SlicesCountedTwice(Misreporting):
    """Every context-parallel rank has the whole loss, and all of them are added up."""

    diagnosis = "multiplied_by_cp"
    layouts = (SLICED,)

    def report(self, losses: torch.Tensor) -> float:
        return super().report(losses) * self.layout.cp


class ReportedMeanOverDp(Misreporting):
    """The reported loss is averaged over data-parallel ranks, of which each has a share."""

    diagnosis = "divided_by_dp"
    layouts = (UNEVEN, WIDE)

    def report(self, losses: torch.Tensor) -> float:
        return super().report(losses) / self.layout.dp


class ReportedByOneRank(Misreporting):
    """The first rank reports its own share."""

    diagnosis = "not_reduced_over_"
    layouts = (UNITED, WIDE)

    def report(self, losses: torch.Tensor) -> float:
        return float(losses.sum())


class ReportedOverDpAlone(Misreporting):
    """The reported loss is reduced over the data-parallel group without context parallelism."""

    diagnosis = "not_reduced_over_cp"
    layouts = (UNITED, SLICED)

    def report(self, losses: torch.Tensor) -> float:
        loss = losses.sum()
        of_ranks = [torch.empty_like(loss) for _ in range(self.layout.world_size)]
        dist.all_gather(of_ranks, loss)
        return float(torch.stack(of_ranks[self.cp_rank :: self.layout.cp]).sum())


class LastMicroBatchReported(Misreporting):
    """The dictionary of each micro-batch overwrites the one before."""

    diagnosis = "micro_batches_lost"

    def report(self, losses: torch.Tensor) -> float:
        return super().report(losses[-1:])


class MeanOverMicroBatchesReported(Misreporting):
    """The micro-batches' shares are averaged in the report."""

    diagnosis = "divided_by_micro_batches"

    def report(self, losses: torch.Tensor) -> float:
        return super().report(losses) / len(losses)


class ReportedPerSample(Misreporting):
    """The report keeps the default reducer, a mean over samples, whatever the mode."""

    diagnosis = "weights_of_sample_mean"
    modes = (Mode.PROMPT_MEAN, Mode.TOKEN_MEAN, Mode.CONSTANT)

    def accumulate(
        self, probe: torch.Tensor, samples: list[SampleTensors], token_losses: LossFunction
    ) -> tuple[torch.Tensor, torch.Tensor]:
        gradient, _ = super().accumulate(probe, samples, token_losses)
        per_sample = denominators(samples, Aggregation(Mode.SAMPLE_MEAN))
        pairs = [*zip(samples, per_sample, strict=True)]
        mine = self.shard(pairs)  # type: ignore[arg-type]
        shares = [
            -float(sample.advantages[sample.mask].sum()) / denominator / self.layout.cp
            for sample, denominator in mine
        ]
        return gradient, torch.tensor([sum(shares)])


class NormaliserNotReduced(Misreporting):
    """The reported sum is divided by the tokens of one rank instead of all."""

    diagnosis = "multiplied_by_dp"
    modes = EVERY
    layouts = (WIDE,)

    def report(self, losses: torch.Tensor) -> float:
        return super().report(losses) * self.layout.dp
