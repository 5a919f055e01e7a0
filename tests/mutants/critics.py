"""A critic's loss that is wrong where values are clipped, or where it shares the policy's model."""

import torch

from adapters.contract.objective import CONSTANTS, Objective
from adapters.native import losses
from adapters.native.packing import Packed
from tests.mutants.mutant import Mutant, trained_only


class WrongCritic(Mutant, check="other_losses.value_clipped"):
    """A mutant in which only a critic's clipped loss is wrong."""

    def other_losses(self, values: torch.Tensor, packed: Packed) -> torch.Tensor:
        if self.objective is not Objective.VALUE_CLIPPED:
            return super().other_losses(values, packed)
        return self.wrong(values, packed)

    def wrong(self, values: torch.Tensor, packed: Packed) -> torch.Tensor:
        """The token losses that are trained."""
        raise NotImplementedError

    def errors(self, values: torch.Tensor, packed: Packed) -> torch.Tensor:
        """The squared errors of values."""
        return losses.value(values, packed, self.sequence_sum)

    def bounded(self, values: torch.Tensor, packed: Packed, bound: float) -> torch.Tensor:
        """The squared errors of values whose change is bounded."""
        old = packed.old_values
        return self.errors(old + (values - old).clamp(-bound, bound), packed)


class ValuesNotClipped(
    WrongCritic,
    diagnosis="clipping_left_out",
    wrong=lambda self, values, packed: self.errors(values, packed),
):
    """The bound does not reach the critic's loss."""


class ValuesOnlyBounded(
    WrongCritic,
    diagnosis="tokens_clipped",
    wrong=lambda self, values, packed: self.bounded(values, packed, CONSTANTS.value_clip),
):
    """Only the error of the bounded value, without the maximum with that of the value itself."""


class SharedTrunk(Mutant, check="auxiliary.with_value"):
    """A mutant in which the loss of a value head that shares the policy's model is wrong."""

    def value_loss(self, values: torch.Tensor, packed: Packed) -> torch.Tensor:
        right = super().value_loss(values, packed)
        return trained_only(right, self.wrong(right, values, packed))

    def wrong(self, right: torch.Tensor, values: torch.Tensor, packed: Packed) -> torch.Tensor:
        """The trained share, from the right one and the values."""
        raise NotImplementedError


class ValueHeadDetached(SharedTrunk, diagnosis="term_without_gradient"):
    """The value head reads hidden states without their gradient, so the trunk gets none."""

    def wrong(self, right: torch.Tensor, values: torch.Tensor, packed: Packed) -> torch.Tensor:
        return right.detach()


class ValueLossOnEveryMicroBatch(SharedTrunk, diagnosis="divided_by_micro_batches"):
    """The loss of the value head alone is divided by the micro-batches."""

    def wrong(self, right: torch.Tensor, values: torch.Tensor, packed: Packed) -> torch.Tensor:
        return right / self.micro_batches
