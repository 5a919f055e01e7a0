"""Evidence that a fact which all findings of a cause share matters.

A fact matters if all is right where it alone is missing. Cases and layouts differ in more than
their facts, so one of the two stays as it is.
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from conformance.explain.conditions.facts import FACTS_OF_STEPS, OF_BATCHES, OF_CUTS, OF_JOBS
from conformance.explain.conditions.wording import is_choice, options_of
from reference.aggregation import Mode

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence

    from conformance.explain.cover import Table

OF_OTHER_MODES = frozenset(f"except in {mode}" for mode in Mode)
"""Facts that a step in another mode lacks, whichever mode it is."""

OF_LAYOUTS = frozenset({*OF_JOBS, *OF_BATCHES, *OF_CUTS})
"""Facts of steps that depend on the layout."""


class Evidence:
    """The right terms besides the claims of a cause: those of ``absent`` show that it is gone."""

    def __init__(self, table: Table, claims: int, absent: int) -> None:
        self._holds = table.facts
        self._absent = absent & ~claims & table.telling_of(claims)
        self._same_case = self._absent & _alike(table.cases, claims)
        self._same_cut = self._absent & _alike(table.cuts, claims)
        facts = (fact for fact in table.plain_first if fact not in OF_OTHER_MODES)
        self._shared = [fact for fact in facts if self._holds[fact] & claims == claims]

    def shown(self) -> list[str]:
        """The shared facts that matter."""
        return [fact for fact in self._shared if self._is_shown(fact)]

    def needs_layout(
        self, options: Collection[str], holds: int, chosen_by: Mapping[str, Sequence[str]]
    ) -> bool:
        """Whether one of some options of layouts is needed, which the terms ``holds`` set."""
        kept = self._without(options, holds, chosen_by)
        return self._is_gone(self._same_case & ~holds, kept)

    def needs_loss(
        self, options: Collection[str], holds: int, chosen_by: Mapping[str, Sequence[str]]
    ) -> bool:
        """Whether one of some options of losses is needed; losses have cases of their own."""
        kept = self._without(options, holds, chosen_by)
        of_choices = [fact for fact in kept if fact not in FACTS_OF_STEPS]
        return self._is_gone(self._absent & ~holds, of_choices)

    def _without(
        self, options: Collection[str], holds: int, chosen_by: Mapping[str, Sequence[str]]
    ) -> list[str]:
        """The shared facts that a step without these options can have."""
        return [
            fact for fact in self._others(holds) if not {*options} & {*options_of(fact, chosen_by)}
        ]

    def _is_shown(self, fact: str) -> bool:
        holds = self._holds[fact]
        if fact in FACTS_OF_STEPS:
            # Facts of steps that imply this one, and it itself, cannot hold without it. A check
            # whose cases all have it implies it too, and nothing shows that it matters there.
            kept = [
                one
                for one in self._shared
                if one not in FACTS_OF_STEPS or self._holds[one] & ~holds
            ]
            return self._is_gone(self._same_cut & ~holds, kept)
        kept = [one for one in self._others(holds) if one != fact]
        return self._is_gone(self._same_case & ~holds, kept)

    def _others(self, holds: int) -> Iterable[str]:
        """The shared facts that can hold where something does not that ``holds`` for some terms.

        How a step is cut follows from its layout, and what is looked at from the check.
        """
        for fact in self._shared:
            if fact not in OF_LAYOUTS and (is_choice(fact) or self._holds[fact] & ~holds):
                yield fact

    def _is_gone(self, telling: int, kept: Iterable[str]) -> bool:
        """Whether one of the terms has all these facts."""
        return reduce(lambda terms, fact: terms & self._holds[fact], kept, telling) != 0


def _alike(parts: Mapping[Hashable, int], claims: int) -> int:
    """The terms that are of the same parts as claims."""
    return reduce(or_, (bits for bits in parts.values() if bits & claims), 0)
