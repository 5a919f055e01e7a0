"""The probe: an all-zero parameter with one entry per token, whose gradient is the token weights.

An adapter adds ``probe[token id]`` to the log-probability of each token, hands the framework the
advantages below, and lets it train. With the ratio of new to old policy exactly 1, the gradient of
an entry is -weight · advantage, and as every advantage is a signed power of two, dividing by it
rounds nothing.

Tokens are numbered through, so that a token is known wherever slicing, packing or padding took it:
the sequences of a batch follow one another, and number 0 is left for padding. Token t of a response
therefore has the number after its predecessor's, from which it is predicted.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from reference.step import Step

PADDING_ID = 0

ADVANTAGES = np.array([1.0, -0.5, 2.0, -1.0, 0.5, -2.0, -4.0])
"""Cycled over the tokens of a batch: every sample meets several signs and sizes, masked or not."""


@dataclass(frozen=True, eq=False)
class ProbedBatch:
    """The sequences of one batch of rollouts, with the token ids and advantages of the probe."""

    steps: tuple[Step, ...]

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
        """Loss mask of each sample."""
        return [step.mask[response] for step in self.steps for response in step.responses]

    @cached_property
    def advantages(self) -> list[NDArray[np.float64]]:
        """Advantage of each response token, never 0: a framework must mask by the mask alone."""
        return [ADVANTAGES[ids % len(ADVANTAGES)] for ids in self.responses]

    @cached_property
    def probe_size(self) -> int:
        """One entry per token id, padding included."""
        return 1 + sum(len(ids) for ids, _ in self._sequences)

    def weights(self, gradient: NDArray[np.float32]) -> NDArray[np.float64]:
        """Token weights of all steps, flat, from the probe's gradient [probe_size].

        The gradient is of a loss that is minimised, hence the sign.
        """
        ids = np.concatenate(self.responses)
        return gradient[ids].astype(np.float64) / -np.concatenate(self.advantages)

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
            self.split(self.weights(gradient))[number] for number, gradient in enumerate(gradients)
        )

    def split(self, weights: NDArray[np.float64]) -> tuple[NDArray[np.float64], ...]:
        """Cut a flat array over all steps into one per step."""
        ends = np.cumsum([len(step.mask) for step in self.steps])
        return tuple(np.split(weights, ends[:-1]))

    @cached_property
    def _sequences(self) -> Sequence[tuple[NDArray[np.int64], int]]:
        prompt_lengths = np.concatenate([step.prompt_lengths for step in self.steps])
        lengths = prompt_lengths + np.concatenate([step.response_lengths for step in self.steps])
        starts = 1 + np.concatenate([[0], np.cumsum(lengths)[:-1]])
        return [
            (np.arange(start, start + length), int(prompt_length))
            for start, length, prompt_length in zip(starts, lengths, prompt_lengths, strict=True)
        ]
