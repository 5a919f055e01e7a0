"""Mistakes in computing advantages from rewards."""

import math
from dataclasses import replace

import torch
import torch.distributed as dist

from adapters.contract import Job
from adapters.contract.batch.token_values import PADDING_VALUE
from adapters.native.packing import Packed, SampleTensors
from adapters.native.rollouts import NativeEstimator
from reference.aggregation import Conventions, Deviation
from tests.mutants.mutant import SAMPLE, Mutant


class FromRewards(Mutant, modes=SAMPLE):
    """A mutant that is equally wrong in all modes, and is checked in one."""

    def __init_subclass__(cls, of: str, **says: object) -> None:
        super().__init_subclass__(f"advantages.{of}", **says)


class _AllPrompts(NativeEstimator):
    def siblings(self, sample: SampleTensors, samples: list[SampleTensors]) -> list[SampleTensors]:
        return samples


class GroupsMerged(
    FromRewards, diagnosis="groups_merged", of="group_normalised", estimator=_AllPrompts
):
    """Rewards are viewed as one row if the numbers of samples are not as configured."""


class _WithoutBaseline(NativeEstimator):
    def baseline(self, rewards: torch.Tensor) -> float:
        return 0.0


class BaselineForgotten(
    FromRewards, diagnosis="baseline_left_out", of="group_centred", estimator=_WithoutBaseline
):
    """The option to leave out the standard deviation also leaves out the mean."""


class _Centred(NativeEstimator):
    def compared(self, reward: float, rewards: torch.Tensor) -> float:
        return reward - self.baseline(rewards)


class _WithOwnReward(NativeEstimator):
    def group_advantage(self, sample: SampleTensors, siblings: list[SampleTensors]) -> torch.Tensor:
        rewards = torch.tensor([one.reward for one in self.scored(siblings)])
        is_scored = not math.isnan(sample.reward)
        advantage = sample.reward - self.baseline(rewards) if is_scored else 0.0
        return torch.full_like(sample.values, advantage)


class OwnRewardInBaseline(
    FromRewards, diagnosis="own_reward_in_baseline", of="leave_one_out", estimator=_WithOwnReward
):
    """The baseline is the mean of all samples of the prompt instead of the others."""


class StdForgotten(
    FromRewards, diagnosis="std_left_out", of="group_normalised", estimator=_Centred
):
    """The option to leave out the standard deviation is always on."""


class _Undistilled(NativeEstimator):
    def distilled(self, advantages: torch.Tensor, sample: SampleTensors) -> torch.Tensor:
        return advantages


class TeacherForgotten(
    FromRewards, diagnosis="divergence_left_out", of="distilled", estimator=_Undistilled
):
    """The teacher's log-probabilities do not reach the function that computes advantages."""


class _OfPopulation(NativeEstimator):
    def spread(self, rewards: torch.Tensor) -> float:
        return float(rewards.std(correction=0))

    def degrees_of_freedom(self, tokens: torch.Tensor) -> torch.Tensor:
        return tokens


class StdOfPopulation(
    FromRewards, diagnosis="biased_std", of="group_normalised", estimator=_OfPopulation
):
    """NumPy's standard deviation instead of torch's."""


class StdOfSamples(
    FromRewards,
    diagnosis="unbiased_std",
    of="group_normalised",
    conventions=Conventions(deviation=Deviation.BIASED),
):
    """torch's standard deviation instead of NumPy's."""


class _OfCopies(NativeEstimator):
    def degrees_of_freedom(self, tokens: torch.Tensor) -> torch.Tensor:
        return tokens - 1 / 2


class CopiesWhitened(
    FromRewards, diagnosis="copies_whitened", of="reinforce_pp", estimator=_OfCopies
):
    """Both of two context-parallel ranks add all tokens to the sum, and their number."""


class _OfOneRank(NativeEstimator):
    def added_up(self, sums: torch.Tensor) -> torch.Tensor:
        return sums


class WhitenedPerRank(
    FromRewards, diagnosis="whitened_per_rank", of="reinforce_pp", estimator=_OfOneRank
):
    """Mean and variance are taken over the rank's own tokens."""


