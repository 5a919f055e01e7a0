"""Values of masked tokens that are multiplied by the mask, or read."""

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import torch

from adapters.contract.objective import CONSTANTS, Metric, Objective
from adapters.native.losses import between, clipped
from adapters.native.packing import Packed, SampleTensors
from adapters.native.rollouts import NativeEstimator
from tests.mutants.mutant import Mutant, trained_only

MULTIPLIED, READ = "masked_values_multiplied", "masked_values_read"
OVERFLOW = "ratios_overflow"


class Poisoned(Mutant):
    """A mutant that is right as long as masked tokens hold ordinary numbers."""

    def multiplied(self, values: torch.Tensor, packed: Packed) -> torch.Tensor:
        """The micro-batch's share of the mean of values, masked by multiplication."""
        return (values * packed.mask / packed.denominators).sum()


class MaskedAfterwards(Poisoned):
    """Losses of masked tokens are computed with a gradient, and masked when they are summed."""

    def log_probs(self, probe: torch.Tensor, packed: Packed) -> torch.Tensor:
        return probe[packed.ids] + packed.log_probs


class Unbounded(MaskedAfterwards):
    """PPO's log-ratios are not bounded before the exponential, which would also stop their NaN."""

    def token_losses(self, log_probs: torch.Tensor, packed: Packed) -> torch.Tensor:
        if self.objective is not Objective.OFF_POLICY:
            return super().token_losses(log_probs, packed)
        ratio = torch.exp(log_probs - packed.old_log_probs)
        return torch.maximum(-packed.advantages * ratio, -packed.advantages * clipped(ratio))


class SurrogateMultiplied(Unbounded, check="poison.old_log_probs", diagnosis=MULTIPLIED):
    """The sum is selected, but a ratio of NaN has a gradient of 0 · NaN before the mask."""


class AdvantagesMultiplied(MaskedAfterwards, check="poison.advantages", diagnosis=MULTIPLIED):
    """Advantages of padding are multiplied by the mask before they are used."""

    def token_losses(self, log_probs: torch.Tensor, packed: Packed) -> torch.Tensor:
        masked = replace(packed, advantages=packed.advantages * packed.mask)
        return super().token_losses(log_probs, masked)


class NewPolicyMultiplied(Unbounded, check="poison.log_probs", diagnosis=MULTIPLIED):
    """The same where the new policy's log-probability is NaN."""


class RatioClippedAfterwards(Unbounded, check="poison.overflowing_ratios", diagnosis=OVERFLOW):
    """A ratio of infinity is clipped, whose gradient is 0 times infinity."""


class CorrectionScaledDown(Poisoned, check="poison.overflowing_corrections", diagnosis=OVERFLOW):
    """A ratio beyond the bound is divided by how far it is beyond, infinity by infinity."""

    def token_losses(self, log_probs: torch.Tensor, packed: Packed) -> torch.Tensor:
        ratio = torch.exp(packed.old_log_probs - packed.rollout_log_probs)
        truncated = ratio / (ratio / CONSTANTS.truncation).clamp(min=1)
        plain = replace(packed, rollout_log_probs=packed.old_log_probs)
        return super().token_losses(log_probs, plain) * truncated


class CorrectionMultiplied(
    Poisoned, check="poison.overflowing_masked_corrections", diagnosis=OVERFLOW
):
    """A ratio out of bounds is multiplied by 0 instead of being replaced by it."""

    def token_losses(self, log_probs: torch.Tensor, packed: Packed) -> torch.Tensor:
        ratio = torch.exp(packed.old_log_probs - packed.rollout_log_probs)
        plain = replace(packed, rollout_log_probs=packed.old_log_probs)
        return super().token_losses(log_probs, plain) * ratio * between(ratio)


class RatioOfSequenceMultiplied(
    Poisoned, check="poison.old_log_probs_of_sequences", diagnosis=MULTIPLIED
):
    """Log-ratios are multiplied by the mask when they are summed over sequences."""

    def sequence_sum(self, values: torch.Tensor, packed: Packed) -> torch.Tensor:
        everywhere = replace(packed, mask=torch.ones_like(packed.mask))
        return super().sequence_sum(values * packed.mask, everywhere)


class WeightsMultiplied(MaskedAfterwards, check="poison.rollout_log_probs", diagnosis=MULTIPLIED):
    """Importance weights are multiplied by the mask."""

    def token_losses(self, log_probs: torch.Tensor, packed: Packed) -> torch.Tensor:
        return super().token_losses(log_probs, packed) * packed.mask


