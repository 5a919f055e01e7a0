"""Distinguishes a trainer that did not train on its step as given from one that counts wrong."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Self

import numpy as np

from adapters.contract.batch.probed_batch import ProbedBatch
from conformance.judging.weights import final_weights, step_context
from conformance.own_trainer.estimators import ESTIMATORS, estimated
from conformance.own_trainer.model import SCALE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from adapters.contract import Description, Job, Observation

    Array = NDArray[np.float64]

SAME = 1e-3
"""The largest relative difference of numbers that count as equal here."""

ROUGH = 1e-2
"""The bound for clipped norms, and for advantages that a trainer computes with an ε of its own."""

CLIPPING_EPSILON = 1e-6
"""The number that torch adds to a norm before it divides by it."""

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


ESTIMATED = (
    "the trainer changes advantages: gradients have those of {estimator}; give it step.rewards, and"
    " say loss_conformance(advantages={estimator!r}), or turn off what centres or normalises them"
)
SCALED = (
    "the trainer changes advantages: it divides them by the standard deviation of each prompt's;"
    " turn that off, as no estimator of loss_conformance(advantages=…) scales without centring"
)
CLIPPED = (
    "gradients are clipped to a norm of {bound:.2g}, and those of the step's model are far smaller"
    " than a policy's; set the trainer's max_grad_norm to 1 or so for the test"
)
OTHER_ESTIMATOR = (
    "gradients have the advantages of {found}, and {stated} is stated; say"
    " loss_conformance(advantages={found!r}), or fix the trainer"
)


def misuse(
    job: Job,
    observations: Sequence[Observation],
    description: Description,
    estimator: str | None = None,
) -> str | None:
    """The change to make if gradients show that a step was not trained as given; else None.

    ``estimator`` is given if the trainer computes its advantages itself.
    """
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
    groups = job.steps[0].groups
    estimates = _OfSamples.of(weights, expected, advantages, batch.sample, groups)
    if estimator is not None:
        return next(estimates.other_than(estimator), None)
    several = (
        estimates.changes(),
        _other_advantages(weights, expected, advantages, batch.sample),
    )
    return next(chain(*several), None)


def clipped(
    ran: Iterable[tuple[Job, Sequence[Observation]]], description: Description
) -> str | None:
    """The change to make if the gradients of steps of different norms are clipped to one norm.

    The gradients of the stand-in model are so small that few clipping bounds affect them.
    """
    norms, left, bounds = [], [0.0], []
    for job, observations in ran:
        [weights, *_] = final_weights(observations, 0, job, description.conventions)
        expected = step_context(job, 0, observations, description).expected
        advantages = np.concatenate(ProbedBatch.of(job, description.conventions).raw_advantages)
        ratios = weights[expected > 0] / expected[expected > 0]
        norm = float(np.linalg.norm(expected * advantages)) * SCALE + CLIPPING_EPSILON
        if not len(ratios) or not 0 < ratios[0] < 1 + SAME or np.ptp(ratios) > SAME * ratios[0]:
            return None
        if ratios[0] > 1 - SAME:
            left.append(norm)
        else:
            norms.append(norm)
            bounds.append(float(ratios[0]) * norm)
    is_one = bool(bounds) and np.ptp(bounds) <= ROUGH * bounds[0] < np.ptp(norms)
    is_bound = is_one and max(left) <= bounds[0] * (1 + ROUGH)
    return CLIPPED.format(bound=bounds[0]) if is_bound else None


@dataclass(frozen=True, kw_only=True, eq=False)
class _OfSamples:
    """The advantages that samples were given and trained with, [samples] each.

    ``is_whole`` says whether all tokens of each sample were trained with one advantage.
    """

    given: Array
    trained: Array
    groups: NDArray[np.int64]
    names: NDArray[np.int64]
    is_whole: bool

    @classmethod
    def of(
        cls,
        weights: Array,
        expected: Array,
        advantages: Array,
        sample: NDArray[np.int64],
        groups: NDArray[np.int64],
    ) -> Self:
        """Compare the active tokens of a step: all arrays are [tokens]."""
        active = expected > 0
        given, of_active = advantages[active], sample[active]
        trained = weights[active] * given / expected[active]
        names, first = np.unique(of_active, return_index=True)
        rewards = advantages[np.unique(sample, return_index=True)[1]]
        is_whole = np.allclose(
            trained[first][np.searchsorted(names, of_active)], trained, rtol=SAME
        )
        return cls(
            given=rewards,
            trained=trained[first],
            groups=groups,
            names=names,
            is_whole=is_whole and bool((rewards[of_active] == given).all()),
        )

    def changes(self) -> Iterator[str]:
        """Yield the changes that the trainer made to given advantages, up to a common factor."""
        if not self.is_whole:
            return
        for name in ESTIMATORS:
            if self._are_alike(self._made(name)):
                yield ESTIMATED.format(estimator=name)
        centred, normalised = self._made("group_centred"), self._made("group_normalised")
        scales = np.divide(normalised, centred, out=np.ones(len(centred)), where=centred != 0)
        if np.ptp(scales) > SAME and self._are_alike(self.given[self.names] * scales):
            yield SCALED

    def other_than(self, stated: str) -> Iterator[str]:
        """Yield the estimator of the trainer's advantages if it is not the stated one."""
        trained = self.trained / self.given[self.names] * self._made(stated)
        for name in ESTIMATORS:
            made = self._made(name)
            is_close = np.allclose(trained, made, rtol=ROUGH)
            if is_close and not np.allclose(made, self._made(stated), rtol=ROUGH):
                yield OTHER_ESTIMATOR.format(found=name, stated=stated)

    def _made(self, estimator: str) -> Array:
        return estimated(estimator, self.given, self.groups)[self.names]

    def _are_alike(self, made: Array) -> bool:
        """Whether the trained advantages are the ``made`` ones times one positive number."""
        ratios = self.trained / np.where(made, made, np.inf)
        return bool(ratios[0] > 0 and np.ptp(ratios) <= ROUGH * ratios[0])


def _other_advantages(
    weights: Array, expected: Array, advantages: Array, sample: NDArray[np.int64]
) -> Iterator[str]:
    """Yield the change to make if gradients are those of other advantages; arrays are [tokens].

    A wrong count neither changes the sign of a gradient nor adds anything to advantages.
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
    """A sample trained with another's advantage, and the other sample; None if there is none.

    This needs advantages that are equal for all tokens of a sample.
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
