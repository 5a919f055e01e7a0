"""Mistakes in comparing the rewards of a prompt whose samples are not as they were asked for."""

import math
from collections import Counter
from itertools import groupby

import torch

from adapters.native.packing import SampleTensors
from adapters.native.rollouts import NativeEstimator
from reference.aggregation import (
    STD_EPSILON,
    Compared,
    Conventions,
    Lone,
    Rejected,
)
from tests.mutants.advantages import FromRewards

ROLLOUTS_COUNT = Conventions(compared=Compared.LONGEST_SAMPLES)


class SamplesCompared(
    FromRewards,
    diagnosis="compared_by_samples",
    of="group_normalised",
    conventions=ROLLOUTS_COUNT,
):
    """Mean and standard deviation are taken over samples, although a rollout may have several."""


class _OfLongestSamples(NativeEstimator):
    def siblings(self, sample: SampleTensors, samples: list[SampleTensors]) -> list[SampleTensors]:
        siblings = super().siblings(sample, samples)
        rollouts = dict.fromkeys(one.rollout for one in siblings)
        return [self.entry(rollout, siblings) for rollout in rollouts]

    def entry(self, rollout: int, samples: list[SampleTensors]) -> SampleTensors:
        """The sample whose reward a rollout has."""
        return max((one for one in samples if one.rollout == rollout), key=lambda one: one.tokens)

    def group_advantage(self, sample: SampleTensors, siblings: list[SampleTensors]) -> torch.Tensor:
        [entry] = [one for one in siblings if one.rollout == sample.rollout]
        of_entry = super().group_advantage(entry, siblings)
        return torch.full_like(sample.values, float(of_entry[0]))


class RolloutsCompared(
    FromRewards,
    diagnosis="compared_by_longest_samples",
    of="group_normalised",
    estimator=_OfLongestSamples,
):
    """All samples of a rollout count as one."""


class _OfLastSamples(_OfLongestSamples):
    def entry(self, rollout: int, samples: list[SampleTensors]) -> SampleTensors:
        return [one for one in samples if one.rollout == rollout][-1]


class RewardOfTheLastSample(
    FromRewards,
    diagnosis="compared_by_last_samples",
    of="group_normalised",
    conventions=ROLLOUTS_COUNT,
    estimator=_OfLastSamples,
):
    """Whatever comes last of a rollout has its reward."""


