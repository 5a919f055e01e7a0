"""The advantages that an estimator must give a batch of rollouts, and the ranks of its tokens."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from adapters.contract.objective import (
    OF_GROUPS,
    OF_VALUES,
    Objective,
)
from conformance.expected.estimators import ESTIMATORS, AdvantageEstimator
from reference import advantages
from reference.advantages import Peers
from reference.aggregation import Penalties
from reference.rounding import UNIT_ROUNDOFF, ratio_bound, statistic_bound

if TYPE_CHECKING:
    from collections.abc import Iterator

    from reference.advantages import Rollouts
    from reference.aggregation import EstimatorConventions
    from reference.arrays import Integers, Mask, Values
    from reference.losses.constants import AdvantageConstants


EXACT = UNIT_ROUNDOFF["float32"]
"""A number below every bound: if a value is divided by it, any error is within the bound."""


def _roundings(rewards: Values) -> float:
    """The number of partial sums of rewards that float32 rounds: 0 if their mean is exact.

    Otherwise the standard deviation of equal rewards may be a rounding error instead of 0.
    """
    sums = np.cumsum(rewards.astype(np.float32), dtype=np.float64)
    return float(np.count_nonzero(sums != sums.astype(np.float32)))


@dataclass(frozen=True, kw_only=True, eq=False)
class BatchPlacement:
    """The step and rank of each token of a batch, int64 [tokens]; ranks are None if unknown.

    ``prompt_lengths`` are the numbers of tokens of each sample's prompt, [N], None if unknown.
    ``slices`` is the number of context-parallel ranks, including ranks that hold no token.
    """

    step: Integers
    dp_rank: Integers | None = None
    cp_rank: Integers | None = None
    prompt_lengths: Integers | None = None
    slices: int = 1

    def rows(self, responses: Integers) -> Iterator[tuple[Integers, int]]:
        """Yield, for each possible form of rows, the start of each response, [N], and the width.

        ``responses`` are the lengths of responses, [N]. Rows without prompts are as wide as the
        longest response. Rows with prompts are as wide as the longest sequence, rounded up to equal
        slices: one or two per context-parallel rank.
        """
        yield np.zeros_like(responses), int(responses.max())
        if self.prompt_lengths is not None:
            longest = int((self.prompt_lengths + responses).max())
            for slices in (self.slices, 2 * self.slices) if self.slices > 1 else (1,):
                yield self.prompt_lengths, -(-longest // slices) * slices

    def parts(self) -> Iterator[tuple[str, Integers]]:
        """Yield the name of each way to divide a batch, with the number of each token's part."""
        if self.step.any():
            yield "step", self.step
        if self.dp_rank is None or self.cp_rank is None:
            return
        if self.dp_rank.any():
            yield "dp_rank", self.dp_rank
        if self.cp_rank.any():
            yield "cp_slice", self.cp_rank
        if self.dp_rank.any() or self.cp_rank.any():
            yield "rank", self.dp_rank * (self.cp_rank.max() + 1) + self.cp_rank


