"""The gradient is right, but a logged number about the rollouts is not."""

import torch
import torch.distributed as dist

from adapters.native.packing import SampleTensors
from adapters.native.rollouts import RolloutLog
from tests.mutants.mutant import SAMPLE, Mutant


class OfRollouts(Mutant, modes=SAMPLE):
    """A mutant that is equally wrong in all modes, and is checked in one."""


class _OfRanks(RolloutLog):
    def mean_over_samples(self, samples: list[SampleTensors], values: list[float]) -> float:
        own = torch.tensor(sum(values) / max(len(values), 1))
        return float(self.added_up(own)) / self.layout.world_size


class MeansOfRanksAveraged(
    OfRollouts,
    diagnosis="denominators_per_rank",
    check="rollouts.response_length",
    rollout_log=_OfRanks,
):
    """Every rank logs the mean of its own samples, although some ranks have fewer."""


class _OfSlices(RolloutLog):
    def mean_over_samples(self, samples: list[SampleTensors], values: list[float]) -> float:
        return super().mean_over_samples(samples, values) * self.layout.cp


class SamplesOfSlicesAddedUp(
    OfRollouts, diagnosis="multiplied_by_cp", check="rollouts.reward", rollout_log=_OfSlices
):
    """Context-parallel ranks, which all have the same samples, are summed over too."""


class _OfAllTokens(RolloutLog):
    def mean_over_tokens(
        self, samples: list[SampleTensors], values: list[torch.Tensor], held: torch.Tensor
    ) -> float:
        tokens = sum(sample.tokens for sample in samples)
        return super().mean_over_tokens(samples, values, held) * len(samples) / tokens

    def tokens(self, sample: SampleTensors) -> int:
        return 1


class LongSamplesCountMore(
    OfRollouts, diagnosis="weights_of_token_mean", check="rollouts.value", rollout_log=_OfAllTokens
):
    """The values of a batch are put in one row and averaged."""


class _OfOneRank(RolloutLog):
    def added_up(self, sums: torch.Tensor) -> torch.Tensor:
        return sums


class OneRankLogs(
    OfRollouts,
    diagnosis="not_reduced_over_",
    check="rollouts.gae_advantage",
    rollout_log=_OfOneRank,
):
    """The rank that logs has only its own share."""


class _OfTrained(RolloutLog):
    def mean_over_tokens(
        self, samples: list[SampleTensors], values: list[torch.Tensor], held: torch.Tensor
    ) -> float:
        trained = sum(sample.tokens > 0 for sample in samples)
        return super().mean_over_tokens(samples, values, held) * len(samples) / trained


class MaskedSamplesSkipped(
    OfRollouts,
    diagnosis="sample_units_excluded",
    check="rollouts.reference_log_prob",
    rollout_log=_OfTrained,
):
    """A sample without active tokens has no mean, and is left out."""


class _OfResponses(RolloutLog):
    def mean_over_tokens(
        self, samples: list[SampleTensors], values: list[torch.Tensor], held: torch.Tensor
    ) -> float:
        ids = torch.cat([sample.ids[-sample.response_length :] for sample in samples])
        first = dist.get_rank() == 0 if dist.is_initialized() else True
        return super().mean_over_tokens(samples, values, ids if first else held[:0])

    def tokens(self, sample: SampleTensors) -> int:
        return sample.response_length


class MasksForgotten(
    OfRollouts, diagnosis="inactive_tokens_weigh", check="rollouts.value", rollout_log=_OfResponses
):
    """Sample means are over all tokens of a sample."""
