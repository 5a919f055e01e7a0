"""The gradient is right, and a number that is logged of the rollouts is not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from adapters.native.rollouts import RolloutLog
from conformance.plan.checks import check_spec
from tests.mutants.advantages import FromRewards

if TYPE_CHECKING:
    from adapters.native.packing import SampleTensors


class _OfRanks(RolloutLog):
    def of_samples(self, samples: list[SampleTensors], values: list[float]) -> float:
        own = torch.tensor(sum(values) / max(len(values), 1))
        return float(self.added_up(own)) / self.layout.world_size


class MeansOfRanksAveraged(FromRewards):
    """Every rank logs the mean of its own samples, of which some ranks have fewer."""

    diagnosis = "denominators_per_rank"
    spec = check_spec("rollouts.response_length")
    rollout_log = _OfRanks


class _OfSlices(RolloutLog):
    def of_samples(self, samples: list[SampleTensors], values: list[float]) -> float:
        return super().of_samples(samples, values) * self.layout.cp


class SamplesOfSlicesAddedUp(FromRewards):
    """Sums go over context-parallel ranks too, which all have the same samples."""

    diagnosis = "multiplied_by_cp"
    spec = check_spec("rollouts.reward")
    rollout_log = _OfSlices


class _OfAllTokens(RolloutLog):
    def of_tokens(
        self, samples: list[SampleTensors], values: list[torch.Tensor], held: torch.Tensor
    ) -> float:
        tokens = sum(sample.tokens for sample in samples)
        return super().of_tokens(samples, values, held) * len(samples) / tokens

    def tokens(self, sample: SampleTensors) -> int:
        return 1


class LongSamplesCountMore(FromRewards):
    """The values of a batch are put in one row and averaged."""

    diagnosis = "weights_of_token_mean"
    spec = check_spec("rollouts.value")
    rollout_log = _OfAllTokens


class _OfOneRank(RolloutLog):
    def added_up(self, sums: torch.Tensor) -> torch.Tensor:
        return sums


class OneRankLogs(FromRewards):
    """The rank that logs has its own share alone."""

    diagnosis = "not_reduced_over_"
    spec = check_spec("rollouts.gae_advantage")
    rollout_log = _OfOneRank


class _OfTrained(RolloutLog):
    def of_tokens(
        self, samples: list[SampleTensors], values: list[torch.Tensor], held: torch.Tensor
    ) -> float:
        trained = sum(sample.tokens > 0 for sample in samples)
        return super().of_tokens(samples, values, held) * len(samples) / trained


class MaskedSamplesSkipped(FromRewards):
    """A sample without active tokens has no mean, and is left out."""

    diagnosis = "sample_units_excluded"
    spec = check_spec("rollouts.reference_log_prob")
    rollout_log = _OfTrained


class _OfResponses(RolloutLog):
    def of_tokens(
        self, samples: list[SampleTensors], values: list[torch.Tensor], held: torch.Tensor
    ) -> float:
        ids = torch.cat([sample.ids[-sample.response_length :] for sample in samples])
        first = dist.get_rank() == 0 if dist.is_initialized() else True
        return super().of_tokens(samples, values, ids if first else held[:0])

    def tokens(self, sample: SampleTensors) -> int:
        return sample.response_length


class MasksForgotten(FromRewards):
    """Means of samples are those over all their tokens."""

    diagnosis = "inactive_tokens_weigh"
    spec = check_spec("rollouts.value")
    rollout_log = _OfResponses
