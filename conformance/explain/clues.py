"""The evidence for and against known mistakes, from all ranks and steps of one job."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from adapters.contract.objective import Metric
from conformance.explain.catalogue.missing_tokens import of_untrained
from conformance.explain.catalogue.mistake import INACTIVE, MISTAKES
from conformance.explain.conditions.facts import of_context, of_steps
from conformance.explain.diagnosis import read_off
from conformance.explain.engine import Explained
from conformance.findings.cause import Clues, TermMistake

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from adapters.contract import Job
    from conformance.explain.engine import Names


ALL_LOST = ("tokens_lost", "samples_lost")
"""Mistakes that also explain a step whose numbers are all 0."""

LARGEST = 2**20
"""The most tokens of a step that is compared with all known mistakes."""


def clues(of_ranks: Sequence[Explained]) -> Clues:
    """The clues of a job, given each rank's observation of each step.

    The first wrong observation is explained, and all others rule out explanations. A step with more
    than `LARGEST` tokens gives no clues, as it would take a minute.
    """
    if len(of_ranks[0].measurement.context.step.mask) > LARGEST:
        return Clues(terms=of_ranks[0].terms)
    explained = [*_distinct(of_ranks)]
    wrong = [one for one in explained if not one.is_right]
    right = [one for one in explained if one.is_right]
    excluded = {name for one in right for name in one.visible}
    facts = [of_context(one.measurement.context) for one in (wrong[:1] or right)]
    left: list[list[Names]] = []
    if wrong:
        first, *others = wrong
        ruled_out = excluded.union(*(one.contradicted for one in others))
        left = [*_without(first.explanations, ruled_out), *_read_off_by(first, right)]
        seen = first.measurement
        is_finite = np.isfinite(seen.observed).all()
        if seen.context.is_skipped and (seen.is_per_token or not is_finite):
            left = [[_of_term(first, ["step_skipped"])]]
        elif is_finite and (dropped := of_untrained(seen.context)):
            left = [[_of_term(first, [dropped.name])]]
        excluded |= first.contradicted_by(left)
    return Clues(
        terms=explained[0].terms,
        explanations=[[sorted(names) for names in parts] for parts in left],
        excluded=sorted(excluded),
        conditions=[*dict.fromkeys(chain.from_iterable(facts))],
    )


def clues_of_failure(job: Job) -> Clues:
    """The clues of a job that was not trained: only the facts of its steps."""
    facts = of_steps(tuple(job.steps), job.layout)
    return Clues(terms=[str(Metric.POLICY_LOSS)], conditions=[*facts])


def _distinct(of_ranks: Sequence[Explained]) -> Iterator[Explained]:
    """Yield the observations, but only one of equal observations of a step."""
    seen = set()
    for one in of_ranks:
        key = one.measurement.context.step_index, one.measurement.observed.tobytes()
        if key not in seen:
            seen.add(key)
            yield one


def _without(
    explanations: Iterable[Sequence[Names]], ruled_out: set[TermMistake]
) -> Iterator[list[Names]]:
    for parts in explanations:
        left = [names - ruled_out for names in parts]
        if all(left):
            yield left


def _read_off_by(wrong: Explained, right: Sequence[Explained]) -> Iterator[list[Names]]:
    """Yield the mistakes that have no prediction, but show in the numbers of a single term."""
    measurement = wrong.measurement
    steps = [one.measurement.context.step_index for one in right]
    is_nothing = not (measurement.is_per_token or measurement.observed.any())
    if is_nothing and measurement.context.step_index in steps:  # other ranks log this number
        yield [_of_term(wrong, ["nothing_reported_by_some_ranks"])]
        return
    if len(wrong.terms) > 1:
        return
    names = [name for name in read_off(wrong) if MISTAKES[name].is_read_off]
    if not measurement.observed.any():
        names += ALL_LOST
    if INACTIVE in names:
        yield from _inactive_tokens_besides(wrong)
    elif names:
        yield [_of_term(wrong, names)]


def _inactive_tokens_besides(wrong: Explained) -> Iterator[list[Names]]:
    """Yield the mistake `INACTIVE`, with each explanation of active tokens if they are wrong."""
    measurement = wrong.measurement
    of_active = np.where(measurement.context.expected > 0, measurement.observed, 0.0)
    active = Explained(replace(measurement, observed=of_active))
    for parts in active.explanations or [[]]:
        yield [_of_term(wrong, [INACTIVE]), *parts]


def _of_term(wrong: Explained, names: Iterable[str]) -> Names:
    return frozenset(TermMistake.of(wrong.terms[0], name) for name in names)
