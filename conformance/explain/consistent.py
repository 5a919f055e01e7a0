"""Holds every known mistake against what one step showed.

Each term of a loss or of a logged number is right or has a known mistake. Every choice of one for
each term predicts what is observed; the choices within the bound explain it, and a mistake that
would show alone and is in none of them is excluded.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from conformance.explain.catalogue.missing_tokens import kinds_of_loss, shares
from conformance.explain.catalogue.mistake import MISTAKES, Kind
from conformance.explain.catalogue.predictions import (
    predictions,
    predictions_of_factors,
    predictions_of_sums,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from conformance.expected.step_context import StepContext
    from conformance.expected.term import LossTerm
    from conformance.explain.catalogue.mistake import Mistake

RIGHT = ""
"""The name of what is right, among those of mistakes."""

NONE: frozenset[str] = frozenset()

WITHOUT_GRADIENT = "term_without_gradient"
LEFT_OUT = "term_left_out"
NOTHING_REPORTED = "nothing_reported"
"""The mistake of a term that adds nothing to the gradient, to a logged number, or is all of it."""

MANY = 4096
"""Tokens of a step of which all are looked at."""

FEW = 16
"""Numbers by which choices are sorted out before all numbers are looked at."""

DIGITS = 10
"""Decimals, relative to the largest number, of predictions that are the same."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Showing:
    """What one rank showed of one step: the sum of terms for each token, or over all tokens.

    ``observed`` is [tokens] or, of a sum over all tokens, [1]; ``tolerance`` is relative to the sum
    of the terms' magnitudes. Numbers of tokens times ``derivatives`` are the gradient.
    """

    terms: Sequence[LossTerm]
    observed: NDArray[np.float64]
    tolerance: float
    is_per_token: bool = True
    derivatives: NDArray[np.float64] | float = 1.0

    @property
    def context(self) -> StepContext:
        """The context of the first term."""
        return self.terms[0].context

    @cached_property
    def expected(self) -> NDArray[np.float64]:
        """What is right: [numbers]."""
        return self.reduced(np.sum([term.products for term in self.terms], axis=0))

    @cached_property
    def magnitude(self) -> NDArray[np.float64]:
        """The sum of the terms' magnitudes, which rounding errors are relative to."""
        return self.reduced(np.sum([term.magnitudes for term in self.terms], axis=0))

    def reduced(self, products: NDArray[np.float64]) -> NDArray[np.float64]:
        """The numbers that weight · factor of all tokens give: [tokens] to [numbers]."""
        return products if self.is_per_token else products.sum(keepdims=True)


class Alternatives(NamedTuple):
    """What a term may be, the right one first: [alternatives, numbers].

    Mistakes that give the same numbers are one alternative; the name of what is right is empty.
    """

    parts: list[tuple[frozenset[str], ...]]
    """The names of each mistake that an alternative is made of, of which most are one."""

    numbers: NDArray[np.float64]
    magnitude: NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Consistent:
    """What is consistent with what a rank showed of a step.

    Mistakes are named with their terms, such as ``kl/multiplied_by_cp``.
    """

    showing: Showing
    is_right: bool
    explanations: list[list[frozenset[str]]]
    """Choices of mistakes that occur together; of each, names that cannot be told apart."""

    visible: frozenset[str]
    """Mistakes that alone would give something else than what is right, and, if what was observed
    is right within its bound, than that."""

    @property
    def terms(self) -> list[str]:
        """The names of the terms."""
        return [str(term.metric) for term in self.showing.terms]

    @property
    def explaining(self) -> frozenset[str]:
        """All mistakes that some explanation has a part in."""
        return NONE.union(*(part for parts in self.explanations for part in parts))

    @property
    def contradicted(self) -> frozenset[str]:
        """Mistakes that are not there; of something wrong that nothing explains, none is known."""
        if not self.is_right and all(_mistake(name).kind is Kind.COUNT for name in self.explaining):
            return NONE
        hidden = {_term_of(name) for name in self.explaining if _mistake(name).kind is Kind.ABSENT}
        shown = self.visible - self.explaining
        return frozenset(name for name in shown if _term_of(name) not in hidden)


