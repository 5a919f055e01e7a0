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
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from reference.step import Step

_Number = TypeVar("_Number", bound=np.generic)

PADDING_ID = 0

ADVANTAGES = np.array([1.0, -0.5, 2.0, -1.0, 0.5, -2.0, -4.0])
"""Cycled over the tokens of a batch: every sample meets several signs and sizes, masked or not."""


class ForwardPasses:
    """The token ids that a rank's model was given, forward pass by forward pass."""

    def __init__(self) -> None:
        self._passes: list[NDArray[np.int64]] = []

    def note(self, ids: torch.Tensor) -> None:
        """Called by the model that an adapter hands to its framework; only training counts."""
        if torch.is_grad_enabled():
            self._passes.append(ids.detach().cpu().numpy().reshape(-1))

    def take(self) -> list[NDArray[np.int64]]:
        """What was noted since last asked."""
        passes = self._passes.copy()
        self._passes.clear()
        return passes


FORWARD_PASSES = ForwardPasses()
"""Of this process, which trains one job at a time."""


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

    def forward_passes(self, passes: Sequence[NDArray[np.int64]]) -> tuple[NDArray[np.int32], ...]:
        """For each step, in which forward pass a rank held each response token, -1 where in none.

        ``passes`` are the token ids that its model was given, one after another; a token is where
        its predecessor is, from which it is predicted.
        """
        pass_of_id = np.full(self.probe_size, -1, np.int32)
        # Backwards, as a row that a framework repeats to fill up a batch is where it was first.
        for number, ids in reversed([*enumerate(passes)]):
            pass_of_id[ids[ids < self.probe_size]] = number  # others are of a framework's padding
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
