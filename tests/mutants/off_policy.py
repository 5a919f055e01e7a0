"""Policy losses that are wrong if ratios of policies are not 1."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from adapters.contract.objective import CONSTANTS
from adapters.native import losses
from conformance.plan.checks import check_spec
from tests.mutants.mutant import Mutant

if TYPE_CHECKING:
    from adapters.contract import Job
    from adapters.native.packing import Packed

LOW, HIGH = 1 - CONSTANTS.clip_low, 1 + CONSTANTS.clip_high


class OffPolicy(Mutant):
    """A mutant that is right in all other checks."""

    spec = check_spec("off_policy")

    def token_losses(self, log_probs: torch.Tensor, packed: Packed) -> torch.Tensor:
        right = super().token_losses(log_probs, packed)
        if self.objective is not self.spec.objective:
            return right
        wrong = self.wrong(log_probs, packed)
        return right.detach() + wrong - wrong.detach()  # the logged number stays right

    def wrong(self, log_probs: torch.Tensor, packed: Packed) -> torch.Tensor:
        """The token losses that the gradient is taken of."""
        raise NotImplementedError


class TakenForPpo(OffPolicy):
    """Another policy loss that has PPO's gradient."""

    def wrong(self, log_probs: torch.Tensor, packed: Packed) -> torch.Tensor:
        return losses.ppo(log_probs, packed, self.of_sequence)


def ratio(log_probs: torch.Tensor, packed: Packed) -> torch.Tensor:
    """The ratio of the new to the old policy."""
    return torch.exp(log_probs - packed.old_log_probs)


def larger(first: torch.Tensor, second: torch.Tensor, packed: Packed) -> torch.Tensor:
    """The larger of the losses with two ratios."""
    return torch.maximum(-packed.advantages * first, -packed.advantages * second)


class OldPolicyIsNew(OffPolicy):
    """Old log-probabilities are recomputed after the first update."""

    diagnosis = "ratios_left_out"

    def wrong(self, log_probs: torch.Tensor, packed: Packed) -> torch.Tensor:
        now = replace(packed, old_log_probs=log_probs.detach())
        return losses.ppo(log_probs, now, self.of_sequence)


class RatioInverted(OffPolicy):
    """The old log-probability minus the new one."""

    diagnosis = "ratios_inverted"

    def wrong(self, log_probs: torch.Tensor, packed: Packed) -> torch.Tensor:
        return losses.clipped_losses(packed.old_log_probs - log_probs, packed)


class ClippingForgotten(OffPolicy):
    """The plain surrogate."""

    diagnosis = "clipping_left_out"

    def wrong(self, log_probs: torch.Tensor, packed: Packed) -> torch.Tensor:
        return -packed.advantages * ratio(log_probs, packed)


class ClippedWithoutMinimum(OffPolicy):
    """Only the clipped ratio, without the minimum with the ratio itself."""

    diagnosis = "clipped_on_both_sides"

    def wrong(self, log_probs: torch.Tensor, packed: Packed) -> torch.Tensor:
        return -packed.advantages * losses.clipped(ratio(log_probs, packed))


class ClipBoundsSwapped(OffPolicy):
    """Two positional arguments in the wrong order."""

    diagnosis = "clip_bounds_swapped"

    def wrong(self, log_probs: torch.Tensor, packed: Packed) -> torch.Tensor:
        one = ratio(log_probs, packed)
        return larger(one, one.clamp(1 - CONSTANTS.clip_high, 1 + CONSTANTS.clip_low), packed)


class UpperClipBoundIgnored(OffPolicy):
    """The option for the upper bound is read, but the lower one is used for both."""

    diagnosis = "one_clip_bound"

    def wrong(self, log_probs: torch.Tensor, packed: Packed) -> torch.Tensor:
        one = ratio(log_probs, packed)
        return larger(one, one.clamp(LOW, 1 + CONSTANTS.clip_low), packed)


class DualClipIgnored(TakenForPpo):
    """The bound for negative advantages does not reach the loss."""

    diagnosis = "dual_clip_left_out"
    spec = check_spec("off_policy.dual_clip")


class SequenceRatioPerToken(TakenForPpo):
    """GSPO falls through to PPO's ratios."""

    diagnosis = "ratios_of_tokens"
    spec = check_spec("off_policy.gspo")


class SequenceRatioOfPaddedWidth(OffPolicy):
    """The mean of a sequence's log-ratios includes its masked tokens."""

    diagnosis = "masked_tokens_in_ratios"
    spec = check_spec("off_policy.gspo")

    def wrong(self, log_probs: torch.Tensor, packed: Packed) -> torch.Tensor:
        response = replace(packed, mask=packed.advantages != 0)
        return losses.gspo(log_probs, response, self.of_sequence)


