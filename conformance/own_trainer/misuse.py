"""Tells a trainer that trained on something else than its step from one that counts wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from adapters.contract.batch.probed_batch import ProbedBatch
from conformance.judging.weights import final_weights, step_context

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from adapters.contract import Description, Job, Observation

    Array = NDArray[np.float64]

SAME = 1e-3
"""The largest relative difference of numbers that count as equal here."""

NOT_HELD = (
    "{lost} of {total} active tokens are in no forward pass: step.samples are already those of one"
    " rank; turn the trainer's distributed sampler off, or give it step.batch"
)
IGNORED = (
    "the gradients do not depend on the advantages: all have the sign of {sign:+g}; let the trainer"
    " train on step.advantages(per=…)"
)
REORDERED = (
    "sample {sample} was trained with the advantage of sample {donor}; turn the trainer's shuffling"
    " off, or shuffle advantages together with samples"
)
CHANGED = (
    "the trainer changes advantages: it trained on {scale:.4g} · advantage {shift:+.4g}; turn off"
    " what centres or normalises them"
)


def misuse(job: Job, observations: Sequence[Observation], description: Description) -> str | None:
    """What to change if a step was not trained as it was given; None if it may have been."""
    held = np.any([one.forward_passes[0] >= 0 for one in observations], axis=0)
    active = job.steps[0].mask
    if not held[active].all():
        lost = int((active & ~held).sum())
        return NOT_HELD.format(lost=lost, total=int(active.sum()))
    [weights, *_] = final_weights(observations, 0, job, description.conventions)
    batch = ProbedBatch.of(job, description.conventions)
    expected = step_context(job, 0, observations, description).expected
    advantages = np.concatenate(batch.raw_advantages)
    if not weights[active].any() or not np.isfinite(weights).all():
        return None
    return next(_other_advantages(weights, expected, advantages, batch.sample), None)


def _other_advantages(
    weights: Array, expected: Array, advantages: Array, sample: NDArray[np.int64]
) -> Iterator[str]:
    """Yield what to change where gradients are those of other advantages: [tokens] each.

    A wrong count leaves the sign of every gradient, and adds nothing to advantages.
    """
    active = expected > 0
    gradients = (weights * advantages)[active]
    given, trained = advantages[active], gradients / expected[active]
    columns = np.stack([given, np.ones_like(given)], axis=1)
    (scale, shift), *_ = np.linalg.lstsq(columns, trained)
    is_affine = np.allclose(columns @ [scale, shift], trained, rtol=SAME, atol=SAME)
    if is_affine and scale > SAME and abs(shift) > SAME:
        yield CHANGED.format(scale=scale, shift=shift)
    if (np.sign(gradients) == np.sign(given)).all():
        return
    if len(np.unique(np.sign(gradients))) == 1:
        yield IGNORED.format(sign=np.sign(gradients[0]))
    if (others := _donors(trained, given, sample[active])) is not None:
        yield REORDERED.format(sample=others[0], donor=others[1])


def _donors(trained: Array, given: Array, sample: NDArray[np.int64]) -> tuple[int, int] | None:
    """A sample that was trained with the advantage of another, and that one; None without any.

    Only advantages of whole samples can be told apart.
    """
    first = np.unique(sample, return_index=True)[1]
    names, was, had = sample[first], trained[first], given[first]
    of_samples = np.searchsorted(names, sample)
    is_whole = np.allclose(was[of_samples], trained, rtol=SAME)
    is_whole &= bool((had[of_samples] == given).all())
    if not is_whole or not np.allclose(np.sort(was), np.sort(had), rtol=SAME):
        return None
    moved = int(np.flatnonzero(~np.isclose(was, had, rtol=SAME))[0])
    donors = np.flatnonzero(np.isclose(had, was[moved], rtol=SAME))
    return int(names[moved]), int(names[donors[0]])
