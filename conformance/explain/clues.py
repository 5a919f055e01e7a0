"""What all ranks and steps of one job say about the known mistakes."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from adapters.contract.objective import Metric
from conformance.explain.catalogue.mistake import MISTAKES, Kind
from conformance.explain.catalogue.predictions import predictions
from conformance.explain.consistent import consistent, without_factors
from conformance.explain.diagnosis import read_off
from conformance.explain.evidence import Evidence
from conformance.explain.step_conditions import of_context, of_step
from conformance.findings.cause import Clues

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from adapters.contract import Job
    from conformance.explain.consistent import Consistent, Showing


ALL_LOST = ("tokens_lost", "samples_lost")
"""What may be the matter where all numbers are 0, besides what gives 0 wherever it is."""

INACTIVE = "inactive_tokens_weigh"
"""The mistake that is read off tokens which no other mistake is about."""

LARGEST = 2**20
"""Tokens of the largest step that is held against all known mistakes."""


def clues(showings: Sequence[Showing]) -> Clues:
    """What a job says, given what each rank showed of each step.

    Of several that are wrong the first is explained, and the others rule out explanations. A step
    of more than `LARGEST` tokens, which takes a minute, says nothing.
    """
    if len(showings[0].context.step.mask) > LARGEST:
        return Clues(terms=[str(term.metric) for term in showings[0].terms])
    held = [consistent(one) for one in _distinct(showings)]
    wrong = [one for one in held if not one.is_right]
    right = [one for one in held if one.is_right]
    excluded = {name for one in right for name in one.visible}
    facts = [of_context(one.showing.context) for one in (wrong[:1] or right)]
    explanations: list[list[list[str]]] = []
    if wrong:
        first, *others = wrong
        ruled_out = excluded.union(*(one.contradicted for one in others))
        inferred = _of_some_ranks(first) if _is_contradicted(first, right) else _inferred(first)
        left = [*_without(first.explanations, ruled_out), *inferred]
        if _is_of_skipped_step(first.showing):
            left = [[_of_term(first, ["step_skipped"])]]
        explanations = [[sorted(part) for part in parts] for parts in left]
        excluded |= replace(first, explanations=left).contradicted
    return Clues(
        terms=held[0].terms,
        explanations=explanations,
        excluded=sorted(excluded),
        conditions=[*dict.fromkeys(chain.from_iterable(facts))],
    )


def clues_of_failure(job: Job) -> Clues:
    """What is known of a job that was not trained."""
    facts = chain.from_iterable(map(of_step, job.steps))
    return Clues(terms=[str(Metric.POLICY_LOSS)], conditions=[*dict.fromkeys(facts)])


def _distinct(showings: Sequence[Showing]) -> Iterator[Showing]:
    """Yield what ranks showed once where they showed the same."""
    seen = set()
    for one in showings:
        key = one.context.step_index, one.observed.tobytes()
        if key not in seen:
            seen.add(key)
            yield one


def _without(
    explanations: Sequence[Sequence[frozenset[str]]], ruled_out: set[str]
) -> Iterator[list[frozenset[str]]]:
    for parts in explanations:
        left = [part - ruled_out for part in parts]
        if all(left):
            yield left


def _is_contradicted(wrong: Consistent, right: Sequence[Consistent]) -> bool:
    """Whether a rank logs 0 for a step of which another logs the right number."""
    steps = [one.showing.context.step_index for one in right]
    nothing = not (wrong.showing.is_per_token or wrong.showing.observed.any())
    return nothing and wrong.showing.context.step_index in steps


def _is_of_skipped_step(wrong: Showing) -> bool:
    """Whether a step has no gradient, or a loss that is not finite, because it was skipped."""
    return wrong.context.is_skipped and (
        wrong.is_per_token or not np.isfinite(wrong.observed).all()
    )


def _of_some_ranks(wrong: Consistent) -> Iterator[list[frozenset[str]]]:
    """Yield the mistake of ranks that have nothing to log and log it all the same."""
    yield [_of_term(wrong, ["nothing_reported_by_some_ranks"])]


def _inferred(wrong: Consistent) -> Iterator[list[frozenset[str]]]:
    """Yield the mistakes that a single term's numbers show of themselves."""
    if len(wrong.terms) > 1:
        return
    names = [name for name in _read_off(wrong.showing) if MISTAKES[name].is_read_off]
    if not wrong.showing.observed.any():
        names += ALL_LOST
    if INACTIVE in names:
        yield from _inactive_tokens_besides(wrong)
    elif names:
        yield [_of_term(wrong, names)]
    elif not wrong.explanations and wrong.showing.is_per_token:
        yield from _counted_besides(wrong)


def _inactive_tokens_besides(wrong: Consistent) -> Iterator[list[frozenset[str]]]:
    """Yield that inactive tokens weigh, with what explains the active ones if they are wrong."""
    showing = wrong.showing
    of_active = np.where(showing.context.expected > 0, showing.observed, 0.0)
    active = consistent(replace(showing, observed=of_active))
    for parts in active.explanations or [[]]:
        yield [_of_term(wrong, [INACTIVE]), *parts]


def _counted_besides(wrong: Consistent) -> Iterator[list[frozenset[str]]]:
    """Yield a wrong count with each known mistake that it may come on top of."""
    showing, expected = wrong.showing, wrong.showing.context.expected
    for mistake in predictions(showing.context):
        if not mistake.together and np.array_equal(mistake.weights > 0, expected > 0):
            rest = np.divide(expected, mistake.weights, where=expected > 0, out=expected.copy())
            read_off = _read_off(replace(showing, observed=showing.observed * rest))
            names = [name for name in read_off if MISTAKES[name].kind is Kind.COUNT]
            others = without_factors(one.name for one in mistake.mistakes)
            if names and others:
                yield [_of_term(wrong, names), _of_term(wrong, others)]


def _of_term(wrong: Consistent, names: Iterable[str]) -> frozenset[str]:
    return frozenset(f"{wrong.terms[0]}/{name}" for name in names)


def _read_off(showing: Showing) -> list[str]:
    if showing.is_per_token:
        [term] = showing.terms
        return read_off(
            Evidence.of_term(term, showing.observed, showing.tolerance, elsewhere=False)
        )
    return [] if np.isfinite(showing.observed).all() else ["not_finite"]
