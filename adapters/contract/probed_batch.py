"""The probe: an all-zero parameter with one entry per token, whose gradient is the token weights.

An adapter adds ``probe[token id]`` to the log-probability of each token, gives the framework the
advantages below, and lets it train. With a ratio of new to old policy of exactly 1, the gradient of
an entry is -weight · advantage. As every advantage is a signed power of two, dividing by it rounds
nothing. With other ratios it is the weight times the derivative that `reference.policy_losses` has.
The same entry is added to the token's entropy, whose coefficient is 0 unless the objective
has that term.

Token ids are unique in a batch, so that a token is recognised after slicing, packing and padding:
they count through all sequences from 1, and 0 is padding. A token's id is one more than that of the
token from which it is predicted.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from adapters.contract.formulas import DERIVATIVES
from adapters.contract.objective import (
    CONSTANTS,
    ENTROPY_COEFFICIENT,
    FROM_REWARDS,
    KL_COEFFICIENT,
    OF_ROLLOUT_RATIOS,
    OFF_POLICY,
    ONE_ADVANTAGE,
    Objective,
)
from reference import divergences
from reference.advantages import Rollouts
from reference.aggregation import DEFAULT_CONVENTIONS, AdvantageUnit, DivergenceEstimator
from reference.policy_losses import PolicyTokens

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from adapters.contract.job import Job
    from reference.aggregation import Conventions
    from reference.step import Step

_Number = TypeVar("_Number", bound=np.generic)
PADDING_ID = 0
# Advantages, cycled over the tokens of a batch: every sample has several signs and sizes.
ADVANTAGES = np.array([1.0, -0.5, 2.0, -1.0, 0.5, -2.0, -4.0])

LOG_RATIOS = np.array([0.0, 0.5, -0.5, 1.25, 0.25, -0.25])
"""Log-ratios of new to old policy where they are not all 0, cycled over tokens: with advantages of
either sign, some tokens are clipped, and others would be with the other bound."""

ROLLOUT_LOG_RATIOS = np.array([0.25, -0.5, 1.0, 0.0, -0.75])
"""Log-ratios of old to rollout policy for `OF_ROLLOUT_RATIOS`: ratios of tokens and products over
sequences are truncated, or not, and means over sequences are out of bounds, or not."""

ENTROPIES = np.array([0.5, 2.0, 1.0, 0.25])

DIVERGENCES = np.array([1.0, 0.25, 0.5, 2.0, 4.0, 0.125])
"""Divergences from the reference policy, cycled over tokens like the entropies. All differ from 0,
so that metrics must be masked by the mask alone."""

REJECTED_LOG_PROB = -4.0
"""Log-probability of the rollout policy for a token to reject, for others 0: its ratio is e^4."""


REWARDS = np.array([1.0, -0.5, 2.25, 0.25, -1.5, 0.75, 3.0, -0.25, 1.75, -2.0, 0.5])
"""Rewards, cycled over the samples of a batch: no two of a prompt have the same."""

VALUES = np.array([0.5, -1.0, 1.5, 0.25, -0.75])
"""A critic's values, cycled over tokens."""

PADDING_VALUE = 2.0
"""A critic's value of padding, which a framework must not read."""


PAINT = 4096.0
"""The advantage of a painted token, which no other number of a step is."""

_painted: ContextVar[tuple[int, int] | None] = ContextVar("painted", default=None)


@contextmanager
def painting(token: tuple[int, int] | None) -> Iterator[None]:
    """Give one token of every batch made in the context an advantage, and all others none."""
    reset = _painted.set(token)
    try:
        yield
    finally:
        _painted.reset(reset)