@dataclass(frozen=True, kw_only=True, eq=False)
class Estimate:
    """An objective's estimator of advantages with its inputs."""

    objective: Objective
    rollouts: Rollouts
    conventions: EstimatorConventions

    @property
    def estimator(self) -> AdvantageEstimator:
        """The objective's estimator."""
        return ESTIMATORS[self.objective]

    def having(self, **wrong: object) -> Values:
        """The advantages if fields of the rollouts have other values."""
        rollouts = replace(self.rollouts, **wrong)  # type: ignore[arg-type]
        return self.estimator(rollouts, self.conventions)

    def by(self, **wrong: object) -> Values:
        """The advantages under other conventions."""
        conventions = replace(self.conventions, **wrong)  # type: ignore[arg-type]
        return self.estimator(self.rollouts, conventions)

    def of(self, raw: Values) -> Values:
        """The advantages, given raw advantages: whitened if the estimator whitens."""
        if not self.estimator.whitens:
            return raw
        return advantages.whitened(raw, self.rollouts, self.conventions)

    def under(self, **wrong: float) -> Values:
        """The advantages if the estimator had other constants."""
        constants = replace(self.constants, **wrong)
        return self.of(self.estimator.raw(self.rollouts, constants, self.conventions))

    @property
    def constants(self) -> AdvantageConstants:
        """The estimator's constants."""
        return self.estimator.constants

    @cached_property
    def raw(self) -> Values:
        """The advantages before they are whitened."""
        return self.estimator.raw(self.rollouts, self.constants, self.conventions)

    @cached_property
    def advantages(self) -> Values:
        """The advantages: [tokens]."""
        return self.of(self.raw)

    @property
    def path(self) -> Mask:
        """Whether the estimator's recursion includes each token: [tokens]."""
        return self.rollouts.tokens(self.conventions.transitions)

    @property
    def decay(self) -> float:
        """The factor by which a token's raw advantage contains that of the next token."""
        trace = self.constants.trace if self.objective in OF_VALUES else 1.0
        return self.constants.discount * trace

    @cached_property
    def peers(self) -> Peers:
        """The rewards that a group estimator compares."""
        return Peers.select(self.rollouts, self.conventions)

    @cached_property
    def rounding(self) -> Values:
        """The scale of rounding errors of advantages, besides their own size: [tokens].

        Where a mean is subtracted, rounding errors scale with the numbers before the subtraction.
        The same holds for the standard deviation of the differences.
        """
        if self.objective in OF_GROUPS and not self.estimator.whitens:
            of_tokens: Values = self._statistics_scale[self.rollouts.sample]
            return of_tokens + np.abs(self.advantages)
        largest, amplified = self._largest, 1.0
        if self.objective is Objective.GROUP_WHITENED:
            largest = float((self._statistics_scale + self._sizes).max())
        if self.estimator.whitens:
            counted = self.raw[self.rollouts.tokens(self.conventions.whitened)]
            largest /= advantages.spread(counted, self.conventions)
            amplified += 2 * largest
        return 2 * largest + np.abs(self.advantages) * amplified

    @property
    def _statistics_scale(self) -> Values:
        """The scale of rounding errors of rewards after comparison with their group: [N].

        A group's statistics have fewer roundings than the bound of a batch allows. A reward without
        peers is not divided by a standard deviation.
        """
        peers, epsilon = self.peers, self.conventions.std_epsilon
        whole = ratio_bound("float32", len(self.raw))
        fewer = peers.of_group(lambda rewards: statistic_bound("float32", len(rewards)) / whole)
        largest = peers.of_group(lambda rewards: float(np.abs(rewards).max()))
        centred = 2 * fewer * np.maximum(largest, np.abs(peers.rewards))
        sizes = self._sizes
        if self.objective in (Objective.GROUP_NORMALISED, Objective.GROUP_WHITENED):
            spread = peers.of_group(advantages.std(self.conventions))
            found = centred / (spread + epsilon) * (1 + 2 * sizes)
        elif self.objective is Objective.MEAN_NORMALISED:
            mean = np.maximum(peers.of_group(lambda rewards: float(rewards.mean())), 0)
            found = centred / (mean + epsilon) * (1 + sizes)
        elif self.objective is Objective.OTHERS_NORMALISED:
            spread = peers.of_others(advantages.std(self.conventions))
            by_epsilon = np.where(peers.of_others(_roundings) > 0, sizes / epsilon / EXACT, 0.0)
            divided = centred / (spread + epsilon) * (1 + 2 * sizes)
            found = np.where(spread > 0, divided, centred + by_epsilon)
        else:
            found = centred
        return np.where(peers.of_others(len) > 0, found, centred)

    @property
    def _sizes(self) -> Values:
        """The size of each sample's first advantage before it is whitened: [N]."""
        first = np.searchsorted(self.rollouts.sample, np.arange(len(self.rollouts.rewards)))
        sizes: Values = np.abs(self.raw[first])
        return sizes

    @property
    def _largest(self) -> float:
        """A bound on the sum of the absolute values of an advantage's summands."""
        constants, rollouts = self.constants, self.rollouts
        largest = float(np.nan_to_num(np.abs(rollouts.rewards)).max())
        penalty = constants.penalty * float(np.abs(rollouts.divergences).max())
        if self.objective in OF_GROUPS:
            later = self.conventions.penalties is Penalties.LATER_TOKENS
            return largest + penalty * (int(np.bincount(rollouts.sample).max()) if later else 1)
        largest += penalty / (1 - self.decay)
        if self.objective in OF_VALUES:
            largest += 2 * float(np.abs(rollouts.values).max()) / (1 - self.decay)
        return largest


@dataclass(frozen=True, kw_only=True, eq=False)
class BatchAdvantages:
    """The source of a term whose factors are a batch's advantages, as trained or as logged."""

    estimate: Estimate
    placement: BatchPlacement
    observed: Values | None = None
    """The advantages of the whole batch that a framework's gradient shows, NaN where it shows none:
    [tokens of the batch]."""

    tokens: slice = field(default_factory=lambda: slice(None))
    """The tokens of the term's step."""

    sign: float = 1.0
    """-1 if the factors are derivatives of a policy loss, else 1."""

    def factors(self, batch: Values) -> Values:
        """The term's factors, [tokens], given the advantages of the whole batch."""
        return self.sign * batch[self.tokens]
