"""Plain facts of a step and of how it was cut that a mistake may depend on.

Each is a phrase that a cause's statement can end with.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from conformance.causes.conditions import EMPTY_SAMPLE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from conformance.diagnosis.placement import TokenPlacement
    from conformance.diagnosis.step_context import StepContext
    from reference.step import Step


def of_context(context: StepContext) -> Iterator[str]:
    """Yield what is true of a step and of how it was cut."""
    yield from of_step(context.step)
    if len(context.steps) > 1:
        yield "where a batch has several optimizer steps"
    if context.step_index:
        yield "after the first optimizer step of a batch"
    if context.filled_rows is not None:
        yield "where rows are repeated to fill up a batch"
    if context.placement is not None:
        yield from _of_cut(context, context.placement)


def of_step(step: Step) -> Iterator[str]:
    """Yield what is true of a step, however it was cut."""
    active = step.active_tokens
    _, sizes = np.unique(step.groups, return_counts=True)
    facts = {
        EMPTY_SAMPLE: (active == 0).any(),
        "where no token is active": not active.any(),
        "where a sample has masked tokens": (active < step.response_lengths).any(),
        "where samples differ in length": len(set(active)) > 1,
        "where prompt groups differ in size": len(set(sizes)) > 1,
        "where a prompt group has several samples": (sizes > 1).any(),
        "where there are several prompt groups": len(sizes) > 1,
        "where a rollout has several samples": len(set(step.rollouts)) < step.size,
        "where tokens are rejected": step.original_mask is not None,
        "where no token is rejected": step.original_mask is None,
    }
    yield from (fact for fact, holds in facts.items() if holds)


def _of_cut(context: StepContext, placement: TokenPlacement) -> Iterator[str]:
    mask, group = context.step.mask, context.step.groups[context.sample]
    facts = {
        "where data-parallel ranks differ in active tokens": _differ(mask, placement.dp_rank),
        "where micro-batches differ in active tokens": _differ(mask, placement.micro_batch_number),
        "where data-parallel ranks differ in micro-batches": _several(placement.micro_batches),
        "where a prompt group is on several data-parallel ranks": _split(group, placement.dp_rank),
        "where a prompt group is in several micro-batches": _split(
            group, placement.micro_batch_number
        ),
    }
    yield from (fact for fact, holds in facts.items() if holds)


def _several(values: NDArray[np.int64]) -> bool:
    return len(np.unique(values)) > 1


def _differ(mask: NDArray[np.bool_], part: NDArray[np.int64]) -> bool:
    """Whether parts hold different numbers of active tokens."""
    return _several(np.bincount(part, weights=mask).astype(np.int64))


def _split(whole: NDArray[np.int64], part: NDArray[np.int64]) -> bool:
    """Whether something whole has tokens in several parts."""
    pairs = whole * (part.max() + 1) + part
    return len(np.unique(pairs)) > len(np.unique(whole))