class _SlicedByPosition(NativeEstimator):
    def siblings(self, sample: SampleTensors, samples: list[SampleTensors]) -> list[SampleTensors]:
        size = max(Counter(one.group for one in samples).values())
        [place] = [index for index, one in enumerate(samples) if one is sample]
        return samples[place // size * size :][:size]


class GroupsSlicedByPosition(
    FromRewards,
    diagnosis="groups_of_a_fixed_size",
    of="group_normalised",
    estimator=_SlicedByPosition,
):
    """Rewards are viewed as rows of the configured number of samples."""


class _WithoutTail(_SlicedByPosition):
    def group_advantage(self, sample: SampleTensors, siblings: list[SampleTensors]) -> torch.Tensor:
        if len(siblings) == self.size:
            return super().group_advantage(sample, siblings)
        return torch.full_like(sample.values, sample.reward)

    def estimate(
        self, steps: list[list[SampleTensors]], held: torch.Tensor
    ) -> list[list[SampleTensors]]:
        groups = Counter(sample.group for step in steps for sample in step)
        self.size = max(groups.values())
        return super().estimate(steps, held)


class TailWithoutStatistics(
    FromRewards, diagnosis="groups_of_a_fixed_size", of="group_centred", estimator=_WithoutTail
):
    """Samples behind the last whole group have a mean of 0."""


class _OfFullGroups(NativeEstimator):
    def estimate(
        self, steps: list[list[SampleTensors]], held: torch.Tensor
    ) -> list[list[SampleTensors]]:
        groups = Counter(sample.group for step in steps for sample in step)
        self.size = max(groups.values())
        return super().estimate(steps, held)

    def baseline(self, rewards: torch.Tensor) -> float:
        return float(rewards.sum()) / self.size


class MissingSiblingsCounted(
    FromRewards,
    diagnosis="missing_siblings_counted",
    of="group_centred",
    estimator=_OfFullGroups,
):
    """The sum of a prompt's rewards is divided by the configured number of samples."""


class _OfAdjacentSamples(NativeEstimator):
    def siblings(self, sample: SampleTensors, samples: list[SampleTensors]) -> list[SampleTensors]:
        runs = [[*run] for _, run in groupby(samples, key=lambda one: one.group)]
        [run] = [run for run in runs if any(one is sample for one in run)]
        return run


class GroupsCutIntoRuns(
    FromRewards,
    diagnosis="groups_cut_into_runs",
    of="group_normalised",
    estimator=_OfAdjacentSamples,
):
    """A new group begins wherever the prompt changes."""


class RejectedSiblingsKept(
    FromRewards,
    diagnosis="rejected_siblings_counted",
    of="group_normalised",
    conventions=Conventions(rejected_rewards=Rejected.EXCLUDED),
):
    """Rewards are compared before samples are rejected."""


class _OfKeptSamples(NativeEstimator):
    def siblings(self, sample: SampleTensors, samples: list[SampleTensors]) -> list[SampleTensors]:
        siblings = super().siblings(sample, samples)
        return [one for one in siblings if one is sample or one.tokens]


class RejectedSiblingsDropped(
    FromRewards,
    diagnosis="rejected_siblings_excluded",
    of="leave_one_out",
    estimator=_OfKeptSamples,
):
    """Samples whose mask is empty are filtered out before rewards are compared."""


class _WithMaskedRewards(NativeEstimator):
    def reward(self, sample: SampleTensors) -> float:
        return 0.0 if sample.original_mask.any() and not sample.tokens else sample.reward


class RewardsMasked(
    FromRewards,
    diagnosis="rejected_siblings_counted_as_0",
    of="group_normalised",
    estimator=_WithMaskedRewards,
):
    """The reward of a sample is the sum of its unmasked tokens' rewards."""


class _KeepingLoneRewards(NativeEstimator):
    def alone(self, sample: SampleTensors) -> float:
        return sample.reward


class LoneRewardKept(
    FromRewards,
    diagnosis="lone_reward_kept",
    of="mean_normalised",
    estimator=_KeepingLoneRewards,
):
    """A group of one has a mean of 0 and a standard deviation of 1."""


class LoneRewardDropped(
    FromRewards,
    diagnosis="lone_reward_dropped",
    of="leave_one_out",
    conventions=Conventions(lone_reward=Lone.REWARD),
):
    """A group of one is compared with itself."""


class _ScoringAll(NativeEstimator):
    def scored(self, siblings: list[SampleTensors]) -> list[SampleTensors]:
        return siblings


class _MissingAsZero(_ScoringAll):
    def reward(self, sample: SampleTensors) -> float:
        return 0.0 if math.isnan(sample.reward) else sample.reward

    def unscored(self, rewards: torch.Tensor) -> float:
        return self.compared(0.0, rewards)


class MissingRewardsCountedAs0(
    FromRewards,
    diagnosis="missing_rewards_counted_as_0",
    of="leave_one_out",
    estimator=_MissingAsZero,
):
    """Rewards of all functions are added up by nansum (TRL's pull request 5902)."""


class MissingRewardsSpread(
    FromRewards, diagnosis="not_finite", of="group_normalised", estimator=_ScoringAll
):
    """One missing reward is NaN in the statistics of its prompt."""


class _OfOneReward(NativeEstimator):
    def alone(self, sample: SampleTensors) -> float:
        return float(torch.tensor([sample.reward]).std())


class StdOfOneReward(
    FromRewards, diagnosis="not_finite", of="group_normalised", estimator=_OfOneReward
):
    """The unbiased standard deviation of one number is NaN."""


class _WithoutEpsilon(NativeEstimator):
    def compared(self, reward: float, rewards: torch.Tensor) -> float:
        return float((reward - rewards.mean()) / rewards.std())


class EpsilonForgotten(
    FromRewards, diagnosis="not_finite", of="group_normalised", estimator=_WithoutEpsilon
):
    """If all rewards are equal, 0 is divided by 0."""


class BySquares(NativeEstimator):
    """Its variance cancels in float32 where rewards are large beside their differences."""

    def spread(self, rewards: torch.Tensor) -> float:
        if len(rewards) < 2:
            return 0.0
        biased = (rewards**2).mean() - rewards.mean() ** 2
        return float((biased * len(rewards) / (len(rewards) - 1)).sqrt().nan_to_num(0))

    def spread_divisor(self, rewards: torch.Tensor) -> float:
        spread = self.spread(rewards)
        return spread + STD_EPSILON if spread > 0 else 1.0


class VarianceOfSquares(
    FromRewards,
    diagnosis="difference_of_squares",
    of="others_normalised",
    estimator=BySquares,
):
    """The variance is the mean of squares minus the square of the mean."""


class VarianceOfGroupSquares(
    FromRewards,
    diagnosis="difference_of_squares",
    of="group_normalised",
    estimator=BySquares,
):
    """The same with the sample's own reward."""


class _AddedAtTheEnd(NativeEstimator):
    def group_advantage(self, sample: SampleTensors, siblings: list[SampleTensors]) -> torch.Tensor:
        return super().group_advantage(sample, siblings) * sample.mask[-1]


class MaskedEndsLost(
    FromRewards,
    diagnosis="reward_at_a_masked_token_lost",
    of="group_normalised",
    estimator=_AddedAtTheEnd,
):
    """Rewards are put at the last token, and returns add up those of active tokens alone."""
