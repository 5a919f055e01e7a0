"""All findings of a report side by side: which facts hold for them, what explains them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import chain, combinations
from typing import TYPE_CHECKING, NamedTuple

from conformance.explain.catalogue.mistake import MISTAKES
from conformance.explain.conditions import of_finding, plainness

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from conformance.findings.cause import Clues
    from conformance.findings.finding import Finding


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A mistake and a condition; ``holds`` has a bit for each term that the condition holds for."""

    mistake: str
    condition: tuple[str, ...]
    holds: int


class Part(NamedTuple):
    """One mistake of an explanation: the names that it may have, and the bit of its term."""

    names: frozenset[str]
    bit: int

    def is_given_by(self, pairs: Sequence[Pair]) -> bool:
        """Whether one of the pairs has the mistake here."""
        return any(pair.mistake in self.names and pair.holds & self.bit for pair in pairs)


Explanation = tuple[Part, ...]
"""Mistakes that together give what was observed."""


class Table:
    """The terms of all findings, a bit for each."""

    def __init__(self, findings: Iterable[tuple[Finding, Clues]]) -> None:
        self.explanations: dict[str, tuple[Explanation, ...]] = {}
        """Of each finding, by its id."""

        self.bits: dict[str, int] = {}
        """The bits of each finding's terms, by its id."""

        self.claims: dict[str, int] = defaultdict(int)
        """For each mistake, the terms that it explains."""

        self._facts: dict[str, int] = defaultdict(int)
        self._excluded: dict[str, int] = defaultdict(int)
        self._everywhere = 0
        for finding, clues in findings:
            self._add(finding, clues)
        self._plain_first = sorted(self._facts, key=plainness)

    def _add(self, finding: Finding, clues: Clues) -> None:
        of_terms = {}
        for term in clues.terms:
            of_terms[term] = bit = self._everywhere + 1
            self._everywhere |= bit
            for fact in (*of_finding(finding, term), *clues.conditions):
                self._facts[fact] |= bit
        for named in clues.excluded:
            term, _, mistake = named.partition("/")
            self._excluded[mistake] |= of_terms[term]
        self.bits[finding.id] = sum(of_terms.values())
        explanations = tuple(
            tuple(_part(names, of_terms) for names in parts) for parts in clues.explanations
        )
        self.explanations[finding.id] = explanations
        for part in chain.from_iterable(explanations):
            for mistake in part.names:
                self.claims[mistake] |= part.bit

    def pairs(self, mistake: str) -> Iterator[Pair]:
        """Yield the conditions that no finding contradicts, each with the fewest facts."""
        claims, excluded = self.claims[mistake], self._excluded[mistake]
        if MISTAKES[mistake].is_read_off:
            yield Pair(
                mistake=mistake,
                condition=(condition := self.described(claims)),
                holds=self.holding(condition),
            )
            return
        seen = set()
        for condition, bits in self._conditions(claims, excluded):
            if bits & claims not in seen:
                seen.add(bits & claims)
                yield Pair(mistake=mistake, condition=condition, holds=bits)

    def _conditions(self, claims: int, excluded: int) -> Iterator[tuple[tuple[str, ...], int]]:
        """Yield conditions that hold for some claims and for nothing that excludes them."""
        if not excluded:
            yield (), self._everywhere
            return
        facts = [(fact, bits) for fact in self._plain_first if (bits := self._facts[fact]) & claims]
        for fact, bits in facts:
            if not bits & excluded:
                yield (fact,), bits
        contradicted = [(fact, bits) for fact, bits in facts if bits & excluded]
        for (one, bits), (other, more) in combinations(contradicted, 2):
            if bits & more & claims and not bits & more & excluded:
                yield (one, other), bits & more

    def described(self, claims: int) -> tuple[str, ...]:
        """The condition that holds for all claims and for the fewest others."""
        facts = [
            (fact, bits)
            for fact in self._plain_first
            if (bits := self._facts[fact]) & claims == claims
        ]
        conditions: list[tuple[tuple[str, ...], int]] = [
            ((), self._everywhere),
            *(((fact,), bits) for fact, bits in facts),
            *(((one, two), bits & more) for (one, bits), (two, more) in combinations(facts, 2)),
        ]
        return min(conditions, key=lambda one: one[1].bit_count())[0]

    def holding(self, condition: Sequence[str]) -> int:
        """The terms for which all facts of a condition hold."""
        bits = self._everywhere
        for fact in condition:
            bits &= self._facts[fact]
        return bits


def _part(names: Sequence[str], bits: Mapping[str, int]) -> Part:
    term = names[0].partition("/")[0]
    return Part(frozenset(name.partition("/")[2] for name in names), bits[term])
