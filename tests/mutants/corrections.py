"""Corrections that are wrong, and tokens that are selected wrongly, by how far policies differ."""

from dataclasses import replace
from itertools import chain, zip_longest

import numpy as np
import torch

from adapters.contract.objective import CONSTANTS
from adapters.native import losses
from adapters.native.corrections import active_tokens, assign_corrections
from adapters.native.packing import Packed, SampleTensors
from tests.mutants.mutant import Mutant
from tests.mutants.off_policy import OffPolicy, ratio


class Comparing(Mutant):
    """A mutant whose corrections of a step, a part of it or other tokens are wrong.

    It is right in all other checks.
    """

    def corrected(self, samples: list[SampleTensors]) -> list[SampleTensors]:
        if self.objective is not self.spec.objective:
            return super().corrected(samples)
        return self.compared(samples)

    def compared(self, samples: list[SampleTensors]) -> list[SampleTensors]:
        """The samples of a step with wrong corrections."""
        return samples

    def of(self, samples: list[SampleTensors]) -> list[SampleTensors]:
        """Samples with right corrections, as if they were a whole step."""
        return [*assign_corrections(samples, self.objective)]


class BoundsOnDividedAdvantages(
    Comparing, diagnosis="divided_advantages_compared", check="off_policy.covariance_clipped"
):
    """Advantages are divided before the loss, which compares covariances with absolute bounds."""

    def compared(self, samples: list[SampleTensors]) -> list[SampleTensors]:
        divided = [
            replace(sample, advantages=sample.advantages / sample.denominator) for sample in samples
        ]
        pairs = zip(self.of(divided), samples, strict=True)
        return [replace(found, advantages=sample.advantages) for found, sample in pairs]


class ClippedPerMicroBatch(
    Comparing, diagnosis="selected_per_micro_batch", check="off_policy.covariance_clipped"
):
    """The loss sees one micro-batch, and means are those of its tokens."""

    def cut(self, samples: list[SampleTensors]) -> list[list[SampleTensors]]:
        parts = super().cut(samples)
        return [*map(self.of, parts)] if self.objective is self.spec.objective else parts


class PenalisedPerRank(
    Comparing, diagnosis="selected_per_rank", check="off_policy.covariance_penalised"
):
    """Each data-parallel rank penalises a fraction of its own tokens."""

    def shard(self, samples: list[SampleTensors]) -> list[SampleTensors]:
        mine = super().shard(samples)
        return self.of(mine) if self.objective is self.spec.objective else mine


class EveryTokenPenalised(
    Comparing, diagnosis="all_tokens_selected", check="off_policy.covariance_penalised"
):
    """The fraction of tokens is ignored."""


class SmallestPenalised(
    Comparing, diagnosis="selection_inverted", check="off_policy.covariance_penalised"
):
    """Tokens are sorted, and the wrong end is taken."""

    def compared(self, samples: list[SampleTensors]) -> list[SampleTensors]:
        opposite = [replace(sample, advantages=-sample.advantages) for sample in samples]
        pairs = zip(self.of(opposite), samples, strict=True)
        return [replace(found, advantages=sample.advantages) for found, sample in pairs]


class KeptPerRank(Comparing, diagnosis="selected_per_rank", check="off_policy.m2po"):
    """Each data-parallel rank drops tokens until its own mean is small."""

    def shard(self, samples: list[SampleTensors]) -> list[SampleTensors]:
        mine = super().shard(samples)
        return self.of(mine) if self.objective is self.spec.objective else mine


class MaskedTokensCompared(Comparing, diagnosis="masked_tokens_compared", check="off_policy.m2po"):
    """The mean of squared log-ratios includes masked tokens of responses."""

    def compared(self, samples: list[SampleTensors]) -> list[SampleTensors]:
        whole = [replace(sample, mask=sample.advantages != 0) for sample in samples]
        pairs = zip(self.of(whole), samples, strict=True)
        return [replace(found, mask=sample.mask) for found, sample in pairs]


class KeptTokensCounted(
    Comparing,
    diagnosis="dropped_tokens_not_counted_per_micro_batch",
    check="off_policy.m2po",
    modes=("token_mean",),
):
    """A micro-batch's mean is over the tokens that are kept, and is weighted by all of them."""

    def cut(self, samples: list[SampleTensors]) -> list[list[SampleTensors]]:
        parts = super().cut(samples)
        if self.objective is not self.spec.objective:
            return parts
        return [
            [replace(sample, correction=sample.correction / kept_share(part)) for sample in part]
            for part in parts
        ]

    def compared(self, samples: list[SampleTensors]) -> list[SampleTensors]:
        return self.of(samples)


