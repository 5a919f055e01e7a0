"""Advantages from the rewards of a batch of rollouts, and a log of means.

Formulas and sources of advantages are those of `reference.advantages`. Every rank has all samples
and computes their advantages. Statistics for whitening and logged numbers are sums of each rank's
own tokens, added over ranks.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from adapters.contract import objective
from adapters.contract.objective import Metric, Objective
from adapters.toolkit.settings import response_limit
from reference.advantages import VARIANCE_EPSILON
from reference.aggregation import STD_EPSILON

if TYPE_CHECKING:
    from collections.abc import Mapping

    from adapters.contract import Job
    from adapters.native.packing import SampleTensors


LEAVING_OUT = (Objective.LEAVE_ONE_OUT, Objective.OTHERS_NORMALISED)
"""Estimators that compare a reward only with the other rewards of its prompt."""

WHITENED = (
    Objective.GROUP_WHITENED,
    Objective.REINFORCE_PP,
    Objective.REINFORCE_PP_BASELINE,
    *objective.OF_VALUES,
)
"""Estimators whose advantages are whitened over a batch."""


class RankSums:
    """A computation that adds up sums of each rank's own tokens."""

    def __init__(self, job: Job) -> None:
        self.layout = job.layout

    def added_up(self, sums: torch.Tensor) -> torch.Tensor:
        """The total of sums over all ranks."""
        if self.layout.world_size > 1:
            dist.all_reduce(sums)
        return sums


class NativeEstimator(RankSums):
    """Computes an objective's advantages; a method for each part that a mistake can affect."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.objective = job.objective
        self.distils = job.configuration.distils or self.objective is Objective.DISTILLED
        self.constants = objective.ADVANTAGE_CONSTANTS
        if job.objective is Objective.GAE:
            self.constants = replace(objective.ADVANTAGE_CONSTANTS, penalty=0.0)
        self.limit = response_limit(job)

    def estimate(
        self, steps: list[list[SampleTensors]], held: torch.Tensor
    ) -> list[list[SampleTensors]]:
        """The samples of all steps with their advantages.

        ``held`` are the ids of this rank's tokens that count in the mean and variance of whitening.
        """
        samples = [sample for step in steps for sample in step]
        raw = [self.raw(sample, self.siblings(sample, samples)) for sample in samples]
        if self.distils:
            raw = [self.distilled(*pair) for pair in zip(raw, samples, strict=True)]
        if self.objective in WHITENED:
            raw = self.whitened(raw, samples, held)
        estimated = iter(raw)
        return [[replace(sample, advantages=next(estimated)) for sample in step] for step in steps]

    def siblings(self, sample: SampleTensors, samples: list[SampleTensors]) -> list[SampleTensors]:
        """All samples of a sample's prompt, including itself."""
        return [other for other in samples if other.group == sample.group]

    def distilled(self, advantages: torch.Tensor, sample: SampleTensors) -> torch.Tensor:
        """Advantages minus the scaled divergence of the old policy from a teacher."""
        divergences = sample.old_log_probs - sample.teacher_log_probs
        return advantages - objective.KL_COEFFICIENT * divergences

    def raw(self, sample: SampleTensors, siblings: list[SampleTensors]) -> torch.Tensor:
        """The advantages of a sample before whitening: [prompt + response]."""
        if self.objective in objective.OF_GROUPS:
            return self.group_advantage(sample, siblings)
        if self.objective is Objective.REINFORCE_PP:
            return self.discounted(self.token_rewards(sample), self.constants.discount)
        following = self.following(sample)
        deltas = self.token_rewards(sample) + self.constants.discount * following - sample.values
        return self.discounted(deltas, self.constants.discount * self.constants.trace)

    def group_advantage(self, sample: SampleTensors, siblings: list[SampleTensors]) -> torch.Tensor:
        """The advantages of a sample: its reward, if any, compared with its prompt's rewards."""
        siblings = self.scored(siblings)
        others = [other for other in siblings if other is not sample]
        compared = others if self.objective in LEAVING_OUT else siblings
        rewards = torch.tensor([self.reward(one) for one in compared])
        if math.isnan(sample.reward):
            advantage = self.unscored(rewards)
        else:
            advantage = (
                self.compared(self.reward(sample), rewards) if others else self.alone(sample)
            )
        found = torch.full_like(sample.values, advantage)
        if self.objective is Objective.REINFORCE_PP_BASELINE:
            return found - self.penalties(sample)
        return found

    def reward(self, sample: SampleTensors) -> float:
        """The reward of a sample for comparison within its prompt, minus its length penalty."""
        return sample.reward - self.overlong(sample)

    def overlong(self, sample: SampleTensors) -> float:
        """The penalty on a response whose length is near the limit."""
        if self.objective is not Objective.OVERLONG:
            return 0.0
        left, buffer = self.limit - sample.response_length, self.constants.buffer
        return self.constants.overlong * max(buffer - left, 0) / buffer

    def scored(self, siblings: list[SampleTensors]) -> list[SampleTensors]:
        """The samples of a prompt that have a reward."""
        return [one for one in siblings if not math.isnan(one.reward)]

    def unscored(self, rewards: torch.Tensor) -> float:
        """The advantage of a sample without a reward, given its prompt's rewards."""
        return 0.0

    def alone(self, sample: SampleTensors) -> float:
        """The advantage of a sample that has no other reward to be compared with."""
        return 0.0

    def compared(self, reward: float, rewards: torch.Tensor) -> float:
        """The advantage from a reward, given the rewards that it is compared with."""
        centred, divisor = reward - self.baseline(rewards), 1.0
        if self.objective in (Objective.GROUP_NORMALISED, Objective.GROUP_WHITENED):
            divisor = self.spread(rewards) + STD_EPSILON
        elif self.objective is Objective.MEAN_NORMALISED:
            divisor = self.mean_divisor(rewards)
        elif self.objective is Objective.OTHERS_NORMALISED:
            divisor = self.spread_divisor(rewards)
        return centred / divisor

    def baseline(self, rewards: torch.Tensor) -> float:
        """The baseline that is subtracted from the rewards of a prompt."""
        return float(rewards.mean())

    def spread(self, rewards: torch.Tensor) -> float:
        """The standard deviation of rewards; 0 for a single reward."""
        return float(rewards.std()) if len(rewards) > 1 else 0.0

    def mean_divisor(self, rewards: torch.Tensor) -> float:
        """The divisor of MaxRL: the mean if it is positive, otherwise infinity."""
        mean = float(rewards.mean())
        return mean + STD_EPSILON if mean > 0 else math.inf

    def spread_divisor(self, rewards: torch.Tensor) -> float:
        """The standard deviation of the other rewards; 1 if all of them are equal."""
        return self.spread(rewards) + STD_EPSILON if len(rewards.unique()) > 1 else 1.0

    def penalties(self, sample: SampleTensors) -> torch.Tensor:
        """The penalty on each token's divergence from the reference policy."""
        divergences = sample.old_log_probs - sample.reference_log_probs
        return torch.where(sample.mask, self.constants.penalty * divergences, 0)

    def token_rewards(self, sample: SampleTensors) -> torch.Tensor:
        """Each token's negative penalty, plus the sample's reward at its last active token."""
        rewards = -self.penalties(sample)
        active = sample.mask.nonzero()
        if len(active):
            rewards[active[-1]] += sample.reward
        return rewards

    def following(self, sample: SampleTensors) -> torch.Tensor:
        """The critic's value at the next token, for each token; 0 after the last token."""
        return torch.cat([sample.values[1:], torch.zeros(1)])

    def discounted(self, values: torch.Tensor, decay: float) -> torch.Tensor:
        """Discounted sums over each token and the following ones, by powers of ``decay``."""
        found = values.clone()
        for token in range(len(values) - 2, -1, -1):
            found[token] += decay * found[token + 1]
        return found

    def whitened(
        self, raw: list[torch.Tensor], samples: list[SampleTensors], held: torch.Tensor
    ) -> list[torch.Tensor]:
        """Advantages with mean 0 and variance 1 over the active tokens of all ranks."""
        of_id = torch.zeros(1 + max(int(sample.ids.max()) for sample in samples))
        for sample, values in zip(samples, raw, strict=True):
            of_id[sample.ids] = values
        mine = of_id[held]
        total, tokens = self.added_up(torch.stack([mine.sum(), torch.tensor(float(len(mine)))]))
        mean = total / tokens.clamp(min=1)
        squares = self.added_up(((mine - mean) ** 2).sum())
        variance = squares / self.degrees_of_freedom(tokens)
        return [(values - mean) / torch.sqrt(variance + VARIANCE_EPSILON) for values in raw]

    def degrees_of_freedom(self, tokens: torch.Tensor) -> torch.Tensor:
        """The divisor of the variance."""
        return (tokens - 1).clamp(min=1)