class _OfContextParallelRanks(NativeEstimator):
    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.group, _ = dist.new_subgroups(job.layout.cp)

    def added_up(self, sums: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(sums, group=self.group)
        return sums


class WhitenedPerDataRank(
    FromRewards, diagnosis="whitened_per_dp_rank", of="gae", estimator=_OfContextParallelRanks
):
    """Mean and variance are reduced only over context-parallel ranks."""


class _OfDataParallelRanks(NativeEstimator):
    def __init__(self, job: Job) -> None:
        super().__init__(job)
        ranks, cp = range(job.layout.world_size), job.layout.cp
        slices = [list(ranks[cp_rank::cp]) for cp_rank in range(cp)]
        self.group, _ = dist.new_subgroups_by_enumeration(slices)

    def added_up(self, sums: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(sums, group=self.group)
        return sums


class WhitenedPerSlice(
    FromRewards,
    diagnosis="whitened_per_cp_slice",
    of="group_whitened",
    estimator=_OfDataParallelRanks,
):
    """Mean and variance are reduced over the data-parallel group without context parallelism."""


class MaskForgottenInWhitening(
    FromRewards, diagnosis="whitened_by_other_tokens", of="reinforce_pp"
):
    """Mean and variance include tokens that the mask excludes."""

    def whitened_ids(self, packed: Packed) -> torch.Tensor:
        return packed.ids[packed.advantages != 0]


def _with(**wrong: float) -> type[NativeEstimator]:
    """An estimator with other constants."""

    class Wrong(NativeEstimator):
        def __init__(self, job: Job) -> None:
            super().__init__(job)
            self.constants = replace(self.constants, **wrong)

    return Wrong


class DiscountForgotten(
    FromRewards, diagnosis="discount_left_out", of="reinforce_pp", estimator=_with(discount=1.0)
):
    """Only PPO reads the option for the discount."""


class LambdaForgotten(
    FromRewards, diagnosis="trace_left_out", of="gae", estimator=_with(trace=1.0)
):
    """The option for lambda does not reach the estimator."""


class DivergenceIgnored(
    FromRewards,
    diagnosis="divergence_left_out",
    of="reinforce_pp_baseline",
    estimator=_with(penalty=0.0),
):
    """The reference model is loaded, but its log-probabilities are not subtracted."""


class _PenalisedEverywhere(NativeEstimator):
    def penalties(self, sample: SampleTensors) -> torch.Tensor:
        return super().penalties(replace(sample, mask=sample.advantages != 0))


class DivergenceOfToolOutput(
    FromRewards,
    diagnosis="divergence_of_other_tokens",
    of="penalised_gae",
    estimator=_PenalisedEverywhere,
):
    """The penalty includes tokens that the policy did not write."""


class _RewardedAtTheEnd(NativeEstimator):
    def token_rewards(self, sample: SampleTensors) -> torch.Tensor:
        rewards = -self.penalties(sample)
        rewards[-1] += sample.reward
        return rewards


class RewardAtTheLastToken(
    FromRewards, diagnosis="reward_at_another_token", of="reinforce_pp", estimator=_RewardedAtTheEnd
):
    """The reward is at the last token, even if that is a tool's."""


class _OnPaddedRows(NativeEstimator):
    def estimate(
        self, steps: list[list[SampleTensors]], held: torch.Tensor
    ) -> list[list[SampleTensors]]:
        lengths = [int((sample.advantages != 0).sum()) for step in steps for sample in step]
        self.width = max(lengths)
        return super().estimate(steps, held)

    def raw(self, sample: SampleTensors, siblings: list[SampleTensors]) -> torch.Tensor:
        padding = self.width - int((sample.advantages != 0).sum())
        pad = torch.nn.functional.pad
        padded = replace(
            sample,
            values=pad(sample.values, (0, padding), value=PADDING_VALUE),
            mask=pad(sample.mask, (0, padding)),
            old_log_probs=pad(sample.old_log_probs, (0, padding)),
            reference_log_probs=pad(sample.reference_log_probs, (0, padding)),
        )
        return super().raw(padded, siblings)[: len(sample.values)]


class PaddingBootstrapped(
    FromRewards, diagnosis="padding_bootstrapped", of="gae", estimator=_OnPaddedRows
):
    """GAE starts at the end of the row, with the critic's values of padding."""


class _OfReversedBatch(NativeEstimator):
    def estimate(
        self, steps: list[list[SampleTensors]], held: torch.Tensor
    ) -> list[list[SampleTensors]]:
        return super().estimate([self.reversed(step) for step in steps], held)

    def reversed(self, samples: list[SampleTensors]) -> list[SampleTensors]:
        """The samples, each with the values of its row in a reversed batch."""
        values = []
        for sample, other in zip(samples, samples[::-1], strict=True):
            row = torch.full_like(sample.values, PADDING_VALUE)
            of_response = torch.where(other.advantages != 0, other.values, PADDING_VALUE)
            row[: len(of_response)] = of_response[: len(row)]
            values.append(row)
        return [replace(one, values=row) for one, row in zip(samples, values, strict=True)]


class ValuesOfReversedBatch(
    FromRewards, diagnosis="values_of_other_samples", of="gae", estimator=_OfReversedBatch
):
    """The batch is sorted after the critic has seen it, and joined with its values by position."""