@dataclass(frozen=True, eq=False)
class ProbedBatch:
    """The sequences of one batch of rollouts and the values of their tokens for an objective.

    Lists have one array per sample, with one entry per response token unless stated otherwise.
    """

    steps: tuple[Step, ...]
    objective: Objective = Objective.POLICY
    kl_estimator: DivergenceEstimator = DivergenceEstimator.K1
    advantage_unit: AdvantageUnit = AdvantageUnit.TOKEN

    @classmethod
    def under(
        cls, conventions: Conventions, steps: tuple[Step, ...], objective: Objective
    ) -> ProbedBatch:
        """The batch as a framework with these conventions is given it."""
        unit = conventions.advantage_unit or AdvantageUnit.TOKEN
        return cls(steps, objective, conventions.kl_estimator, unit)

    @classmethod
    def of(cls, job: Job, conventions: Conventions = DEFAULT_CONVENTIONS) -> ProbedBatch:
        """A job's batch as a framework with these conventions is given it."""
        return cls.under(conventions, job.steps, job.objective)

    @cached_property
    def prompts(self) -> list[NDArray[np.int64]]:
        """Token ids of each sample's prompt."""
        return [ids[:length] for ids, length in self._sequences]

    @cached_property
    def responses(self) -> list[NDArray[np.int64]]:
        """Token ids of each sample's response."""
        return [ids[length:] for ids, length in self._sequences]

    @cached_property
    def masks(self) -> list[NDArray[np.bool_]]:
        """Loss mask of each sample after rejection sampling."""
        return [step.mask[response] for step in self.steps for response in step.responses]

    @cached_property
    def original_masks(self) -> list[NDArray[np.bool_]]:
        """Loss mask of each sample before rejection sampling, which a framework is given."""
        return [step.mask_before_rejection[ids] for step in self.steps for ids in step.responses]

    @cached_property
    def advantages(self) -> list[NDArray[np.float64]]:
        """Advantages for the framework: 0 if the objective has no policy loss."""
        if self.objective in (Objective.ENTROPY, Objective.KL):
            return [np.zeros(len(ids)) for ids in self.responses]
        return self.raw_advantages

    @cached_property
    def raw_advantages(self) -> list[NDArray[np.float64]]:
        """An advantage for each token, never 0: a framework must mask by the mask alone."""
        if (painted := _painted.get()) is not None:
            advantages = [np.zeros(len(ids)) for ids in self.responses]
            advantages[painted[0]][painted[1]] = PAINT
            return advantages
        if self.objective in ONE_ADVANTAGE or self.advantage_unit is AdvantageUnit.SAMPLE:
            of_sample = ADVANTAGES[np.arange(len(self.responses)) % len(ADVANTAGES)]
            pairs = zip(self.responses, of_sample, strict=True)
            return [np.full(len(ids), advantage) for ids, advantage in pairs]
        return [ADVANTAGES[ids % len(ADVANTAGES)] for ids in self.responses]

    @cached_property
    def old_log_probs(self) -> list[NDArray[np.float64]]:
        """Log-probabilities of the old policy; those of the new one are 0."""
        if self.objective in OFF_POLICY:
            return [-LOG_RATIOS[ids % len(LOG_RATIOS)] for ids in self.responses]
        return [np.zeros(len(ids)) for ids in self.responses]

    @cached_property
    def reference_log_probs(self) -> list[NDArray[np.float64]]:
        """Log-probabilities of the reference policy."""
        return [-DIVERGENCES[ids % len(DIVERGENCES)] for ids in self.responses]

    @cached_property
    def rollout_log_probs(self) -> list[NDArray[np.float64]]:
        """Log-probabilities of the rollout policy, which mark the tokens to reject or correct."""
        if self.objective in OF_ROLLOUT_RATIOS:
            return [
                old - ROLLOUT_LOG_RATIOS[ids % len(ROLLOUT_LOG_RATIOS)]
                for old, ids in zip(self.old_log_probs, self.responses, strict=True)
            ]
        pairs = zip(self.original_masks, self.masks, strict=True)
        return [np.where(before & ~after, REJECTED_LOG_PROB, 0.0) for before, after in pairs]

    @cached_property
    def returns(self) -> list[NDArray[np.float64]]:
        """Returns for a critic of values 0: its squared error has the policy loss's gradient."""
        return [advantages / 2 for advantages in self.raw_advantages]

    @cached_property
    def dloss_dlogprob(self) -> NDArray[np.float64]:
        """Flat derivatives of token losses, of the policy loss if several, by log-probability."""
        if self.objective in OFF_POLICY:
            return DERIVATIVES[self.objective](self.policy_tokens, CONSTANTS)
        if self.objective is Objective.KL:
            return KL_COEFFICIENT * self.divergence_derivatives
        raw_advantages = np.concatenate(self.raw_advantages)
        alone = {
            Objective.ENTROPY: -ENTROPY_COEFFICIENT,
            Objective.SFT: -1.0,
            # The framework's own advantages are what is observed.
            **dict.fromkeys(FROM_REWARDS, -1.0),
        }
        if self.objective in alone:
            return np.full(len(raw_advantages), alone[self.objective])
        return -raw_advantages

    @property
    def divergences(self) -> NDArray[np.float64]:
        """Flat estimates of the divergence from the reference policy."""
        return divergences.estimate(self._reference_log_ratios, self.kl_estimator)

    @property
    def divergence_derivatives(self) -> NDArray[np.float64]:
        """Their derivatives by each token's log-probability, flat."""
        return divergences.derivative(self._reference_log_ratios, self.kl_estimator)

    @property
    def _reference_log_ratios(self) -> NDArray[np.float64]:
        return -np.concatenate(self.reference_log_probs)

    def policy_tokens_of_step(self, step_index: int) -> PolicyTokens:
        """What policy losses depend on, for the tokens of one step."""
        tokens = self.policy_tokens
        columns = ((each.name, getattr(tokens, each.name)) for each in fields(tokens))
        return PolicyTokens(**{name: self.split(column)[step_index] for name, column in columns})

    @cached_property
    def policy_tokens(self) -> PolicyTokens:
        """What policy losses depend on, for the tokens of all steps, flat."""
        old = np.concatenate(self.old_log_probs)
        return PolicyTokens(
            advantages=np.concatenate(self.advantages),
            log_ratios=-old,
            rollout_log_ratios=old - np.concatenate(self.rollout_log_probs),
            mask=np.concatenate(self.masks),
            sequence=self.sample,
        )

    @property
    def rewards(self) -> NDArray[np.float64]:
        """The reward of each sample: its step's, or one for all samples of a rollout."""
        of_rollouts = REWARDS[self.trajectories % len(REWARDS)]
        ends = np.cumsum([step.size for step in self.steps])[:-1]
        pairs = zip(self.steps, np.split(of_rollouts, ends), strict=True)
        return np.concatenate([one if s.rewards is None else s.rewards for s, one in pairs])

    @property
    def values(self) -> list[NDArray[np.float64]]:
        """A critic's value of each token."""
        return [VALUES[ids % len(VALUES)] for ids in self.responses]

    @property
    def groups(self) -> NDArray[np.int64]:
        """The prompt group of each sample; those of two steps are two."""
        return self._numbered("groups")

    @property
    def trajectories(self) -> NDArray[np.int64]:
        """The rollout of each sample; those of two steps are two."""
        return self._numbered("rollouts")

    def _numbered(self, column: str) -> NDArray[np.int64]:
        of_steps = enumerate(getattr(step, column) for step in self.steps)
        named = [(index, name) for index, names in of_steps for name in names.tolist()]
        numbers: NDArray[np.int64] = np.unique(named, axis=0, return_inverse=True)[1]
        return numbers

    @cached_property
    def rollouts(self) -> Rollouts:
        """What advantages depend on, for the tokens of all steps, flat."""
        return Rollouts(
            rewards=self.rewards,
            groups=self.groups,
            sample=self.sample,
            mask=np.concatenate(self.masks),
            values=np.concatenate(self.values),
            divergences=-np.concatenate(self.reference_log_probs),
        )

    @property
    def sample(self) -> NDArray[np.int64]:
        """The index of each token's sample in the batch, flat."""
        lengths = [len(ids) for ids in self.responses]
        return np.repeat(np.arange(len(lengths)), lengths)

    @cached_property
    def probe_size(self) -> int:
        """Number of token ids, including padding."""
        return 1 + sum(len(ids) for ids, _ in self._sequences)

    def weights(self, gradient: NDArray[np.float32]) -> NDArray[np.float64]:
        """Token weights of all steps, flat, from the probe's gradient [probe_size].

        A token whose loss is clipped has no derivative to divide by: its weight is its own
        gradient, which should be 0.
        """
        ids = np.concatenate(self.responses)
        derivatives = np.where(self.dloss_dlogprob == 0, 1.0, self.dloss_dlogprob)
        return gradient[ids].astype(np.float64) / derivatives

    def weights_of_steps(
        self, gradients: Sequence[NDArray[np.float32] | None]
    ) -> tuple[NDArray[np.float64], ...]:
        """Each step's weights, given its gradient; those of a skipped step, with None, are 0.

        Raises:
            RuntimeError: there is not one entry for each step.
        """
        if len(gradients) != len(self.steps):
            raise RuntimeError(
                f"{len(gradients)} optimizer steps were made of {len(self.steps)}; if the trainer"
                " skips steps whose gradient is NaN or infinite, let the adapter read gradients by"
                " GradientReader.take after each step, and name Observation.skipped_steps"
            )
        return tuple(
            np.zeros(len(step.mask)) if one is None else self.split(self.weights(one))[index]
            for index, (step, one) in enumerate(zip(self.steps, gradients, strict=True))
        )

    def forward_passes(self, passes: Sequence[NDArray[np.int64]]) -> tuple[NDArray[np.int32], ...]:
        """For each step, the index of the forward pass in which a rank held each token, or -1.

        ``passes`` are the token ids of each forward pass of its model. A token is held where the
        token before it is, from which it is predicted.
        """
        pass_of_id = np.full(self.probe_size, -1, np.int32)
        # Backwards, so that a row repeated to fill up a batch counts where it came first.
        for index, ids in reversed([*enumerate(passes)]):
            pass_of_id[ids[ids < self.probe_size]] = index  # other ids are padding of the framework
        return self.split(pass_of_id[np.concatenate(self.responses) - 1])

    def rows(self, passes: Sequence[NDArray[np.int64]]) -> tuple[NDArray[np.int32], ...]:
        """For each step, how many rows of each forward pass hold one of its samples: [passes].

        ``passes`` are as in `forward_passes`; a row counts where its first token is held.
        """
        first_ids = np.array([ids[0] for ids, _ in self._sequences])
        of_steps = np.split(first_ids, np.cumsum([step.size for step in self.steps])[:-1])
        return tuple(
            np.array([np.isin(ids, starts).sum() for ids in passes], np.int32)
            for starts in of_steps
        )

    def split(self, values: NDArray[_Number]) -> tuple[NDArray[_Number], ...]:
        """Cut a flat array over all steps into one per step."""
        ends = np.cumsum([len(step.mask) for step in self.steps])
        return tuple(np.split(values, ends[:-1]))

    @cached_property
    def _sequences(self) -> Sequence[tuple[NDArray[np.int64], int]]:
        prompt_lengths = np.concatenate([step.prompt_lengths for step in self.steps])
        lengths = prompt_lengths + np.concatenate([step.response_lengths for step in self.steps])
        starts = 1 + np.concatenate([[0], np.cumsum(lengths)[:-1]])
        of_samples = zip(starts, lengths, prompt_lengths, strict=True)
        return [
            (np.arange(start, start + length), int(prompt)) for start, length, prompt in of_samples
        ]
