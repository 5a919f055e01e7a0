"""Advantages of the tokens of a batch of rollouts, from the rewards of its samples, in float64.

r is the reward of a sample; mean and std are taken over the rewards of its prompt group; β·kl_t is
the penalty on the divergence of token t from the reference policy, or from a teacher. ρ_t is
-β·kl_t, plus r at the last token. Token t of a sample has the advantage

    group_normalised    (r - mean) / (std + ε)                   arXiv:2402.03300 (GRPO)
    group_centred       r - mean                                 arXiv:2503.20783 (Dr. GRPO)
    mean_normalised     (r - mean) / (mean + ε)                  arXiv:2602.02710 (MaxRL)
    leave_one_out       r - mean of the others in the group      arXiv:2402.14740 (RLOO)
    others_normalised   (r - mean of others) / (their std + ε)   NeMo-RL's default
    penalised_centred   r - mean - β·kl_t (or β·Σ_{s≥t} kl_s)    arXiv:2501.03262 (REINFORCE++)
    discounted_returns  G_t = ρ_t + γ·G_{t+1}                    arXiv:2501.03262 (REINFORCE++)
    gae                 A_t = δ_t + γλ·A_{t+1}                   arXiv:1506.02438 (PPO)
                        where δ_t = ρ_t + γ·V_{t+1} - V_t

DAPO's penalty on long responses lowers r by φ times the share that a response uses of the last C
tokens before the length limit (arXiv:2503.14476, DAPO). After the last token G, A and V are 0.
Advantages may then be whitened: the mean over the tokens of the whole batch is subtracted, and the
result is divided by √(variance + 1e-8). `EstimatorConventions` has the choices: the tokens that G
and A pass through, skipping all other tokens; the tokens that have a penalty, a reward and a value;
the tokens that are averaged for whitening; the divisors of whitening's variance and of the variance
of n rewards (by default n - 1); ε; and whether a token also gets the penalties of later tokens.
They also say which rewards are compared if a group is no longer as it was sampled (`Peers`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from reference.aggregation import Compared, Lone, Missing, Penalties, Rejected, TokenSet

if TYPE_CHECKING:
    from collections.abc import Callable

    from reference.aggregation import EstimatorConventions
    from reference.arrays import Integers, Mask, Values
    from reference.losses.constants import AdvantageConstants

    Statistic = Callable[[Values], float]
    Estimator = Callable[["Rollouts", AdvantageConstants, EstimatorConventions], Values]

VARIANCE_EPSILON = 1e-8


@dataclass(frozen=True, kw_only=True, eq=False)
class Rollouts:
    """The inputs of advantages.

    Of each sample, [N]: ``rewards``, NaN if missing; prompt ``groups``; ``trajectories``;
    ``rejected``, whether rejection sampling has masked all of its active tokens. Of each token,
    [tokens]: ``sample``, the index of its sample, in ascending order; ``mask``, the loss mask; the
    critic's ``values``; ``divergences`` of the policy from the reference policy or from a teacher.
    """

    rewards: Values
    groups: Integers
    trajectories: Integers
    rejected: Mask
    sample: Integers
    mask: Mask
    values: Values
    divergences: Values

    def tokens(self, which: TokenSet) -> Mask:
        """Whether each token is in a set: [tokens]."""
        return self.mask if which is TokenSet.ACTIVE else np.ones_like(self.mask)

    def only(self, tokens: Mask) -> Rollouts:
        """The rollouts with these tokens only."""
        columns = ("sample", "mask", "values", "divergences")
        return replace(self, **{name: getattr(self, name)[tokens] for name in columns})

    def last(self, which: TokenSet) -> Integers:
        """The index of each sample's last token in a set, for samples that have one."""
        found = np.flatnonzero(self.tokens(which))
        ends = np.flatnonzero(np.diff(self.sample[found], append=-1))
        last: Integers = found[ends]
        return last

    @property
    def active_tokens(self) -> Integers:
        """The number of active tokens of each sample: [N]."""
        found: Integers = np.bincount(self.sample[self.mask], minlength=len(self.rewards)).astype(
            np.int64
        )
        return found


