"""Losses that a model with a router adds by itself, with another coefficient."""

import torch

from adapters.toolkit.probe import ROUTED
from tests.mutants.mutant import Mutant


class RouterMutant(Mutant, check="auxiliary.router"):
    """A mutant that is right unless the model has a router."""


class RouterAddedByEveryRank(RouterMutant, diagnosis="multiplied_by_dp"):
    """Each data-parallel rank takes its own mean, and gradients are summed over ranks."""

    def router_losses(self, probe: torch.Tensor, held: torch.Tensor) -> torch.Tensor:
        return super().router_losses(probe, held) * self.layout.dp


class RouterAveragedOverSlices(RouterMutant, diagnosis="divided_by_cp"):
    """Each slice has its own share, and the average over slices divides it again."""

    def router_losses(self, probe: torch.Tensor, held: torch.Tensor) -> torch.Tensor:
        return super().router_losses(probe, held) / self.layout.cp


class RouterOnEveryMicroBatch(RouterMutant, diagnosis="divided_by_micro_batches"):
    """The policy loss undoes a division by micro-batches, the router cannot."""

    def router_losses(self, probe: torch.Tensor, held: torch.Tensor) -> torch.Tensor:
        return super().router_losses(probe, held) / self.micro_batches


class RouterNotDivided(RouterMutant, diagnosis="router_losses_not_divided"):
    """Sums over tokens wait for a division by a count that is never reported (verl issue 6609)."""

    def router_losses(self, probe: torch.Tensor, held: torch.Tensor) -> torch.Tensor:
        ROUTED.append(len(held))
        return super().router_losses(probe, held) * self.routed


class RouterLeftOut(RouterMutant, diagnosis="nothing_reported"):
    """The losses of a router are computed and not added."""

    def router_losses(self, probe: torch.Tensor, held: torch.Tensor) -> torch.Tensor:
        return super().router_losses(probe, held) * 0