def kept_share(samples: list[SampleTensors]) -> float:
    """The share of active tokens that are kept; 1 if there are none."""
    active = torch.cat([sample.correction[sample.mask] for sample in samples])
    return float(active.mean()) or 1.0 if len(active) else 1.0


class NotNormalised(
    Comparing, diagnosis="correction_not_normalised", check="off_policy.tis_normalised"
):
    """Weights are truncated, and not divided by their mean."""

    def compared(self, samples: list[SampleTensors]) -> list[SampleTensors]:
        return [replace(sample, correction=truncated_ratios(sample)) for sample in samples]


def truncated_ratios(sample: SampleTensors) -> torch.Tensor:
    """The truncated ratios of the old to the rollout policy."""
    return losses.truncated(sample.old_log_probs - sample.rollout_log_probs)


class NormalisedPerMicroBatch(
    Comparing, diagnosis="normalised_per_micro_batch", check="off_policy.tis_normalised"
):
    """Weights have a mean of 1 within each micro-batch."""

    def cut(self, samples: list[SampleTensors]) -> list[list[SampleTensors]]:
        parts = super().cut(samples)
        return [*map(self.of, parts)] if self.objective is self.spec.objective else parts


class NormalisedPerMicroBatchOfAllRanks(
    Comparing,
    diagnosis="normalised_per_micro_batch_of_all_ranks",
    check="off_policy.reinforce_normalised",
):
    """Weights have a mean of 1 within the micro-batches that ranks train at the same time."""

    def compared(self, samples: list[SampleTensors]) -> list[SampleTensors]:
        shares = np.array_split(np.arange(len(samples)), self.layout.dp)
        ranks = [self.cut([samples[i] for i in share]) for share in shares]
        together = zip_longest(*ranks, fillvalue=[])
        found = [one for parts in together for one in self.of([*chain.from_iterable(parts)])]
        return sorted(found, key=lambda sample: int(sample.ids[0]))


class TruncatedAfterwards(
    Comparing, diagnosis="normalised_before_truncation", check="off_policy.reinforce_normalised"
):
    """Weights are divided by their mean first, and then truncated."""

    def compared(self, samples: list[SampleTensors]) -> list[SampleTensors]:
        tokens = active_tokens(samples)
        mean = torch.exp(tokens.log_probs - tokens.rollout_log_probs).mean()
        return [
            replace(sample, correction=losses.truncated(log_ratios(sample) - mean.log()))
            for sample in samples
        ]


def log_ratios(sample: SampleTensors) -> torch.Tensor:
    """The log-ratios of the new to the rollout policy."""
    return sample.log_probs - sample.rollout_log_probs


class WeightWithGradient(
    OffPolicy, diagnosis="correction_has_gradient", check="off_policy.rollout_is"
):
    """The ratio that the log-probability is multiplied by is not detached."""

    def wrong(self, log_probs: torch.Tensor, packed: Packed) -> torch.Tensor:
        one = ratio(log_probs, packed)
        within = (one > 1 - CONSTANTS.clip_low) & (one < 1 + CONSTANTS.clip_high)
        return losses.linear(log_probs, packed) * one * within


class RolloutRatioClipped(
    OffPolicy, diagnosis="clipped_instead_of_dropped", check="off_policy.rollout_is"
):
    """The ratio to the rollout policy is clipped, as in CISPO."""

    def wrong(self, log_probs: torch.Tensor, packed: Packed) -> torch.Tensor:
        return losses.cispo(log_probs, packed, self.sequence_sum)


class MovedTokensDropped(OffPolicy, diagnosis="clipped_on_both_sides", check="off_policy.dppo_tv"):
    """Tokens whose probability has moved are dropped, whatever their advantage."""

    def wrong(self, log_probs: torch.Tensor, packed: Packed) -> torch.Tensor:
        moved = torch.exp(log_probs.detach()) - torch.exp(packed.old_log_probs)
        too_far = (moved > CONSTANTS.variation_high) | (-moved > CONSTANTS.variation_low)
        return losses.importance_sampling(log_probs, packed, self.sequence_sum) * ~too_far


class VariationInsteadOfDivergence(
    OffPolicy, diagnosis="other_divergence", check="off_policy.dppo_kl"
):
    """The kind of divergence is ignored, and its bounds are those of another."""

    def wrong(self, log_probs: torch.Tensor, packed: Packed) -> torch.Tensor:
        moved = torch.exp(log_probs.detach()) - torch.exp(packed.old_log_probs)
        bounds = CONSTANTS.divergence_low, CONSTANTS.divergence_high
        return losses.trusted(log_probs, moved.abs(), *bounds, packed)