@dataclass(frozen=True, kw_only=True, eq=False)
class Peers:
    """The rewards that are compared within each group.

    ``rewards`` of each sample, [N]; ``entry``, [N], the index of the sample that the reward belongs
    to: all samples of a rollout have the same entry if rollouts are compared; ``counted``, [N],
    whether the sample's own reward enters the statistics of its group in ``groups``; ``missing``,
    [N], whether a sample has no reward, and hence an advantage of 0.
    """

    rewards: Values
    groups: Integers
    entry: Integers
    counted: Mask
    missing: Mask

    @classmethod
    def select(cls, rollouts: Rollouts, conventions: EstimatorConventions) -> Peers:
        """Selects the rewards of rollouts that a framework with these conventions compares."""
        entry = _entries(rollouts, conventions.compared)
        rewards = np.nan_to_num(rollouts.rewards)
        if conventions.rejected is Rejected.ZERO:
            rewards = np.where(rollouts.rejected, 0.0, rewards)
        counted = entry == np.arange(len(entry))
        if conventions.rejected is Rejected.EXCLUDED:
            counted &= ~rollouts.rejected
        missing = np.isnan(rollouts.rewards)[entry] & (conventions.missing is Missing.EXCLUDED)
        counted &= ~missing
        return cls(
            rewards=rewards[entry],
            groups=rollouts.groups,
            entry=entry,
            counted=counted,
            missing=missing,
        )

    def of_group(self, statistic: Statistic) -> Values:
        """A statistic of the rewards of each sample's group, 0 if it has none: [N]."""
        found = np.zeros(len(self.rewards))
        for samples, members in self._groups:
            if members.size:
                found[samples] = statistic(self.rewards[members])
        return found

    def of_others(self, statistic: Statistic) -> Values:
        """A statistic of the other rewards of each sample's group, 0 if there are none: [N]."""
        found = np.zeros(len(self.rewards))
        for samples, members in self._groups:
            for sample in samples:
                others = members[members != self.entry[sample]]
                found[sample] = statistic(self.rewards[others]) if others.size else 0.0
        return found

    @cached_property
    def _groups(self) -> list[tuple[Integers, Integers]]:
        """The samples of each group, and those samples of the group whose rewards count."""
        several = [np.flatnonzero(self.groups == group) for group in np.unique(self.groups)]
        return [(samples, samples[self.counted[samples]]) for samples in several]

    @property
    def size(self) -> Values:
        """The number of rewards of each sample's group: [N]."""
        return self.of_group(len)

    def compared(self, advantages: Values, lone: Lone) -> Values:
        """Advantages, [N]: that of ``lone`` for a reward without peers, 0 for a missing one."""
        others = self.of_others(len)
        compared = np.where(others > 0, advantages, self.rewards if lone is Lone.REWARD else 0.0)
        return np.where(self.missing, 0.0, compared)


def _entries(rollouts: Rollouts, compared: Compared) -> Integers:
    """The index of the sample whose reward each sample is given: [N]."""
    entry = np.arange(len(rollouts.rewards))
    if compared is Compared.SAMPLES:
        return entry
    tokens = rollouts.active_tokens
    for rollout in np.unique(rollouts.trajectories):
        samples = np.flatnonzero(rollouts.trajectories == rollout)
        longest = samples[tokens[samples].argmax()]
        entry[samples] = longest if compared is Compared.LONGEST_SAMPLES else samples[-1]
    return entry


def overlong_penalties(lengths: Integers, limit: int, constants: AdvantageConstants) -> Values:
    """φ times the share that a response uses of the last C tokens before a limit: [N]."""
    used: Values = np.clip(lengths - (limit - constants.buffer), 0, constants.buffer)
    return constants.overlong * used / constants.buffer


def group_normalised(
    rollouts: Rollouts, constants: AdvantageConstants, conventions: EstimatorConventions
) -> Values:
    """Returns (r - mean) / (std + ε)."""
    peers = Peers.select(rollouts, conventions)
    scaled = (peers.rewards - peers.of_group(_mean)) / (
        peers.of_group(std(conventions)) + conventions.std_epsilon
    )
    return peers.compared(scaled, conventions.lone)[rollouts.sample]


def mean_normalised(
    rollouts: Rollouts, constants: AdvantageConstants, conventions: EstimatorConventions
) -> Values:
    """(r - mean) / (mean + ε), 0 where the mean is not positive."""
    peers = Peers.select(rollouts, conventions)
    mean = peers.of_group(_mean)
    divisor = np.where(mean > 0, mean + conventions.std_epsilon, np.inf)
    return peers.compared((peers.rewards - mean) / divisor, conventions.lone)[rollouts.sample]


def group_centred(
    rollouts: Rollouts, constants: AdvantageConstants, conventions: EstimatorConventions
) -> Values:
    """Returns r - mean."""
    return _centred(rollouts, conventions)[rollouts.sample]


def leave_one_out(
    rollouts: Rollouts, constants: AdvantageConstants, conventions: EstimatorConventions
) -> Values:
    """Returns r - mean of the others."""
    peers = Peers.select(rollouts, conventions)
    centred = peers.rewards - peers.of_others(_mean)
    return peers.compared(centred, conventions.lone)[rollouts.sample]


