"""Terms and logged numbers over the wrong mask when rejection sampling has removed tokens."""

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from adapters.contract.objective import Metric, Objective
from adapters.native.packing import Packed
from tests.mutants.mutant import Mutant, trained_only

if TYPE_CHECKING:
    from collections.abc import Mapping

    from adapters.native.trainer import TokenLosses


def over_original(packed: Packed) -> Packed:
    """Auxiliary terms over the mask before rejection sampling, as their denominators are."""
    return replace(
        packed,
        mask=packed.original_mask,
        auxiliary_denominators=packed.original_denominators,
    )


class DiagnosingKept(Mutant):
    """A mutant with a wrong mask or wrong denominators of diagnostics."""

    def diagnostics(
        self, log_probs: torch.Tensor, packed: Packed
    ) -> "Mapping[Metric, torch.Tensor]":
        right, metric = super().diagnostics(log_probs, packed), self.spec.metric
        assert metric is not None
        return {**right, metric: super().diagnostics(log_probs, self.changed(packed))[metric]}

    def changed(self, packed: Packed) -> Packed:
        """The values from which the diagnostic is computed instead."""
        raise NotImplementedError


class RejectedTokensClipped(
    DiagnosingKept, diagnosis="rejection_left_out", check="rejection.clip_fraction"
):
    """The clip fraction keeps the mask that the batch came with."""

    def changed(self, packed: Packed) -> Packed:
        return over_original(packed)


class RejectedTokensDrift(
    DiagnosingKept, diagnosis="rejected_tokens_weigh", check="rejection.policy_kl"
):
    """The drift from the old policy is summed over all tokens and divided by the kept ones."""

    def changed(self, packed: Packed) -> Packed:
        return replace(packed, mask=packed.original_mask)


class RatiosOfRejectedTokens(
    DiagnosingKept, diagnosis="rejection_left_out", check="rejection.ratio"
):
    """The mean ratio keeps the mask that the batch came with."""

    def changed(self, packed: Packed) -> Packed:
        return over_original(packed)


class KeptTokensByAll(
    DiagnosingKept, diagnosis="original_mask_counted", check="rejection.clip_fraction"
):
    """The clipped tokens that were kept are divided by all tokens."""

    def changed(self, packed: Packed) -> Packed:
        return replace(packed, auxiliary_denominators=packed.original_denominators)


class EntropyTrainedOnRejectedTokens(
    Mutant, diagnosis="rejection_left_out", check="rejection.combined"
):
    """The entropy bonus keeps the mask that the batch came with."""

    def entropy(self, probe: torch.Tensor, packed: Packed) -> torch.Tensor:
        right = super().entropy(probe, packed)
        if self.objective is not Objective.REJECTION_COMBINED:
            return right
        return trained_only(right, super().entropy(probe, over_original(packed)))


class EntropyLoggedOfRejectedTokens(
    Mutant, diagnosis="rejection_left_out", check="rejection.entropy"
):
    """The logged entropy keeps the mask that the batch came with."""

    def entropy(self, probe: torch.Tensor, packed: Packed) -> torch.Tensor:
        right = super().entropy(probe, packed)
        if self.objective is not Objective.REJECTION_COMBINED:
            return right
        return trained_only(super().entropy(probe, over_original(packed)), right)


class RejectedTokensInTheLog(
    Mutant, diagnosis="rejected_tokens_weigh", check="rejection.policy_loss"
):
    """The logged policy loss is summed over all tokens and divided by the kept ones."""

    def loss(
        self, probe: torch.Tensor, packed: Packed, token_losses: "TokenLosses"
    ) -> "tuple[torch.Tensor, Mapping[Metric, torch.Tensor]]":
        loss, logs = super().loss(probe, packed, token_losses)
        if self.objective is not Objective.REJECTION_OFF_POLICY:
            return loss, logs
        wrong = self.reduce(
            token_losses(probe[packed.ids], packed), replace(packed, mask=packed.original_mask)
        )
        return loss, {**logs, Metric.POLICY_LOSS: wrong}