class SequenceRatioMultiplied(OffPolicy):
    """A sequence's ratio is the product of its tokens' ratios, without the root."""

    diagnosis = "ratios_multiplied"
    spec = check_spec("off_policy.gspo")

    def wrong(self, log_probs: torch.Tensor, packed: Packed) -> torch.Tensor:
        log_ratios = (log_probs - packed.old_log_probs).detach()
        of_sequences = self.of_sequence(log_ratios, packed)
        return losses.clipped_losses(log_probs - log_probs.detach() + of_sequences, packed)


class SequenceRatioPerSlice(Mutant):
    """The mean of a sequence's log-ratios is over a context-parallel rank's slice."""

    diagnosis = "ratios_per_cp_slice"
    spec = check_spec("off_policy.gspo")

    def add_slices(self, sums: torch.Tensor) -> None:
        """Sum nothing."""


class ClippedTokensDropped(TakenForPpo):
    """CISPO with PPO's clipping: a clipped token has no gradient."""

    diagnosis = "clipped_tokens_left_out"
    spec = check_spec("off_policy.cispo")


class OneTemperature(OffPolicy):
    """SAPO with the temperature of positive advantages for all tokens."""

    diagnosis = "one_temperature"
    spec = check_spec("off_policy.sapo")

    def wrong(self, log_probs: torch.Tensor, packed: Packed) -> torch.Tensor:
        temperature = CONSTANTS.positive_temperature
        gate = torch.sigmoid(temperature * (ratio(log_probs, packed) - 1))
        return -packed.advantages * gate * 4 / temperature


class TemperaturesSwapped(OffPolicy):
    """SAPO with a reversed comparison."""

    diagnosis = "temperatures_swapped"
    spec = check_spec("off_policy.sapo")

    def wrong(self, log_probs: torch.Tensor, packed: Packed) -> torch.Tensor:
        opposite = replace(packed, advantages=-packed.advantages)
        return -losses.sapo(log_probs, opposite, self.of_sequence)


class PenaltyNotDivided(OffPolicy):
    """Advantages are divided before the loss, and the penalty is added undivided."""

    diagnosis = "penalty_not_divided"
    spec = check_spec("off_policy.kl_cov")

    def wrong(self, log_probs: torch.Tensor, packed: Packed) -> torch.Tensor:
        penalty = CONSTANTS.kl_penalty * (log_probs - packed.old_log_probs).abs()
        right = losses.kl_cov(log_probs, packed, self.of_sequence)
        return right + penalty * (packed.denominators - 1)


class PenaltyWithoutSign(OffPolicy):
    """The log-ratio itself is added instead of its absolute value."""

    diagnosis = "penalty_of_one_sign"
    spec = check_spec("off_policy.kl_cov")

    def wrong(self, log_probs: torch.Tensor, packed: Packed) -> torch.Tensor:
        log_ratios = log_probs - packed.old_log_probs
        return -packed.advantages * torch.exp(log_ratios) + CONSTANTS.kl_penalty * log_ratios


class GeometricMeanOfAllTokens(OffPolicy):
    """GMPO without clipping: clipped tokens keep their gradient."""

    diagnosis = "clipping_left_out"
    spec = check_spec("off_policy.geo_mean")

    def wrong(self, log_probs: torch.Tensor, packed: Packed) -> torch.Tensor:
        log_ratios = log_probs - packed.old_log_probs
        tokens = self.of_sequence(torch.ones_like(log_ratios), packed).clamp(min=1)
        of_sequences = self.of_sequence(log_ratios.detach(), packed) / tokens
        return -packed.advantages * torch.exp(log_ratios - log_ratios.detach() + of_sequences)


class GeometricMeanPerSlice(SequenceRatioPerSlice):
    """GMPO with the mean over a context-parallel rank's slice."""

    spec = check_spec("off_policy.geo_mean")


class GeometricMeanPerMicroBatch(OffPolicy):
    """GMPO's loss is a mean of its own over each micro-batch, and these are summed."""

    diagnosis = "multiplied_by_micro_batches"
    spec = check_spec("off_policy.geo_mean")

    def wrong(self, log_probs: torch.Tensor, packed: Packed) -> torch.Tensor:
        return losses.geo_mean(log_probs, packed, self.of_sequence) * self.micro_batches


class PenaltyOfDirectRewardsInverted(OffPolicy):
    """DRO with a penalty that drives the policy away from the old one."""

    diagnosis = "penalty_inverted"
    spec = check_spec("off_policy.dro")

    def wrong(self, log_probs: torch.Tensor, packed: Packed) -> torch.Tensor:
        return 2 * losses.linear(log_probs, packed) - losses.dro(
            log_probs, packed, self.of_sequence
        )


