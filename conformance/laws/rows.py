"""Converts the steps of a batch to rows, which are easy to change, and back to steps.

Each token and sample has a name, by which its values follow it into the changed step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from adapters.contract.batch.probed_batch import ProbedBatch
from reference.step import Sample, Step

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True, eq=False)
class Row(Sample):
    """A sample, its name, and the names of its response tokens: [T]."""

    name: int
    tokens: NDArray[np.int64]
    loss_mask: NDArray[np.bool_]
    original_mask: NDArray[np.bool_]
    rollout: int
    reward: float


def rows_of(steps: Sequence[Step]) -> list[list[Row]]:
    """The rows of each step, with the names by which an unchanged batch gets its values."""
    batch = ProbedBatch(tuple(steps))
    names, samples, rewards = iter(batch.names), iter(batch.sample_names), iter(batch.rewards)
    return [
        [
            Row(
                name=int(next(samples)),
                prompt_length=int(step.prompt_lengths[index]),
                group=int(step.groups[index]),
                rollout=int(step.rollouts[index]),
                reward=float(next(rewards)),
                tokens=next(names),
                loss_mask=step.mask[response],
                original_mask=step.mask_before_rejection[response],
            )
            for index, response in enumerate(step.responses)
        ]
        for step in steps
    ]


def step_of(rows: Sequence[Row], *, is_rejecting: bool) -> Step:
    """The step that consists of the given rows."""
    step = Step.of(rows)
    return replace(
        step,
        original_mask=step.original_mask if is_rejecting else None,
        token_names=np.concatenate([row.tokens for row in rows]),
        sample_names=np.array([row.name for row in rows], np.int64),
    )
