"""Values of masked tokens that are multiplied by the mask, or read."""

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import torch

from adapters.contract.objective import Metric
from adapters.native.packing import Packed, SampleTensors
from adapters.native.rollouts import NativeEstimator
from tests.mutants.auxiliary import trained_only
from tests.mutants.mutant import Mutant

MULTIPLIED, READ = "masked_values_multiplied", "masked_values_read"


class Poisoned(Mutant):
    """A mutant that is right as long as masked tokens hold ordinary numbers."""

    def multiplied(self, values: torch.Tensor, packed: Packed) -> torch.Tensor:
        """The part of a micro-batch in the mean of values, by multiplication."""
        return (values * packed.mask / packed.denominators).sum()


class MaskedAfterwards(Poisoned):
    """Losses of masked tokens are computed with a gradient, and masked when they are summed."""

    def log_probs(self, probe: torch.Tensor, packed: Packed) -> torch.Tensor:
        return probe[packed.ids] + packed.log_probs


class SurrogateMultiplied(MaskedAfterwards, check="poison.old_log_probs", diagnosis=MULTIPLIED):
    """The sum is selected, but a ratio of NaN has a gradient of 0 · NaN before the mask."""


class AdvantagesMultiplied(MaskedAfterwards, check="poison.advantages", diagnosis=MULTIPLIED):
    """Advantages of padding are multiplied by the mask before they are used."""

    def token_losses(self, log_probs: torch.Tensor, packed: Packed) -> torch.Tensor:
        masked = replace(packed, advantages=packed.advantages * packed.mask)
        return super().token_losses(log_probs, masked)


class RatioOfSequenceMultiplied(
    Poisoned, check="poison.old_log_probs_of_sequences", diagnosis=MULTIPLIED
):
    """Log-ratios are multiplied by the mask when they are summed over sequences."""

    def of_sequence(self, values: torch.Tensor, packed: Packed) -> torch.Tensor:
        everywhere = replace(packed, mask=torch.ones_like(packed.mask))
        return super().of_sequence(values * packed.mask, everywhere)


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


class LoggedLossMultiplied(Poisoned, check="poison.logged_advantages", diagnosis=MULTIPLIED):
    """The logged policy loss is summed by multiplication."""

    def reduce(self, values: torch.Tensor, packed: Packed) -> torch.Tensor:
        right = super().reduce(values, packed)
        return trained_only(self.multiplied(values.detach(), packed), right)


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