def others_normalised(
    rollouts: Rollouts, constants: AdvantageConstants, conventions: EstimatorConventions
) -> Values:
    """(r - mean of the others) / (std of the others + ε), undivided if all others are equal."""
    peers = Peers.select(rollouts, conventions)
    spread = peers.of_others(std(conventions))
    centred = peers.rewards - peers.of_others(_mean)
    scaled = centred / np.where(spread > 0, spread + conventions.std_epsilon, 1.0)
    return peers.compared(scaled, conventions.lone)[rollouts.sample]


def penalised_centred(
    rollouts: Rollouts, constants: AdvantageConstants, conventions: EstimatorConventions
) -> Values:
    """Returns r - mean - β·kl_t; by convention, later penalties may be subtracted as well."""
    penalties = _penalties(rollouts, constants, conventions)
    if conventions.penalties is Penalties.LATER_TOKENS:
        penalties = accumulated(penalties, rollouts.sample, 1.0)
    return _centred(rollouts, conventions)[rollouts.sample] - penalties


def discounted_returns(
    rollouts: Rollouts, constants: AdvantageConstants, conventions: EstimatorConventions
) -> Values:
    """G_t = ρ_t + γ·G_{t+1}, 0 for tokens outside of ``conventions.transitions``."""
    found, chosen = np.zeros(len(rollouts.mask)), rollouts.tokens(conventions.transitions)
    path = rollouts.only(chosen)
    rewards = token_rewards(path, constants, conventions)
    found[chosen] = accumulated(rewards, path.sample, constants.discount)
    return found


def gae(
    rollouts: Rollouts, constants: AdvantageConstants, conventions: EstimatorConventions
) -> Values:
    """A_t = δ_t + γλ·A_{t+1}, 0 for tokens outside of ``conventions.transitions``."""
    found, chosen = np.zeros(len(rollouts.mask)), rollouts.tokens(conventions.transitions)
    path = rollouts.only(chosen)
    values = np.where(path.tokens(conventions.valued), path.values, 0.0)
    following = np.append(values[1:], 0.0)
    following[path.last(TokenSet.RESPONSE)] = 0.0
    rewards = token_rewards(path, constants, conventions)
    deltas = rewards + constants.discount * following - values
    found[chosen] = accumulated(deltas, path.sample, constants.discount * constants.trace)
    return found


def token_rewards(
    rollouts: Rollouts, constants: AdvantageConstants, conventions: EstimatorConventions
) -> Values:
    """ρ_t of each token."""
    rewards = -_penalties(rollouts, constants, conventions)
    last = rollouts.last(conventions.rewarded)
    rewards[last] += rollouts.rewards[rollouts.sample[last]]
    return rewards


def accumulated(values: Values, sample: Integers, decay: float) -> Values:
    """Returns y_t = x_t + decay · y_{t+1}, with y = 0 after the sample's last token."""
    found = values.copy()
    for token in range(len(values) - 2, -1, -1):
        if sample[token] == sample[token + 1]:
            found[token] += decay * found[token + 1]
    return found


def whitened(values: Values, rollouts: Rollouts, conventions: EstimatorConventions) -> Values:
    """(x - mean) / √(variance + 1e-8) over the batch."""
    counted = values[rollouts.tokens(conventions.whitened)]
    if not counted.size:
        return np.zeros_like(values)
    return (values - float(counted.mean())) / spread(counted, conventions)


def spread(values: Values, conventions: EstimatorConventions) -> float:
    """The divisor of whitening, √(variance + 1e-8)."""
    return math.sqrt(variance(values, conventions.lost_degrees_of_freedom) + VARIANCE_EPSILON)


def _centred(rollouts: Rollouts, conventions: EstimatorConventions) -> Values:
    peers = Peers.select(rollouts, conventions)
    return peers.compared(peers.rewards - peers.of_group(_mean), conventions.lone)


def _penalties(
    rollouts: Rollouts, constants: AdvantageConstants, conventions: EstimatorConventions
) -> Values:
    penalised = rollouts.tokens(conventions.penalised)
    return np.where(penalised, constants.penalty * rollouts.divergences, 0.0)


def _mean(values: Values) -> float:
    return float(values.mean())


def std(conventions: EstimatorConventions) -> Statistic:
    """The standard deviation of rewards, exactly 0 if all are equal."""
    lost = conventions.deviation.lost_degrees_of_freedom

    def deviation(rewards: Values) -> float:
        return math.sqrt(variance(rewards, lost)) if np.ptp(rewards) else 0.0

    return deviation


def variance(values: Values, lost_degrees_of_freedom: float) -> float:
    """The variance, 0 for no values; its divisor is at least 1."""
    if not values.size:
        return 0.0
    divisor = max(len(values) - lost_degrees_of_freedom, 1)
    return float(((values - values.mean()) ** 2).sum() / divisor)