class DivergenceMultiplied(
    MaskedAfterwards, check="poison.reference_log_probs", diagnosis=MULTIPLIED
):
    """The ratio to the reference policy is multiplied by the mask."""

    def divergence(self, log_probs: torch.Tensor, packed: Packed) -> torch.Tensor:
        ratios = torch.exp(log_probs.detach() - packed.reference_log_probs)
        wrong = self.reduce(log_probs * ratios / ratios, packed.auxiliary)
        return trained_only(super().divergence(log_probs, packed), wrong)


class ReturnsMultiplied(MaskedAfterwards, check="poison.returns", diagnosis=MULTIPLIED):
    """Squared errors of a critic are multiplied by the mask, and so is their gradient."""


class LoggedEntropyMultiplied(Poisoned, check="poison.logged_entropies", diagnosis=MULTIPLIED):
    """Entropies are summed by multiplication."""

    def entropy(self, probe: torch.Tensor, packed: Packed) -> torch.Tensor:
        return self.multiplied(packed.entropies + probe[packed.ids], packed.auxiliary)


class LoggedDivergenceMultiplied(
    Poisoned, check="poison.logged_reference_log_probs", diagnosis=MULTIPLIED
):
    """Only the logged divergence is summed by multiplication."""

    def diagnostics(self, log_probs: torch.Tensor, packed: Packed) -> Mapping[Metric, torch.Tensor]:
        divergences = log_probs.detach() - packed.reference_log_probs
        logged = super().diagnostics(log_probs, packed)
        return {**logged, Metric.KL: self.multiplied(divergences, packed.auxiliary)}


class LoggedRatioMultiplied(Poisoned, check="poison.logged_old_log_probs", diagnosis=MULTIPLIED):
    """The logged divergence from the old policy is summed by multiplication."""

    def diagnostics(self, log_probs: torch.Tensor, packed: Packed) -> Mapping[Metric, torch.Tensor]:
        log_ratios = log_probs.detach() - packed.old_log_probs
        logged = super().diagnostics(log_probs, packed)
        return {**logged, Metric.POLICY_KL: self.multiplied(-log_ratios, packed.auxiliary)}


class LoggedPromptsMultiplied(
    Poisoned, check="poison.logged_old_log_probs_of_prompts", diagnosis=MULTIPLIED
):
    """Tokens of prompts are multiplied by 0 in the logged loss, and those of tools selected."""

    def reduce(self, values: torch.Tensor, packed: Packed) -> torch.Tensor:
        right = super().reduce(values, packed)
        is_response = packed.advantages != 0
        selected = torch.where(is_response & ~packed.mask, 0, values.detach())
        return trained_only(self.multiplied(selected, packed), right)


class LoggedLossMultiplied(Poisoned, check="poison.logged_advantages", diagnosis=MULTIPLIED):
    """The logged policy loss is summed by multiplication."""

    def reduce(self, values: torch.Tensor, packed: Packed) -> torch.Tensor:
        right = super().reduce(values, packed)
        return trained_only(self.multiplied(values.detach(), packed), right)


class LoggedErrorMultiplied(
    LoggedLossMultiplied, check="poison.logged_old_values", diagnosis=MULTIPLIED
):
    """A critic's logged loss is summed by multiplication."""


class LargestAdvantageOfAll(Poisoned, check="poison.advantages", diagnosis=READ):
    """Advantages are clipped to a multiple of the largest one, that of padding included."""

    def token_losses(self, log_probs: torch.Tensor, packed: Packed) -> torch.Tensor:
        largest = packed.advantages.abs().max()
        return super().token_losses(log_probs, packed) * (largest / 1e6).clamp(min=1)


class PenaltiesMultiplied(NativeEstimator):
    """Penalties are multiplied by the mask."""

    def penalties(self, sample: SampleTensors) -> torch.Tensor:
        divergences = sample.old_log_probs - sample.reference_log_probs
        return self.constants.penalty * divergences * sample.mask


class RewardsMultiplied(
    Poisoned, check="poison.reference_log_probs_in_rewards", diagnosis=MULTIPLIED
):
    """Penalties in rewards are multiplied by the mask, and discounted returns pass them on."""

    estimator: ClassVar[type[NativeEstimator]] = PenaltiesMultiplied


class WhitenedByMultiplication(NativeEstimator):
    """Sums for whitening are of values that are multiplied by the mask."""

    def whitened(
        self, raw: list[torch.Tensor], samples: list[SampleTensors], held: torch.Tensor
    ) -> list[torch.Tensor]:
        pairs = zip(raw, samples, strict=True)
        masked = torch.cat([values * sample.mask for values, sample in pairs])
        right = super().whitened(raw, samples, held)
        return [values + masked.sum() * 0 for values in right]


class PromptsWhitened(Poisoned, check="poison.values_of_prompts", diagnosis=MULTIPLIED):
    """Mean and variance of advantages are sums over prompts too, multiplied by the mask."""

    estimator: ClassVar[type[NativeEstimator]] = WhitenedByMultiplication