def consistent(showing: Showing) -> Consistent:
    """Hold all known mistakes against what was observed of a step."""
    look = _Look(showing)
    of_terms = [_alternatives(term, look) for term in showing.terms]
    explanations = [*_explanations(of_terms, look)]
    is_right = [] in explanations
    if not explanations:
        explanations = [*_with_a_factor(of_terms, look), *_with_losses(of_terms, look)]
    elif not is_right and len(of_terms) == 1:  # a small step may fit another mistake by chance
        on_top = (
            [factor, *map(without_factors, others)]
            for factor, *others in _with_a_factor(of_terms, look)
        )
        explanations += filter(all, on_top)
    return Consistent(
        showing=showing,
        is_right=is_right,
        explanations=[] if is_right else explanations,
        visible=_visible(of_terms, look, look.observed if is_right else look.expected),
    )


class _Look:
    """The numbers of a showing that are looked at: the total, or those of telling tokens."""

    def __init__(self, showing: Showing) -> None:
        self.showing = showing
        self.tolerance = showing.tolerance
        self.tokens = _telling(showing)
        self.observed = showing.observed[self.tokens] if showing.is_per_token else showing.observed
        self.expected, self.magnitude = showing.expected, showing.magnitude
        self.spare = np.sum([term.spare for term in showing.terms], axis=0)
        if showing.is_per_token:
            self.expected, self.magnitude = self.expected[self.tokens], self.magnitude[self.tokens]

    def numbers(
        self, products: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The numbers that a term's products, [tokens], give, and their magnitudes."""
        looked_at, spare = products[self.tokens], self.spare[self.tokens]
        return self.showing.reduced(looked_at), self.showing.reduced(np.abs(looked_at) + spare)


def _telling(showing: Showing) -> NDArray[np.int64] | slice:
    """Tokens whose numbers stand for all: of a large step, the extreme ones of each part.

    No known mistake tells apart the tokens of a sample that have the same place in the cut.
    """
    step, placement = showing.context.step, showing.context.placement
    if not showing.is_per_token or len(step.mask) <= MANY:
        return slice(None)
    part = 2 * showing.context.sample + step.mask
    if placement is not None:
        for place in (placement.dp_rank, placement.cp_rank, placement.micro_batch):
            part = part * (place.max() + 1) + place
    for term in showing.terms:  # tokens of one derivative have those of each mistake in common
        factor = np.unique(term.factors, return_inverse=True)[1]
        part = part * (factor.max() + 1) + factor
    order = np.lexsort((showing.observed, part))
    ends = np.flatnonzero(np.diff(part[order], prepend=-1, append=-1))
    extremes: NDArray[np.int64] = np.unique(order[[*ends[:-1], *(ends[1:] - 1)]])
    return extremes


def _alternatives(term: LossTerm, look: _Look) -> Alternatives:
    """The right term, then what each known mistake makes of it."""
    known = [*_known(term, look.showing)]
    numbers, magnitudes = zip(*(look.numbers(each.products) for each in known), strict=True)
    scale = float(magnitudes[0].max(initial=0.0)) or 1.0
    same: dict[tuple[tuple[str, ...], bytes], list[int]] = {}
    rounded = np.round(np.stack(numbers) / scale, DIGITS) + 0.0
    for place, each in enumerate(known):
        same.setdefault((each.together, rounded[place].tobytes()), []).append(place)
    first = [places[0] for places in same.values()]
    return Alternatives(
        [
            (
                frozenset(chain(*(known[place].names for place in places))),
                *(frozenset([name]) for name in together),
            )
            for (together, _), places in same.items()
        ],
        np.stack([numbers[place] for place in first]),
        np.stack([magnitudes[place] for place in first]),
    )


class _Known(NamedTuple):
    """Weight · factor, [tokens], of one or several mistakes of a term at once."""

    names: Sequence[str]
    products: NDArray[np.float64]
    together: tuple[str, ...] = ()


def _known(term: LossTerm, showing: Showing) -> Iterator[_Known]:
    """Yield what is right and every known mistake."""
    yield _Known([RIGHT], term.products)
    context = term.context
    of_tokens = chain(predictions(context), shares(context))
    of_weights = of_tokens if showing.is_per_token else predictions_of_sums(context)
    for one in chain(of_weights, predictions_of_factors(term)):
        yield _Known(
            [_named(term, mistake.name) for mistake in one.mistakes],
            one.products(term),
            tuple(_named(term, name) for name in one.together),
        )
    nothing = WITHOUT_GRADIENT
    if not showing.is_per_token:
        nothing = NOTHING_REPORTED if len(showing.terms) == 1 else LEFT_OUT
    yield _Known([_named(term, nothing)], np.zeros_like(term.products))


def _named(term: LossTerm, mistake: str) -> str:
    return f"{term.metric}/{mistake}"


def _visible(
    of_terms: Sequence[Alternatives], look: _Look, numbers: NDArray[np.float64]
) -> frozenset[str]:
    """Names of mistakes that alone, in each of their variants, would give other numbers."""
    visible: set[str] = set()
    hidden = {RIGHT}
    for one in of_terms:
        totals = look.expected - one.numbers[0] + one.numbers
        sizes = look.magnitude - one.magnitude[0] + one.magnitude
        same = _matches(totals, sizes, numbers, look.tolerance)
        same[0] = True
        for (names, *together), is_same in zip(one.parts, same, strict=True):
            if not together:
                (hidden if is_same else visible).update(names)
    return frozenset(visible - hidden)


def _explanations(
    of_terms: Sequence[Alternatives], look: _Look, factor: float = 1.0
) -> Iterator[list[frozenset[str]]]:
    """Yield the choices of an alternative for each term that give what was observed / factor."""
    observed = look.observed / factor
    some = np.unique(np.linspace(0, len(observed) - 1, FEW).astype(int))
    numbers = _sums([one.numbers[:, some] for one in of_terms])
    magnitude = _sums([one.magnitude[:, some] for one in of_terms])
    likely = _matches(numbers, magnitude, observed[some], look.tolerance)
    for places in np.argwhere(likely):
        chosen = [*zip(of_terms, places, strict=True)]
        total = sum(one.numbers[place] for one, place in chosen)
        size = sum(one.magnitude[place] for one, place in chosen)
        if _matches(total, size, observed, look.tolerance):
            parts = chain.from_iterable(one.parts[place] for one, place in chosen)
            yield [part for part in parts if RIGHT not in part]


def _sums(of_terms: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """The sums of one row of each array: [rows of the first, rows of the second, ..., numbers]."""
    total = of_terms[0]
    for rows in of_terms[1:]:
        total = total[..., np.newaxis, :] + rows
    return total


def _matches(
    predicted: NDArray[np.float64],
    magnitude: NDArray[np.float64],
    observed: NDArray[np.float64],
    tolerance: float,
) -> NDArray[np.bool_]:
    close = np.abs(observed - predicted) <= tolerance * magnitude
    return np.asarray(close.all(axis=-1))


def _with_a_factor(of_terms: Sequence[Alternatives], look: _Look) -> Iterator[list[frozenset[str]]]:
    """Yield a factor of all terms with the other mistakes that together give what was observed."""
    first = of_terms[0]
    ratios = first.magnitude.sum(axis=1) / (first.magnitude[0].sum() or 1.0)
    for (names, *_), ratio in zip(first.parts[1:], ratios[1:], strict=True):
        factors = [_mistake(name).name for name in names if _is_factor(name)]
        if factors:
            on_top = [
                frozenset(_named(term, factor) for factor in factors) for term in look.showing.terms
            ]
            others = filter(None, _explanations(of_terms, look, ratio))
            yield from ([*on_top, *parts] for parts in others)


def _with_losses(of_terms: Sequence[Alternatives], look: _Look) -> Iterator[list[frozenset[str]]]:
    """Yield mistakes of a single term that give what was observed, but for tokens that are lost."""
    one, term = of_terms[0], look.showing.terms[0]
    active = np.not_equal(term.products, 0)
    gone = active & np.equal(look.showing.observed, 0)
    if len(of_terms) > 1 or not look.showing.is_per_token or not gone.any():
        return
    lost = frozenset(_named(term, name) for name, _ in kinds_of_loss(term.context, gone, active))
    kept = np.where(gone[look.tokens], 0, one.numbers)
    both = _matches(kept, np.abs(kept), look.observed, look.tolerance) & kept.any(axis=1)
    yield from ([*one.parts[place], lost] for place in np.flatnonzero(both) if place)


def _is_factor(name: str) -> bool:
    return _mistake(name).kind is Kind.FACTOR


def without_factors(names: Iterable[str]) -> frozenset[str]:
    """The names of mistakes, with their terms or without, that are no factor of all weights."""
    return frozenset(name for name in names if not _is_factor(name))


def _term_of(name: str) -> str:
    return name.partition("/")[0]


def _mistake(name: str) -> Mistake:
    return MISTAKES[name.rpartition("/")[2]]
