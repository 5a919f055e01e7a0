"""The fewest pairs of a mistake and a condition that explain all wrong findings.

No right finding may contradict a pair. Among the remaining pairs, the one that explains most is
chosen repeatedly. Ties go to the pair that explains most on its own, then to the simpler condition,
then to the more common mistake.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import reduce
from itertools import chain, combinations
from operator import and_
from typing import TYPE_CHECKING, NamedTuple

from conformance.explain.catalogue.mistake import MISTAKES, Kind, commonness
from conformance.explain.conditions.facts import NARROWING, NEGATIVE, of_finding, plainness
from conformance.findings.verdict import Check, Verdict

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence

    from conformance.findings.cause import Clues, TermMistake
    from conformance.findings.finding import Finding

TRAINED = (Verdict.CONFORMS, Verdict.MISMATCH, Verdict.ADVICE)
"""Verdicts on steps that were trained."""

RIGHT = (Verdict.CONFORMS, Verdict.ADVICE)
"""Verdicts on steps in which nothing is wrong."""

OF_TERMS = "of "
"""The prefix of facts of a loss's terms; only trained steps have such facts."""

LARGEST = 9
"""The most mistakes in an explanation: a factor and two others for each term of a loss."""


PRODUCT = "_by_dp_cp"
"""The suffix of the names of factors that are a product of two sizes."""

