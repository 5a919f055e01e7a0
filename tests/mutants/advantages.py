"""Advantages that are computed wrong from rewards."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.distributed as dist

from adapters.contract.probed_batch import PADDING_VALUE
from adapters.native.rollouts import NativeEstimator
from conformance.plan.checks import check_spec
from reference.aggregation import Mode
from tests.mutants.mutant import Mutant

if TYPE_CHECKING:
    from adapters.contract import Job
    from adapters.native.packing import Packed, SampleTensors


class FromRewards(Mutant):
    """A mutant that goes wrong in one mode as in all others."""

    modes = (Mode.SAMPLE_MEAN,)


class _AllPrompts(NativeEstimator):
    def rewards_of_prompt(
        self, sample: SampleTensors, samples: list[SampleTensors]
    ) -> torch.Tensor:
        return torch.tensor([other.reward for other in samples])


class GroupsMerged(FromRewards):
    """Rewards are viewed as one row when the numbers of samples are not as configured."""

    diagnosis = "groups_merged"
    spec = check_spec("advantages.group_normalised")
    estimator = _AllPrompts


class _OfShares(NativeEstimator):
    def estimate(
        self, steps: list[list[SampleTensors]], held: torch.Tensor
    ) -> list[list[SampleTensors]]:
        return [
            [
                sample
                for share in np.array_split(np.arange(len(step)), self.layout.dp)
                for sample in super(_OfShares, self).estimate([[step[i] for i in share]], held)[0]
            ]
            for step in steps
        ]


class GroupsOfARank(FromRewards):
    """Rewards are compared after the samples were dealt to ranks."""

    diagnosis = "groups_per_dp_rank"
    spec = check_spec("advantages.group_centred")
    estimator = _OfShares


class _WithoutBaseline(NativeEstimator):
    def baseline(self, rewards: torch.Tensor) -> float:
        return 0.0


class BaselineForgotten(FromRewards):
    """The option to leave out the standard deviation leaves out the mean too."""

    diagnosis = "baseline_left_out"
    spec = check_spec("advantages.group_centred")
    estimator = _WithoutBaseline


class _Centred(NativeEstimator):
    def of_group(self, sample: SampleTensors, rewards: torch.Tensor) -> torch.Tensor:
        return torch.full_like(sample.values, sample.reward - self.baseline(rewards))


class OwnRewardInBaseline(FromRewards):
    """The mean is that of all samples of the prompt, and not of the others."""

    diagnosis = "own_reward_in_baseline"
    spec = check_spec("advantages.leave_one_out")
    estimator = _Centred


class StdForgotten(FromRewards):
    """The option to leave out the standard deviation is always on."""

    diagnosis = "std_left_out"
    spec = check_spec("advantages.group_normalised")
    estimator = _Centred


class _OfPopulation(NativeEstimator):
    def spread(self, rewards: torch.Tensor) -> float:
        return float(rewards.std(correction=0))

    def degrees_of_freedom(self, tokens: torch.Tensor) -> torch.Tensor:
        return tokens


class StdOfPopulation(FromRewards):
    """NumPy's standard deviation in the place of torch's."""

    diagnosis = "biased_std"
    spec = check_spec("advantages.group_normalised")
    estimator = _OfPopulation


class VarianceOfPopulation(FromRewards):
    """The divisor of the variance is the number of tokens."""

    diagnosis = "biased_variance"
    spec = check_spec("advantages.reinforce_pp")
    estimator = _OfPopulation


class _OfOneRank(NativeEstimator):
    def added_up(self, sums: torch.Tensor) -> torch.Tensor:
        return sums


class WhitenedPerRank(FromRewards):
    """Mean and variance are those of the tokens that a rank has."""

    diagnosis = "whitened_per_rank"
    spec = check_spec("advantages.reinforce_pp")
    estimator = _OfOneRank


class _OfContextParallelRanks(NativeEstimator):
    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.group, _ = dist.new_subgroups(job.layout.cp)

    def added_up(self, sums: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(sums, group=self.group)
        return sums


class WhitenedPerDataRank(FromRewards):
    """Mean and variance are added up over context-parallel ranks alone."""

    diagnosis = "whitened_per_dp_rank"
    spec = check_spec("advantages.gae")
    estimator = _OfContextParallelRanks


class _OfDataParallelRanks(NativeEstimator):
    def __init__(self, job: Job) -> None:
        super().__init__(job)
        ranks, cp = range(job.layout.world_size), job.layout.cp
        slices = [list(ranks[cp_rank::cp]) for cp_rank in range(cp)]
        self.group, _ = dist.new_subgroups_by_enumeration(slices)

    def added_up(self, sums: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(sums, group=self.group)
        return sums


class WhitenedPerSlice(FromRewards):
    """The data-parallel group without context parallelism adds up mean and variance."""

    diagnosis = "whitened_per_cp_slice"
    spec = check_spec("advantages.group_whitened")
    estimator = _OfDataParallelRanks


class MaskForgottenInWhitening(FromRewards):
    """Mean and variance count the tokens that the mask excludes."""

    diagnosis = "whitened_by_other_tokens"
    spec = check_spec("advantages.reinforce_pp")

    def whitened_ids(self, packed: Packed) -> torch.Tensor:
        return packed.ids[packed.advantages != 0]


class _WithMean(NativeEstimator):
    def whitened(
        self, raw: list[torch.Tensor], samples: list[SampleTensors], held: torch.Tensor
    ) -> list[torch.Tensor]:
        whitened = super().whitened(raw, samples, held)
        first = raw[0].unique()[-2:]
        of_first = whitened[0].unique()[-2:]
        spread = (first[1] - first[0]) / (of_first[1] - of_first[0])
        return [values / spread for values in raw]


class MeanKept(FromRewards):
    """Whitening is called with the flag that adds the mean again."""

    diagnosis = "whitening_keeps_the_mean"
    spec = check_spec("advantages.reinforce_pp_baseline")
    estimator = _WithMean


def _with(**wrong: float) -> type[NativeEstimator]:
    """An estimator with other constants."""

    class Wrong(NativeEstimator):
        def __init__(self, job: Job) -> None:
            super().__init__(job)
            self.constants = replace(self.constants, **wrong)

    return Wrong


class DiscountForgotten(FromRewards):
    """The option for the discount is read by PPO alone."""

    diagnosis = "discount_left_out"
    spec = check_spec("advantages.reinforce_pp")
    estimator = _with(discount=1.0)


class LambdaForgotten(FromRewards):
    """The option for lambda does not reach the estimator."""

    diagnosis = "trace_left_out"
    spec = check_spec("advantages.gae")
    estimator = _with(trace=1.0)


class DivergenceIgnored(FromRewards):
    """The reference model is loaded, and its log-probabilities are not subtracted."""

    diagnosis = "divergence_left_out"
    spec = check_spec("advantages.reinforce_pp_baseline")
    estimator = _with(penalty=0.0)


class _PenalisedEverywhere(NativeEstimator):
    def penalties(self, sample: SampleTensors) -> torch.Tensor:
        return super().penalties(replace(sample, mask=sample.advantages != 0))


class DivergenceOfToolOutput(FromRewards):
    """The penalty is on tokens that the policy did not write."""

    diagnosis = "divergence_of_other_tokens"
    spec = check_spec("advantages.penalised_gae")
    estimator = _PenalisedEverywhere


class _RewardedAtTheEnd(NativeEstimator):
    def token_rewards(self, sample: SampleTensors) -> torch.Tensor:
        rewards = -self.penalties(sample)
        rewards[-1] += sample.reward
        return rewards


class RewardAtTheLastToken(FromRewards):
    """The reward is at the last token, though it may be a tool's."""

    diagnosis = "reward_at_another_token"
    spec = check_spec("advantages.reinforce_pp")
    estimator = _RewardedAtTheEnd


