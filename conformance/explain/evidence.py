"""Evidence that a fact, which all findings of a cause share, matters for the cause.

A fact matters if the mistake is absent where only this fact is missing. Cases and layouts differ in
more than their facts, so the compared findings must have the same case or the same layout.
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from conformance.explain.conditions.facts import FACTS_OF_STEPS, OF_BATCHES, OF_CUTS, OF_JOBS
from conformance.explain.conditions.wording import is_choice, options_of
from reference.aggregation import Mode

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping

    from conformance.explain.conditions.wording import ChosenBy
    from conformance.explain.cover import Table

OF_OTHER_MODES = frozenset(f"except in {mode}" for mode in Mode)
"""Negative facts of modes. All of them hold for a step, except the fact about its own mode."""

OF_LAYOUTS = frozenset({*OF_JOBS, *OF_BATCHES, *OF_CUTS})
"""Facts of steps that depend on the layout."""


class Evidence:
    """The evidence of terms: ``claims`` show a cause, and ``absent`` terms show its absence.

    Without claims there is no evidence.
    """

    def __init__(self, table: Table, claims: int, absent: int, chosen_by: ChosenBy) -> None:
        self._holds, self._claims, self._chosen_by = table.facts, claims, chosen_by
        self._absent = absent & ~claims & table.telling_of(claims)
        self._same_case = self._absent & _alike(table.cases, claims)
        self._same_cut = self._absent & _alike(table.cuts, claims)
        facts = (fact for fact in table.plain_first if fact not in OF_OTHER_MODES)
        self._shared = [fact for fact in facts if self._holds[fact] & claims == claims]

    def shown(self) -> list[str]:
        """The facts that all claims share and that matter."""
        return [fact for fact in self._shared if self._is_shown(fact)]

    def needs_layout(self, options: Collection[str], holds: int) -> bool:
        """Whether the cause needs one of the layout ``options``; terms with one are ``holds``."""
        return self._is_gone(self._same_case & ~holds, self._without(options, holds))

    def needs_loss(self, options: Collection[str], holds: int) -> bool:
        """Whether the cause needs one of the loss ``options``; terms with one are ``holds``.

        Facts of steps may differ in the compared terms, since losses have cases of their own.
        """
        kept = (fact for fact in self._without(options, holds) if fact not in FACTS_OF_STEPS)
        return self._is_gone(self._absent & ~holds, kept)

    def _without(self, options: Collection[str], holds: int) -> Iterator[str]:
        """Yield the shared facts that a step without the given options can have."""
        for fact in self._others(holds):
            if not {*options} & {*options_of(fact, self._chosen_by)}:
                yield fact

    def _is_shown(self, fact: str) -> bool:
        holds = self._holds[fact]
        if fact in FACTS_OF_STEPS:
            # Leave out this fact and the facts of steps that imply it, since no step without it has
            # them. A check implies it if all of the check's cases have it; such a check cannot show
            # whether the fact matters.
            kept = [
                one
                for one in self._shared
                if one not in FACTS_OF_STEPS or self._holds[one] & ~holds
            ]
            return self._is_gone(self._same_cut & ~holds, kept)
        kept = [one for one in self._others(holds) if one != fact]
        return self._is_gone(self._same_case & ~holds, kept)

    def _others(self, holds: int) -> Iterable[str]:
        """The shared facts that can hold for terms outside ``holds``.

        Facts of a cut are left out, since the cut follows from the layout. Facts of checks are kept
        only if a term outside ``holds`` has them.
        """
        for fact in self._shared:
            if fact not in OF_LAYOUTS and (is_choice(fact) or self._holds[fact] & ~holds):
                yield fact

    def _is_gone(self, telling: int, kept: Iterable[str]) -> bool:
        """Whether at least one of the terms ``telling`` has all the facts ``kept``."""
        left = reduce(lambda terms, fact: terms & self._holds[fact], kept, telling)
        return bool(self._claims and left)


def _alike(parts: Mapping[Hashable, int], claims: int) -> int:
    """The terms in all parts that contain a claim."""
    return reduce(or_, (bits for bits in parts.values() if bits & claims), 0)