OF_ONE_SIZE = ("where dp = 1", "where cp = 1")
"""Facts under which a `PRODUCT` of two sizes equals one of them."""


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A mistake and a condition; ``holds`` has the bits of the terms that meet the condition."""

    mistake: str
    condition: tuple[str, ...]
    holds: int


class Part(NamedTuple):
    """One mistake of an explanation: its possible names, and the bit of its term."""

    names: frozenset[str]
    bit: int

    def is_given_by(self, pairs: Sequence[Pair]) -> bool:
        """Whether one of the pairs has this mistake and holds for its term."""
        return any(pair.mistake in self.names and pair.holds & self.bit for pair in pairs)


Explanation = tuple[Part, ...]
"""Mistakes that together explain an observation."""


class Table:
    """The terms of all findings, each with a bit, and the evidence on mistakes as sets of bits."""

    def __init__(self, findings: Iterable[tuple[Finding, Clues]]) -> None:
        self.explanations: dict[str, tuple[Explanation, ...]] = {}
        """The explanations of each finding, by its id."""

        self.bits: dict[str, int] = {}
        """The bits of each finding's terms, by its id."""

        self.claims: dict[str, int] = defaultdict(int)
        """For each mistake, the terms that it explains."""

        self.trained = 0
        """The terms of all findings that were trained."""

        self.right = 0
        """The terms of all findings in which nothing is wrong."""

        self.facts: dict[str, int] = defaultdict(int)
        """The terms for which each fact holds."""

        self._of_advantages = 0
        """The terms of findings of advantages that the framework computes."""

        self.cases: dict[Hashable, int] = defaultdict(int)
        self.cuts: dict[Hashable, int] = defaultdict(int)
        """The terms of each combination of mode and layout; `cases` has the terms of each case."""

        self._excluded: dict[str, int] = defaultdict(int)
        self._everywhere = 0
        for finding, clues in findings:
            self._add(finding, clues)
        self.plain_first: list[str] = sorted(self.facts, key=plainness)

    def _add(self, finding: Finding, clues: Clues) -> None:
        of_terms = {}
        for term in clues.terms:
            of_terms[term] = bit = self._everywhere + 1
            self._everywhere |= bit
            for fact in (*of_finding(finding, term), *clues.conditions):
                if finding.verdict in TRAINED or not fact.startswith(OF_TERMS):
                    self.facts[fact] |= bit
        for named in clues.excluded:
            self._excluded[named.mistake] |= of_terms[named.term]
        self.bits[finding.id] = bits = sum(of_terms.values())
        self.cases[finding.case] |= bits
        if finding.check is Check.ADVANTAGES:
            self._of_advantages |= bits
        self.cuts[finding.mode, finding.layout] |= bits
        if finding.verdict in TRAINED:
            self.trained |= bits
        if finding.verdict in RIGHT:
            self.right |= bits
        several = (tuple(_part(names, of_terms) for names in parts) for parts in clues.explanations)
        explanations = tuple(parts for parts in several if all(part.names for part in parts))
        self.explanations[finding.id] = explanations
        for part in chain.from_iterable(explanations):
            for mistake in part.names:
                self.claims[mistake] |= part.bit

    def pairs(self, mistake: str) -> Iterator[Pair]:
        """Yield the pairs of a mistake with conditions that no finding contradicts."""
        claims, excluded = self.claims[mistake], self._excluded[mistake]
        if MISTAKES[mistake].is_read_off:
            condition = self.described(claims)
            yield Pair(mistake=mistake, condition=condition, holds=self.holding(condition))
            return
        seen = set()
        for condition, bits in self._conditions(claims, excluded, MISTAKES[mistake].only):
            if bits & claims not in seen:
                seen.add(bits & claims)
                yield Pair(mistake=mistake, condition=condition, holds=bits)

    def _conditions(
        self, claims: int, excluded: int, only: tuple[str, ...]
    ) -> Iterator[tuple[tuple[str, ...], int]]:
        """Yield conditions, with their terms, that hold for some claims and for no excluded term.

        If the facts ``only``, which the mistake needs in any case, suffice, they are the only
        condition.
        """
        needed = self.holding(only)
        if not needed & excluded:
            yield only, needed
            return
        facts = [(fact, bits) for fact in self.plain_first if (bits := self.facts[fact]) & claims]
        for fact, bits in facts:
            if not bits & excluded:
                yield (fact,), bits
        contradicted = [(fact, bits) for fact, bits in facts if bits & excluded]
        for (one, bits), (other, more) in combinations(contradicted, 2):
            if bits & more & claims and not bits & more & excluded:
                yield (one, other), bits & more

    def equivalents(self, pair: Pair, claims: int) -> list[str]:
        """Other factors that explain all claims of the pair's mistake and are not contradicted.

        A product of two sizes is left out if one of the sizes is always 1.
        """
        if MISTAKES[pair.mistake].kind is not Kind.FACTOR:
            return []
        parts = (part for part in self._parts() if part.bit & claims and pair.mistake in part.names)
        fitting = reduce(and_, (part.names for part in parts)) - {pair.mistake}
        is_one_size = any(not claims & ~self.facts[fact] for fact in OF_ONE_SIZE)
        return [
            name
            for name in sorted(fitting, key=commonness)
            if MISTAKES[name].kind is Kind.FACTOR
            and not pair.holds & self._excluded[name]
            and not (is_one_size and name.endswith(PRODUCT))
        ]

    def _parts(self) -> Iterator[Part]:
        """Yield all parts of all explanations."""
        for explanations in self.explanations.values():
            yield from chain.from_iterable(explanations)

    def absent(self, mistake: str) -> int:
        """The terms that prove the absence of a mistake."""
        return self.right if MISTAKES[mistake].is_read_off else self._excluded[mistake]

    def described(self, claims: int) -> tuple[str, ...]:
        """The condition that holds for all claims and for the fewest other trained terms.

        Terms that were not trained say nothing about mistakes or cuts, and given advantages say
        nothing about computed ones. A fact is added if it at least halves the number of other
        terms.
        """
        telling = self.trained & self.telling_of(claims) | claims
        facts = [
            (fact, bits & telling)
            for fact in self.plain_first
            if (bits := self.facts[fact]) & claims == claims
            and not fact.startswith((*NEGATIVE, *NARROWING))
        ]
        found: tuple[tuple[str, ...], int] = ((), self._everywhere & telling)
        pairs = (((one, two), bits & more) for (one, bits), (two, more) in combinations(facts, 2))
        for conditions in ([((fact,), bits) for fact, bits in facts], [*pairs]):
            best = min(conditions, key=lambda one: one[1].bit_count(), default=found)
            if 2 * _others(best, claims) <= _others(found, claims) > 0:
                found = best
        return found[0]

    def telling_of(self, claims: int) -> int:
        """The terms that are evidence on claims; given advantages say nothing on computed ones."""
        is_of_advantages = not claims & ~self._of_advantages
        return self._of_advantages if is_of_advantages else self._everywhere

    def holding(self, condition: Sequence[str]) -> int:
        """The terms for which all facts of a condition hold."""
        bits = self._everywhere
        for fact in condition:
            bits &= self.facts[fact]
        return bits