class _OnPaddedRows(NativeEstimator):
    def estimate(
        self, steps: list[list[SampleTensors]], held: torch.Tensor
    ) -> list[list[SampleTensors]]:
        lengths = [int((sample.advantages != 0).sum()) for step in steps for sample in step]
        self.width = max(lengths)
        return super().estimate(steps, held)

    def raw(self, sample: SampleTensors, rewards: torch.Tensor) -> torch.Tensor:
        padding = self.width - int((sample.advantages != 0).sum())
        pad = torch.nn.functional.pad
        padded = replace(
            sample,
            values=pad(sample.values, (0, padding), value=PADDING_VALUE),
            mask=pad(sample.mask, (0, padding)),
            old_log_probs=pad(sample.old_log_probs, (0, padding)),
            reference_log_probs=pad(sample.reference_log_probs, (0, padding)),
        )
        return super().raw(padded, rewards)[: len(sample.values)]


class PaddingBootstrapped(FromRewards):
    """Advantages begin at the end of the row, with the values that a critic has for padding."""

    diagnosis = "padding_bootstrapped"
    spec = check_spec("advantages.gae")
    estimator = _OnPaddedRows


class _OfReversedBatch(NativeEstimator):
    def estimate(
        self, steps: list[list[SampleTensors]], held: torch.Tensor
    ) -> list[list[SampleTensors]]:
        return super().estimate([self.reversed(step) for step in steps], held)

    def reversed(self, samples: list[SampleTensors]) -> list[SampleTensors]:
        """The samples, each with the values that are in its row of a reversed batch."""
        values = []
        for sample, other in zip(samples, samples[::-1], strict=True):
            row = torch.full_like(sample.values, PADDING_VALUE)
            of_response = torch.where(other.advantages != 0, other.values, PADDING_VALUE)
            row[: len(of_response)] = of_response[: len(row)]
            values.append(row)
        return [replace(one, values=row) for one, row in zip(samples, values, strict=True)]


class ValuesOfReversedBatch(FromRewards):
    """The batch is sorted after the critic has seen it, and joined with its values by place."""

    diagnosis = "values_of_other_samples"
    spec = check_spec("advantages.gae")
    estimator = _OfReversedBatch


class _OfSlices(NativeEstimator):
    def estimate(
        self, steps: list[list[SampleTensors]], held: torch.Tensor
    ) -> list[list[SampleTensors]]:
        samples = [sample for step in steps for sample in step]
        self.holder = torch.zeros(1 + max(int(sample.ids.max()) for sample in samples))
        self.holder[held] = 1 + dist.get_rank()
        self.added_up(self.holder)
        active = torch.cat([sample.ids[sample.mask] for sample in samples])
        return super().estimate(steps, held[torch.isin(held, active)])

    def raw(self, sample: SampleTensors, rewards: torch.Tensor) -> torch.Tensor:
        self.holders = self.holder[sample.ids]
        return super().raw(sample, rewards)

    def discounted(self, values: torch.Tensor, decay: float) -> torch.Tensor:
        parts = torch.unique_consecutive(self.holders, return_counts=True)[1].tolist()
        return torch.cat([super(_OfSlices, self).discounted(p, decay) for p in values.split(parts)])


class SlicesApart(FromRewards):
    """Returns are added up before the slices of context-parallel ranks are gathered."""

    diagnosis = "slices_apart"
    spec = check_spec("advantages.reinforce_pp")
    estimator = _OfSlices

    def whitened_ids(self, packed: Packed) -> torch.Tensor:
        return packed.ids[packed.advantages != 0]