class ImportanceSamplingClipped(
    OffPolicy,
    diagnosis="option_ignored",
    check="off_policy.importance_sampling",
    wrong=lambda self, log_probs, packed: losses.ppo(log_probs, packed, self.sequence_sum),
):
    """The loss without clipping falls through to PPO's."""


class OfRollouts(OffPolicy, check="off_policy.tis_bounded"):
    """PPO's losses with a wrong correction by the ratio to the rollout policy."""

    def wrong(self, log_probs: torch.Tensor, packed: Packed) -> torch.Tensor:
        ratios = torch.exp(packed.old_log_probs - packed.rollout_log_probs)
        right = losses.ppo(log_probs, packed, self.sequence_sum)
        return right * self.factor(ratios, packed)

    def factor(self, ratios: torch.Tensor, packed: Packed) -> torch.Tensor:
        """The factor of losses, given ratios of the old to the rollout policy."""
        raise NotImplementedError


class LowerBoundForgotten(OfRollouts, diagnosis="correction_without_lower_bound"):
    """Only the upper bound is passed on."""

    def factor(self, ratios: torch.Tensor, packed: Packed) -> torch.Tensor:
        return ratios.clamp(max=CONSTANTS.truncation)


class RatiosClippedInstead(
    OfRollouts, diagnosis="clipped_instead_of_dropped", check="off_policy.icepop"
):
    """The kind of correction is ignored: ratios out of bounds are clipped."""

    def factor(self, ratios: torch.Tensor, packed: Packed) -> torch.Tensor:
        return ratios.clamp(CONSTANTS.kept_low, CONSTANTS.truncation)


class ProductOfTokens(
    OfRollouts, diagnosis="correction_of_tokens", check="off_policy.sequence_icepop"
):
    """The level of the correction is ignored."""

    def factor(self, ratios: torch.Tensor, packed: Packed) -> torch.Tensor:
        return ratios * losses.between(ratios)


class MeanInsteadOfProduct(
    OfRollouts, diagnosis="correction_averaged", check="off_policy.product_masked"
):
    """Sequences are dropped by the ratio of their average token."""

    def factor(self, ratios: torch.Tensor, packed: Packed) -> torch.Tensor:
        tokens = self.sequence_sum(torch.ones_like(ratios), packed).clamp(min=1)
        return losses.kept(self.sequence_sum(ratios.log(), packed) / tokens)


class KeptTokensCorrected(
    OfRollouts, diagnosis="kept_tokens_corrected", check="off_policy.product_masked"
):
    """Sequences that are kept are corrected too."""

    def factor(self, ratios: torch.Tensor, packed: Packed) -> torch.Tensor:
        return losses.kept(self.sequence_sum(ratios.log(), packed)) * ratios


class OutliersDroppedAlone(
    OfRollouts, diagnosis="outliers_dropped_alone", check="off_policy.outlier_masked"
):
    """An outlier is dropped, and the rest of its sequence is kept."""

    def factor(self, ratios: torch.Tensor, packed: Packed) -> torch.Tensor:
        return ~losses.is_outlier(ratios.log())


class MaskInverted(OfRollouts, diagnosis="mask_inverted", check="off_policy.outlier_masked"):
    """The mask of tokens to drop is used as the mask of tokens to keep."""

    def factor(self, ratios: torch.Tensor, packed: Packed) -> torch.Tensor:
        outliers = losses.is_outlier(ratios.log())
        return self.sequence_sum(outliers.float(), packed) > 0


class FallenSequencesDropped(
    OfRollouts, diagnosis="dropped_for_both_signs", check="off_policy.opsm"
):
    """Off-policy sequences are dropped, whatever their advantage."""

    def factor(self, ratios: torch.Tensor, packed: Packed) -> torch.Tensor:
        fallen = packed.old_log_probs - packed.log_probs
        tokens = self.sequence_sum(torch.ones_like(ratios), packed).clamp(min=1)
        return self.sequence_sum(fallen, packed) / tokens <= CONSTANTS.sequence_divergence


class FallenSequencesPerSlice(OffPolicy, diagnosis="ratios_per_cp_slice", check="off_policy.opsm"):
    """The mean of a sequence is over a context-parallel rank's slice."""

    def add_slices(self, sums: torch.Tensor) -> None:
        """Sum nothing."""

    def wrong(self, log_probs: torch.Tensor, packed: Packed) -> torch.Tensor:
        return losses.opsm(log_probs, packed, self.sequence_sum)