class PenaltyOfDirectRewardsForgotten(OffPolicy):
    """DRO whose penalty is computed from log-probabilities without gradient."""

    diagnosis = "penalty_left_out"
    spec = check_spec("off_policy.dro")

    def wrong(self, log_probs: torch.Tensor, packed: Packed) -> torch.Tensor:
        return losses.linear(log_probs, packed)


class RatioLeftIn(TakenForPpo):
    """GPG with PPO's clipped ratios."""

    diagnosis = "ratios_put_in"
    spec = check_spec("off_policy.gpg")


class Corrected(OffPolicy):
    """PPO's losses with a wrong correction."""

    spec = check_spec("off_policy.tis_token")

    def wrong(self, log_probs: torch.Tensor, packed: Packed) -> torch.Tensor:
        of_rollouts = self.correction(packed.old_log_probs - packed.rollout_log_probs, packed)
        return losses.ppo(log_probs, packed, self.of_sequence) * of_rollouts

    def correction(self, log_ratios: torch.Tensor, packed: Packed) -> torch.Tensor:
        """The factor on losses, given log-ratios of old to rollout policy."""
        raise NotImplementedError


class CorrectionForgotten(Corrected):
    """The flag is read, but losses are not multiplied."""

    diagnosis = "correction_left_out"

    def correction(self, log_ratios: torch.Tensor, packed: Packed) -> torch.Tensor:
        return torch.ones_like(log_ratios)


class CorrectionNotTruncated(Corrected):
    """Importance sampling without its bound."""

    diagnosis = "correction_not_truncated"

    def correction(self, log_ratios: torch.Tensor, packed: Packed) -> torch.Tensor:
        return torch.exp(log_ratios)


class CorrectionInverted(Corrected):
    """The rollout policy is in the numerator."""

    diagnosis = "correction_inverted"

    def correction(self, log_ratios: torch.Tensor, packed: Packed) -> torch.Tensor:
        return losses.truncated(-log_ratios)


class CorrectionOfNewPolicy(Corrected):
    """The ratio of the new to the rollout policy, in addition to the ratio to the old one."""

    diagnosis = "correction_by_the_new_policy"

    def correction(self, log_ratios: torch.Tensor, packed: Packed) -> torch.Tensor:
        return losses.truncated(-packed.rollout_log_probs)  # new log-probabilities are 0


class CorrectionOfTheSequence(Corrected):
    """The level of the correction is ignored."""

    diagnosis = "correction_of_sequences"

    def __init__(self, job: Job, rank: int) -> None:
        super().__init__(job, rank)
        if job.layout.cp > 1:
            self.slices, _ = dist.new_subgroups(job.layout.cp)

    def correction(self, log_ratios: torch.Tensor, packed: Packed) -> torch.Tensor:
        of_sequences = self.of_sequence(log_ratios, packed)
        return losses.truncated(of_sequences)


class GeometricMean(Corrected):
    """A sequence is corrected by the ratio of its average token."""

    diagnosis = "correction_averaged"
    spec = check_spec("off_policy.tis_sequence")

    def correction(self, log_ratios: torch.Tensor, packed: Packed) -> torch.Tensor:
        tokens = self.of_sequence(torch.ones_like(log_ratios), packed).clamp(min=1)
        return losses.truncated(self.of_sequence(log_ratios, packed) / tokens)


class MaskingSequences(Corrected):
    """PPO's losses with a wrong mask of sequences."""

    spec = check_spec("off_policy.sequence_masked")

    def means(self, log_ratios: torch.Tensor, packed: Packed) -> torch.Tensor:
        """The means of sequences."""
        tokens = self.of_sequence(torch.ones_like(log_ratios), packed).clamp(min=1)
        return self.of_sequence(log_ratios, packed) / tokens


class SequencesKept(MaskingSequences):
    """Tokens are corrected, but no sequence is dropped."""

    diagnosis = "sequences_kept"

    def correction(self, log_ratios: torch.Tensor, packed: Packed) -> torch.Tensor:
        return torch.exp(log_ratios)


class TokensDropped(MaskingSequences):
    """The level of the mask is ignored."""

    diagnosis = "tokens_dropped"

    def correction(self, log_ratios: torch.Tensor, packed: Packed) -> torch.Tensor:
        return torch.exp(log_ratios) * losses.kept(log_ratios)


class KeptTokensNotCorrected(MaskingSequences):
    """Only a mask, without the correction of the tokens that are kept."""

    diagnosis = "kept_tokens_not_corrected"

    def correction(self, log_ratios: torch.Tensor, packed: Packed) -> torch.Tensor:
        return losses.kept(self.means(log_ratios, packed)).to(log_ratios.dtype)