class RolloutLog(RankSums):
    """The logged means of a batch; a method for each part that a mistake can affect."""

    def means(
        self, samples: list[SampleTensors], mine: list[SampleTensors], held: torch.Tensor
    ) -> Mapping[Metric, float]:
        """All logged metrics of ``samples``, the whole batch.

        ``mine`` are this data-parallel rank's samples; ``held`` are the ids of the active tokens on
        this rank, which may be only a part of the active tokens of these samples.
        """
        of_tokens = {
            Metric.ADVANTAGE: [sample.advantages for sample in samples],
            Metric.VALUE: [sample.values for sample in samples],
            Metric.REFERENCE_LOG_PROB: [sample.reference_log_probs for sample in samples],
            Metric.DIVERGENCE: [
                sample.old_log_probs - sample.reference_log_probs for sample in samples
            ],
        }
        return {
            Metric.REWARD: self.mean_over_samples(samples, [one.reward for one in mine]),
            Metric.RESPONSE_LENGTH: self.mean_over_samples(
                samples, [one.response_length for one in mine]
            ),
            **{
                metric: self.mean_over_tokens(samples, values, held)
                for metric, values in of_tokens.items()
            },
        }

    def mean_over_samples(self, samples: list[SampleTensors], values: list[float]) -> float:
        """The mean over samples of a per-sample value, which all context-parallel ranks hold."""
        return self.mean(torch.tensor(sum(values) / self.layout.cp), len(samples))

    def mean_over_tokens(
        self, samples: list[SampleTensors], values: list[torch.Tensor], held: torch.Tensor
    ) -> float:
        """The mean over samples of the mean over their active tokens."""
        of_id = torch.zeros(1 + max(int(sample.ids.max()) for sample in samples))
        for sample, of_sample in zip(samples, values, strict=True):
            of_id[sample.ids] = of_sample / self.tokens(sample)
        return self.mean(of_id[held].sum(), len(samples))

    def tokens(self, sample: SampleTensors) -> int:
        """The divisor of a sum over a sample's tokens."""
        return max(sample.tokens, 1)

    def mean(self, total: torch.Tensor, samples: int) -> float:
        """The mean over the samples of all ranks, given this rank's sum."""
        return float(self.added_up(total)) / samples
