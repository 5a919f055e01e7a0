"""Wrong logged numbers of optimizer steps, and a coefficient that follows one of them."""

import torch

from adapters.contract.objective import Metric, Objective
from adapters.native.packing import SampleTensors
from tests.mutants.metrics import SharesAveragedByTokens
from tests.mutants.mutant import TOKEN, Mutant


class CoefficientFedByAWrongLog(
    SharesAveragedByTokens,
    diagnosis="shares_averaged_by_tokens",
    check="metric.kl_coefficient",
    modes=TOKEN,
):
    """The coefficient follows a logged divergence that averages micro-batches' shares."""


class WindowsCountedBySamples(Mutant, diagnosis="windows_counted_by_samples", check="metric"):
    """Logged sums are divided by the windows that micro-batches of one sample would make (ROLL)."""

    def train_step(
        self, probe: torch.Tensor, samples: list[SampleTensors]
    ) -> tuple[torch.Tensor, dict[Metric, float]]:
        gradient, log = super().train_step(probe, samples)
        if isinstance(self.layout.micro_batches, int):
            return gradient, log
        of_rank = len(samples) // self.layout.dp
        most = len(self.cut([*range(-(-len(samples) // self.layout.dp))]))  # type: ignore[list-item]
        windows = max(of_rank // most, 1)
        return gradient, {metric: value / windows for metric, value in log.items()}


class PolicyLossAveragedBesideEntropy(
    Mutant, diagnosis="divided_by_micro_batches", check="metric.policy_loss_with_entropy"
):
    """With an entropy bonus, the policy loss is logged as a mean of micro-batches' shares (TRL)."""

    def report(self, shares: torch.Tensor) -> torch.Tensor:
        totals = super().report(shares)
        if self.objective is not Objective.WITH_ENTROPY:
            return totals
        place = self.logged.index(Metric.POLICY_LOSS)
        totals[place] /= len(shares)
        return totals


class ValueLossAveraged(Mutant, diagnosis="divided_by_micro_batches", check="metric.value_loss"):
    """A critic's loss is logged as a mean of micro-batches' shares (OpenRLHF)."""

    def report(self, shares: torch.Tensor) -> torch.Tensor:
        return super().report(shares) / len(shares)
