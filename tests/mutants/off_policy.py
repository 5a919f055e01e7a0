"""Policy losses that are wrong if ratios of policies are not 1."""

from dataclasses import replace

import torch

from adapters.contract.batch.altered import PAINTED
from adapters.contract.objective import CONSTANTS
from adapters.native import losses
from adapters.native.packing import Packed
from tests.mutants.mutant import Mutant, trained_only

LOW, HIGH = 1 - CONSTANTS.clip_low, 1 + CONSTANTS.clip_high


class OffPolicy(Mutant, check="off_policy"):
    """A mutant that is right in all other checks."""

    def token_losses(self, log_probs: torch.Tensor, packed: Packed) -> torch.Tensor:
        right = super().token_losses(log_probs, packed)
        if self.objective is not self.spec.objective:
            return right
        wrong = self.wrong(log_probs, packed)
        # While a token is traced, its value may reach the loss in one way only; a second one would
        # hide the first.
        return wrong if PAINTED.get() else trained_only(right, wrong)

    def wrong(self, log_probs: torch.Tensor, packed: Packed) -> torch.Tensor:
        """The token losses whose gradient is taken."""
        raise NotImplementedError


class TakenForPpo(
    OffPolicy,
    wrong=lambda self, log_probs, packed: losses.ppo(log_probs, packed, self.sequence_sum),
):
    """Another policy loss that has PPO's gradient."""


def ratio(log_probs: torch.Tensor, packed: Packed) -> torch.Tensor:
    """The ratio of the new to the old policy."""
    return torch.exp(log_probs - packed.old_log_probs)


class OldPolicyIsNew(OffPolicy, diagnosis="ratios_left_out"):
    """Old log-probabilities are recomputed after the first update."""

    def wrong(self, log_probs: torch.Tensor, packed: Packed) -> torch.Tensor:
        now = replace(packed, old_log_probs=log_probs.detach())
        return losses.ppo(log_probs, now, self.sequence_sum)


class ClippingForgotten(OffPolicy, diagnosis="clipping_left_out"):
    """The plain surrogate."""

    def wrong(self, log_probs: torch.Tensor, packed: Packed) -> torch.Tensor:
        return -packed.advantages * ratio(log_probs, packed)


class ClippedWithoutMinimum(OffPolicy, diagnosis="tokens_clipped"):
    """Only the clipped ratio, without the minimum with the ratio itself."""

    def wrong(self, log_probs: torch.Tensor, packed: Packed) -> torch.Tensor:
        return -packed.advantages * losses.clipped(ratio(log_probs, packed))


class DualClipIgnored(TakenForPpo, diagnosis="dual_clip_left_out", check="off_policy.dual_clip"):
    """The bound for negative advantages does not reach the loss."""


class SequenceRatioPerToken(TakenForPpo, diagnosis="ratios_of_tokens", check="off_policy.gspo"):
    """GSPO falls through to PPO's ratios."""


class SequenceRatioOfPaddedWidth(
    OffPolicy, diagnosis="masked_tokens_in_ratios", check="off_policy.gspo"
):
    """The mean of a sequence's log-ratios includes its masked tokens."""

    def wrong(self, log_probs: torch.Tensor, packed: Packed) -> torch.Tensor:
        response = replace(packed, mask=packed.advantages != 0)
        return losses.gspo(log_probs, response, self.sequence_sum)


class SequenceRatioPerSlice(Mutant, diagnosis="ratios_per_cp_slice", check="off_policy.gspo"):
    """The mean of a sequence's log-ratios is over a context-parallel rank's slice."""

    def add_slices(self, sums: torch.Tensor) -> None:
        """Sum nothing."""


class PenaltyNotDivided(OffPolicy, diagnosis="penalty_not_divided", check="off_policy.kl_cov"):
    """Advantages are divided before the loss, and the penalty is added undivided."""

    def wrong(self, log_probs: torch.Tensor, packed: Packed) -> torch.Tensor:
        penalty = CONSTANTS.kl_penalty * (log_probs - packed.old_log_probs).abs()
        right = losses.covariance_penalised(log_probs, packed, self.sequence_sum)
        return right + penalty * (packed.denominators - 1)


class GeometricMeanPerMicroBatch(
    OffPolicy, diagnosis="multiplied_by_micro_batches", check="off_policy.geo_mean"
):
    """GMPO's loss is a mean of its own over each micro-batch, and these are summed."""

    def wrong(self, log_probs: torch.Tensor, packed: Packed) -> torch.Tensor:
        return losses.geo_mean(log_probs, packed, self.sequence_sum) * self.micro_batches


class PenaltyOfDirectRewardsForgotten(
    OffPolicy, diagnosis="penalty_left_out", check="off_policy.dro"
):
    """DRO whose penalty is computed from log-probabilities without gradient."""

    def wrong(self, log_probs: torch.Tensor, packed: Packed) -> torch.Tensor:
        return losses.linear(log_probs, packed)


class Corrected(OffPolicy, check="off_policy.tis_token"):
    """PPO's losses with a wrong correction."""

    def wrong(self, log_probs: torch.Tensor, packed: Packed) -> torch.Tensor:
        of_rollouts = self.correction(packed.old_log_probs - packed.rollout_log_probs, packed)
        return losses.ppo(log_probs, packed, self.sequence_sum) * of_rollouts

    def correction(self, log_ratios: torch.Tensor, packed: Packed) -> torch.Tensor:
        """The factor on losses, given log-ratios of old to rollout policy."""
        raise NotImplementedError


class CorrectionForgotten(Corrected, diagnosis="correction_left_out"):
    """The flag is read, but losses are not multiplied."""

    def correction(self, log_ratios: torch.Tensor, packed: Packed) -> torch.Tensor:
        return torch.ones_like(log_ratios)


class CorrectionNotTruncated(Corrected, diagnosis="truncation_left_out"):
    """Importance sampling without its bound."""

    def correction(self, log_ratios: torch.Tensor, packed: Packed) -> torch.Tensor:
        return torch.exp(log_ratios)


class SequencesKept(Corrected, diagnosis="dropping_left_out", check="off_policy.sequence_masked"):
    """Tokens are corrected, but no sequence is dropped."""

    def correction(self, log_ratios: torch.Tensor, packed: Packed) -> torch.Tensor:
        return torch.exp(log_ratios)


class TokensDropped(Corrected, diagnosis="ratios_of_tokens", check="off_policy.sequence_masked"):
    """The level of the mask is ignored."""

    def correction(self, log_ratios: torch.Tensor, packed: Packed) -> torch.Tensor:
        return torch.exp(log_ratios) * losses.kept(log_ratios)


class LowerBoundForgotten(Corrected, diagnosis="dropping_left_out", check="off_policy.tis_bounded"):
    """Only the upper bound is passed on."""

    def correction(self, log_ratios: torch.Tensor, packed: Packed) -> torch.Tensor:
        return torch.exp(log_ratios).clamp(max=CONSTANTS.truncation)