def _others(condition: tuple[Sequence[str], int], claims: int) -> int:
    """The number of terms for which a condition holds, apart from the claimed terms."""
    return (condition[1] & ~claims).bit_count()


def _part(names: Sequence[TermMistake], bits: Mapping[str, int]) -> Part:
    """The part of an explanation; names unknown to this version of the catalogue are left out."""
    known = frozenset(name.mistake for name in names if name.mistake in MISTAKES)
    return Part(known, bits[names[0].term])


def cover(table: Table) -> list[Pair]:
    """The chosen pairs, in the order in which they were chosen."""
    explainable = [explanations for explanations in table.explanations.values() if explanations]
    chosen: list[Pair] = []
    left = explainable
    ordered = sorted(table.claims, key=commonness)
    for is_inferred in (False, True):  # mistakes that findings can contradict come first
        possible = (one for one in ordered if MISTAKES[one].is_read_off is is_inferred)
        pairs = [*chain.from_iterable(map(table.pairs, possible))]
        while left and (best := _best(pairs, left, chosen)) is not None:
            chosen.append(best)
            left = [one for one in left if explanation(one, chosen) is None]
    return _without_needless(
        chosen, [one for one in explainable if explanation(one, chosen) is not None]
    )


def explanation(explanations: Iterable[Explanation], chosen: Sequence[Pair]) -> Explanation | None:
    """The first explanation whose parts are all given by the chosen pairs."""
    given = (one for one in explanations if all(part.is_given_by(chosen) for part in one))
    return next(given, None)


def _best(
    pairs: Sequence[Pair], left: Iterable[Iterable[Explanation]], chosen: Sequence[Pair]
) -> Pair | None:
    """The pair that completes the most explanations; if none does, the one that is in the most."""
    possible = [*chain.from_iterable(left)]
    alone = _gains(one for one in possible if len(one) == 1)
    missing = [[part for part in one if not part.is_given_by(chosen)] for one in possible]
    for size in range(1, LARGEST + 1):
        best = _most_frequent(pairs, _gains(one for one in missing if len(one) <= size), alone)
        if best is not None:
            return best
    return None


def _gains(explanations: Iterable[Iterable[Part]]) -> dict[str, int]:
    """For each mistake, the terms of the parts that it may explain."""
    gains: dict[str, int] = defaultdict(int)
    for part in chain.from_iterable(explanations):
        for mistake in part.names:
            gains[mistake] |= part.bit
    return gains


def _most_frequent(
    pairs: Sequence[Pair], gains: Mapping[str, int], alone: Mapping[str, int]
) -> Pair | None:
    """The pair that gives the most parts; if several do, the one that explains most on its own."""

    def gain(pair: Pair) -> tuple[int, int, int]:
        counts = [(pair.holds & each.get(pair.mistake, 0)).bit_count() for each in (gains, alone)]
        return counts[0], counts[1], -_facts(pair)

    best = max(pairs, key=gain, default=None)
    return best if best is not None and gain(best)[0] else None


def _facts(pair: Pair) -> int:
    """The number of facts in a pair's condition, without facts that the mistake implies.

    A mistake of logged numbers counts as at least one fact. The condition of a mistake without a
    prediction counts as none, since it only describes the findings.
    """
    mistake = MISTAKES[pair.mistake]
    facts = {*pair.condition} - {*mistake.only}
    return 0 if mistake.is_read_off else max(len(facts), mistake.kind is Kind.LOGGED)


def _without_needless(chosen: list[Pair], covered: Sequence[Sequence[Explanation]]) -> list[Pair]:
    """The pairs that are needed; each pair is tested, from the last chosen to the first."""
    for pair in reversed(chosen):
        others = [one for one in chosen if one is not pair]
        if all(explanation(one, others) is not None for one in covered):
            chosen = others
    return chosen
