"""A batch as rows, which are easy to change, and back to steps.

Each token and sample is named, so that its values follow it into the changed step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from adapters.contract.batch.probed_batch import ProbedBatch
from reference.step import Step

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True, eq=False)
class Row:
    """A sample: the names of its response tokens, [T], with their masks, and its own name."""

    name: int
    prompt_length: int
    group: int
    rollout: int
    reward: float
    tokens: NDArray[np.int64]
    mask: NDArray[np.bool_]
    original_mask: NDArray[np.bool_]


def rows_of(steps: Sequence[Step]) -> list[list[Row]]:
    """The rows of each step, named as the values of an unchanged batch follow them."""
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
                mask=step.mask[response],
                original_mask=step.mask_before_rejection[response],
            )
            for index, response in enumerate(step.responses)
        ]
        for step in steps
    ]


def step_of(rows: Sequence[Row], *, is_rejecting: bool) -> Step:
    """The step that has these rows."""
    original = np.concatenate([row.original_mask for row in rows])
    return Step(
        prompt_lengths=np.array([row.prompt_length for row in rows], np.int64),
        response_lengths=np.array([len(row.tokens) for row in rows], np.int64),
        mask=np.concatenate([row.mask for row in rows]),
        original_mask=original if is_rejecting else None,
        groups=np.array([row.group for row in rows], np.int64),
        rollouts=np.array([row.rollout for row in rows], np.int64),
        rewards=np.array([row.reward for row in rows]),
        token_names=np.concatenate([row.tokens for row in rows]),
        sample_names=np.array([row.name for row in rows], np.int64),
    )
