"""The probe: an all-zero parameter with one entry per token, whose gradient is the token weights.

An adapter adds ``probe[token id]`` to the log-probability of each token, hands the framework the
advantages below, and lets it train. With the ratio of new to old policy exactly 1, the gradient of
an entry is -weight · advantage, and as every advantage is a signed power of two, dividing by it
rounds nothing. The same entry is added to the token's entropy, which has a coefficient of 0 unless
a job's objective has that term.

Tokens are numbered through, so that a token is known wherever slicing, packing or padding took it:
the sequences of a batch follow one another, and number 0 is left for padding. Token t of a response
therefore has the number after its predecessor's, from which it is predicted.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from adapters.contract.objective import ENTROPY_COEFFICIENT, KL_COEFFICIENT, Objective

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from reference.step import Step


_Number = TypeVar("_Number", bound=np.generic)


PADDING_ID = 0


ADVANTAGES = np.array([1.0, -0.5, 2.0, -1.0, 0.5, -2.0, -4.0])
"""Cycled over the tokens of a batch: every sample meets several signs and sizes, masked or not."""


LOG_RATIOS = np.array([0.0, 0.5, -0.5, 0.0, 0.25])
"""Of new to old policy, cycled likewise where they are not 0: with advantages of either sign, some
tokens are clipped."""


ENTROPIES = np.array([0.5, 2.0, 1.0, 0.25])


DIVERGENCES = np.array([1.0, 0.25, 0.5, 2.0, 4.0, 0.125])
"""Of the policy, and between it and the reference policy, cycled likewise. They are not 0 anywhere:
what is logged of them must be masked by the mask alone."""


REJECTED_LOG_PROB = -4.0
"""Of the rollout policy for a token that is to be rejected, where that of all others is 0: the
ratio is then e^4."""


@dataclass(frozen=True, eq=False)
class ProbedBatch:
    """The sequences of one batch of rollouts, and what an objective says of their tokens.

    Everything given by sample has one entry per response token.
    """

    steps: tuple[Step, ...]
    objective: Objective = Objective.POLICY

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
        """Loss mask of each sample, after rejection."""
        return [step.mask[response] for step in self.steps for response in step.responses]

    @cached_property
    def original_masks(self) -> list[NDArray[np.bool_]]:
        """Loss mask of each sample, before rejection: what a framework is given."""
        return [
            step.mask_before_rejection[response]
            for step in self.steps
            for response in step.responses
        ]

    @cached_property
    def advantages(self) -> list[NDArray[np.float64]]:
        """What a framework is given: 0 where the policy loss is to stay out of the gradient."""
        if self.objective in (Objective.ENTROPY, Objective.KL):
            return [np.zeros(len(ids)) for ids in self.responses]
        return self.raw_advantages

    @cached_property
    def raw_advantages(self) -> list[NDArray[np.float64]]:
        """An advantage for each response token, never 0: a framework must mask by the mask alone.

        Where ratios are of whole sequences, it is one for each.
        """
        if self.objective is Objective.GSPO:
            of_sample = ADVANTAGES[np.arange(len(self.responses)) % len(ADVANTAGES)]
            return [
                np.full(len(ids), advantage)
                for ids, advantage in zip(self.responses, of_sample, strict=True)
            ]
        return [ADVANTAGES[ids % len(ADVANTAGES)] for ids in self.responses]

    @cached_property
    def old_log_probs(self) -> list[NDArray[np.float64]]:
        """Of the policy before the step; the new one's are 0."""
        if self.objective is Objective.OFF_POLICY:
            return [-LOG_RATIOS[ids % len(LOG_RATIOS)] for ids in self.responses]
        return [np.zeros(len(ids)) for ids in self.responses]

    @cached_property
    def reference_log_probs(self) -> list[NDArray[np.float64]]:
        """Of the reference policy."""
        return [-DIVERGENCES[ids % len(DIVERGENCES)] for ids in self.responses]

    @cached_property
    def rollout_log_probs(self) -> list[NDArray[np.float64]]:
        """Of the policy that made the rollouts, which tells the tokens that are to be rejected."""
        pairs = zip(self.original_masks, self.masks, strict=True)
        return [np.where(before & ~after, REJECTED_LOG_PROB, 0.0) for before, after in pairs]

    @cached_property
    def returns(self) -> list[NDArray[np.float64]]:
        """What a critic whose values are 0 is to predict, half of `raw_advantages`.

        The squared error then has the gradient of the policy loss.
        """
        return [advantages / 2 for advantages in self.raw_advantages]

    @cached_property
    def dloss_dlogprob(self) -> NDArray[np.float64]:
        """Derivative of the reduced quantity, with its coefficient, by each token's probe: flat.

        Where an objective has several terms, it is the policy loss's.
        """
        raw_advantages = np.concatenate(self.raw_advantages)
        alone = {
            Objective.ENTROPY: -ENTROPY_COEFFICIENT,
            Objective.KL: KL_COEFFICIENT,
            Objective.SFT: -1.0,
        }
        if self.objective in alone:
            return np.full(len(raw_advantages), alone[self.objective])
        return -raw_advantages

    @cached_property
    def probe_size(self) -> int:
        """One entry per token id, padding included."""
        return 1 + sum(len(ids) for ids, _ in self._sequences)

    def weights(self, gradient: NDArray[np.float32]) -> NDArray[np.float64]:
        """Token weights of all steps, flat, from the probe's gradient [probe_size]."""
        ids = np.concatenate(self.responses)
        return gradient[ids].astype(np.float64) / self.dloss_dlogprob

    def weights_of_steps(
        self, gradients: Sequence[NDArray[np.float32]]
    ) -> tuple[NDArray[np.float64], ...]:
        """Each step's weights, from the probe's gradients at one optimizer step after another.

        Raises:
            RuntimeError: the framework made another number of optimizer steps.
        """
        if len(gradients) != len(self.steps):
            raise RuntimeError(f"{len(gradients)} optimizer steps were made of {len(self.steps)}")
        return tuple(
            self.split(self.weights(gradient))[step_index]
            for step_index, gradient in enumerate(gradients)
        )

    def forward_passes(self, passes: Sequence[NDArray[np.int64]]) -> tuple[NDArray[np.int32], ...]:
        """For each step, in which forward pass a rank held each response token, -1 where in none.

        ``passes`` are the token ids that its model was given, one after another; a token is where
        its predecessor is, from which it is predicted.
        """
        pass_of_id = np.full(self.probe_size, -1, np.int32)
        # Backwards, as a row that a framework repeats to fill up a batch is where it was first.
        for index, ids in reversed([*enumerate(passes)]):
            pass_of_id[ids[ids < self.probe_size]] = index  # others are of a framework's padding
        return self.split(pass_of_id[np.concatenate(self.responses) - 1])

    def split(self, values: NDArray[_Number]) -> tuple[NDArray[_Number], ...]:
        """Cut a flat array over all steps into one per step."""
        ends = np.cumsum([len(step.mask) for step in self.steps])
        return tuple(np.split(values, ends[:-1]))

    @cached_property
    def _sequences(self) -> Sequence[tuple[NDArray[np.int64], int]]:
        prompt_lengths = np.concatenate([step.prompt_lengths for step in self.steps])
        lengths = prompt_lengths + np.concatenate([step.response_lengths for step in self.steps])
        starts = 1 + np.concatenate([[0], np.cumsum(lengths)[:-1]])
        return [
            (np.arange(start, start + length), int(prompt_length))
            for start, length, prompt_length in zip(starts, lengths, prompt_lengths, strict=True)
        ]
