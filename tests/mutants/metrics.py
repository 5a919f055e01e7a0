"""The gradient is right, but the step's logged number is not."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from adapters.contract.objective import ENTROPY_COEFFICIENT, Metric, Objective
from adapters.native.packing import SampleTensors
from adapters.native.trainer import denominators
from reference.aggregation import Aggregation, Mode
from tests.mutants.mutant import PROMPT, Mutant

if TYPE_CHECKING:
    from collections.abc import Mapping

    from adapters.native.packing import Packed
    from adapters.native.trainer import TokenLosses


class Misreporting(Mutant, check="metric"):
    """A mutant whose weights conform."""


class SlicesCountedTwice(Misreporting, diagnosis="multiplied_by_cp"):
    """Every context-parallel rank has the whole loss, and all of them are summed."""

    def report(self, shares: torch.Tensor) -> torch.Tensor:
        return super().report(shares) * self.layout.cp


class ReportedMeanOverDp(Misreporting, diagnosis="divided_by_dp"):
    """The logged loss is averaged over data-parallel ranks, although each has only a share."""

    def report(self, shares: torch.Tensor) -> torch.Tensor:
        return super().report(shares) / self.layout.dp


class ReportedByOneRank(
    Misreporting, diagnosis="not_reduced_over_", report=lambda self, shares: shares.sum(dim=0)
):
    """The first rank logs its own share."""


class ReportedOverDpAlone(Misreporting, diagnosis="not_reduced_over_cp"):
    """The logged loss is reduced over the data-parallel group without context parallelism."""

    def report(self, shares: torch.Tensor) -> torch.Tensor:
        totals = shares.sum(dim=0)
        of_ranks = [torch.empty_like(totals) for _ in range(self.layout.world_size)]
        dist.all_gather(of_ranks, totals)
        return torch.stack(of_ranks[self.cp_rank :: self.layout.cp]).sum(dim=0)


class LastMicroBatchReported(Misreporting, diagnosis="micro_batches_lost"):
    """Each micro-batch's dictionary overwrites the previous one."""

    def report(self, shares: torch.Tensor) -> torch.Tensor:
        return super().report(shares[-1:])


class MeanOverMicroBatchesReported(Misreporting, diagnosis="divided_by_micro_batches"):
    """The log averages the micro-batches' shares."""

    def report(self, shares: torch.Tensor) -> torch.Tensor:
        return super().report(shares) / len(shares)


class SharesOfAllRanksAveraged(Misreporting, diagnosis="shares_of_all_ranks_averaged"):
    """The log averages micro-batches' shares over all ranks (prime-rl 559b447)."""

    def report(self, shares: torch.Tensor) -> torch.Tensor:
        averaged = len(shares) * self.layout.dp * self.layout.cp
        return super().report(shares) / averaged


class SharesAveragedByTokens(
    Misreporting, diagnosis="shares_averaged_by_tokens", modes=(Mode.SAMPLE_MEAN, Mode.TOKEN_MEAN)
):
    """Micro-batches' shares of the loss, times their number, are averaged, weighted by tokens."""

    def accumulate(
        self, probe: torch.Tensor, samples: list[SampleTensors], token_losses: TokenLosses
    ) -> tuple[torch.Tensor, dict[Metric, torch.Tensor]]:
        gradient, logs = super().accumulate(probe, samples, token_losses)
        micro_batches = self.cut(self.shard(samples))
        held = torch.tensor([sum(sample.tokens for sample in each) for each in micro_batches])
        tokens = max(sum(sample.tokens for sample in samples), 1)
        factors = held * self.scale(len(held)) * self.layout.dp / tokens
        # Pipeline stages before the last have no losses.
        return gradient, {metric: log * factors[: len(log)] for metric, log in logs.items()}

    def scale(self, micro_batches: int) -> int:
        return micro_batches


class SharesOfTokensAveraged(SharesAveragedByTokens, scale=lambda self, micro_batches: 1):
    """Micro-batches' shares of the loss are averaged, weighted by tokens, instead of summed."""


class ReportedPerSample(
    Misreporting,
    diagnosis="weights_of_sample_mean",
    modes=(Mode.PROMPT_MEAN, Mode.TOKEN_MEAN, Mode.CONSTANT),
):
    """The log keeps the default reducer, a mean over samples, in every mode."""

    def accumulate(
        self, probe: torch.Tensor, samples: list[SampleTensors], token_losses: TokenLosses
    ) -> tuple[torch.Tensor, dict[Metric, torch.Tensor]]:
        gradient, logs = super().accumulate(probe, samples, token_losses)
        per_sample = denominators(samples, Aggregation(Mode.SAMPLE_MEAN))
        pairs = [*zip(samples, per_sample, strict=True)]
        mine = self.shard(pairs)  # type: ignore[arg-type]
        shares = [
            -float(sample.advantages[sample.mask].sum()) / denominator / self.layout.cp
            for sample, denominator in mine
        ]
        by_micro_batch = torch.zeros_like(logs[Metric.POLICY_LOSS])
        by_micro_batch[:1] = sum(shares)
        return gradient, {**logs, Metric.POLICY_LOSS: by_micro_batch}


class Diagnosing(Mutant):
    """A mutant in which only a diagnostic is wrong."""

    def diagnostics(self, log_probs: torch.Tensor, packed: Packed) -> Mapping[Metric, torch.Tensor]:
        right = super().diagnostics(log_probs, packed)
        metric = self.spec.metric
        assert metric is not None
        return {**right, metric: self.wrong(right[metric], packed)}

    def wrong(self, right: torch.Tensor, packed: Packed) -> torch.Tensor:
        """The number that is logged instead of the right share."""
        raise NotImplementedError


class DriftOfEverySlice(Diagnosing, diagnosis="multiplied_by_cp", check="metric.policy_kl"):
    """Every context-parallel rank logs the whole drift from the old policy, and all are summed."""

    def wrong(self, right: torch.Tensor, packed: Packed) -> torch.Tensor:
        return right * self.layout.cp


class ClipFractionByMode(
    Mutant, diagnosis="weights_of_prompt_mean", check="metric.clip_fraction", modes=PROMPT
):
    """The clip fraction uses the policy loss's reducer, so modes cannot be compared."""

    def diagnostics(self, log_probs: torch.Tensor, packed: Packed) -> Mapping[Metric, torch.Tensor]:
        by_mode = replace(packed, auxiliary_denominators=packed.denominators)
        return super().diagnostics(log_probs, by_mode)


class RejectedCountedAfterwards(Diagnosing, diagnosis="nothing_reported", check="rejection.metric"):
    """The number of rejected tokens is averaged over those that remain: it is always 0."""

    def wrong(self, right: torch.Tensor, packed: Packed) -> torch.Tensor:
        return self.reduce((packed.original_mask & ~packed.mask).float(), packed.auxiliary)


class LossWithoutEntropy(Mutant, diagnosis="term_left_out", check="metric.loss"):
    """The logged loss lacks the entropy bonus that is trained."""

    def loss(
        self, probe: torch.Tensor, packed: Packed, token_losses: TokenLosses
    ) -> tuple[torch.Tensor, Mapping[Metric, torch.Tensor]]:
        loss, logs = super().loss(probe, packed, token_losses)
        if self.objective is not Objective.COMBINED:
            return loss, logs
        return loss, {**logs, Metric.LOSS: loss + ENTROPY_COEFFICIENT * logs[Metric.ENTROPY]}
