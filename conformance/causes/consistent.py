"""Holds every known mistake against what one step showed.

Each term of a loss or of a logged number is right or has a known mistake. Every choice of one for
each term predicts what is observed; the choices within the bound explain it, and a mistake that
would show alone and is in none of them is excluded.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import chain, product
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from conformance.diagnosis.catalogue import mistakes
from conformance.diagnosis.missing_tokens import kinds_of_loss, shares

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from conformance.diagnosis.step_context import LossTerm, StepContext

RIGHT = ""
"""The name of what is right, among those of mistakes."""

NONE: frozenset[str] = frozenset()

WITHOUT_GRADIENT = "term_without_gradient"
LEFT_OUT = "term_left_out"
NOTHING_REPORTED = "nothing_reported"
"""The mistake of a term that adds nothing to the gradient, to a logged number, or is all of it."""

FACTORS = ("multiplied_by_", "divided_by_")
"""How the names of mistakes begin that another mistake may come on top of."""

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
    of the terms' magnitudes.
    """

    terms: Sequence[LossTerm]
    observed: NDArray[np.float64]
    tolerance: float
    is_per_token: bool = True

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
        """The sum of the terms' |weight · factor|, which rounding errors are relative to."""
        return self.reduced(np.sum([np.abs(term.products) for term in self.terms], axis=0))

    def reduced(self, products: NDArray[np.float64]) -> NDArray[np.float64]:
        """The numbers that weight · factor of all tokens give: [tokens] to [numbers]."""
        return products if self.is_per_token else products.sum(keepdims=True)


class Alternative(NamedTuple):
    """Mistakes of a term that give the same numbers; the name of what is right is empty."""

    names: frozenset[str]
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


def consistent(showing: Showing) -> Consistent:
    """Hold all known mistakes against what was observed of a step."""
    look = _Look(showing)
    of_terms = [_alternatives(term, look) for term in showing.terms]
    explanations = [*_explanations(of_terms, look)]
    is_right = [] in explanations
    if not explanations and len(of_terms) == 1:
        explanations = [*_with_a_factor(of_terms[0], look), *_with_losses(of_terms[0], look)]
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
        right = [self.numbers(one, one.context.expected) for one in showing.terms]
        self.expected = np.sum([numbers for numbers, _ in right], axis=0)
        self.magnitude = np.sum([magnitude for _, magnitude in right], axis=0)

    def numbers(
        self, term: LossTerm, weights: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The numbers that a term's weights, [tokens], give, and their magnitudes."""
        products = term.factors[self.tokens] * weights[self.tokens]
        if self.showing.is_per_token:
            return products, np.abs(products)
        return products.sum(keepdims=True), np.abs(products).sum(keepdims=True)


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
    order = np.lexsort((showing.observed / showing.terms[0].factors, part))
    ends = np.flatnonzero(np.diff(part[order], prepend=-1, append=-1))
    extremes: NDArray[np.int64] = np.unique(order[[*ends[:-1], *(ends[1:] - 1)]])
    return extremes


def _alternatives(term: LossTerm, look: _Look) -> list[Alternative]:
    """The right term, then what each known mistake makes of it."""
    right = Alternative(frozenset({RIGHT}), *look.numbers(term, term.context.expected))
    scale = float(right.magnitude.max(initial=0.0)) or 1.0
    found: dict[bytes, Alternative] = {_key(right.numbers / scale): right}
    for name, weights in _predictions(term, look.showing):
        numbers, magnitude = look.numbers(term, weights)
        key = _key(numbers / scale)
        same = found.get(key) or Alternative(NONE, numbers, magnitude)
        found[key] = same._replace(names=same.names | {_named(term, name)})
    return [*found.values()]


def _key(numbers: NDArray[np.float64]) -> bytes:
    """Equal for numbers that are the same but for rounding."""
    return (np.round(numbers, DIGITS) + 0.0).tobytes()


def _named(term: LossTerm, mistake: str) -> str:
    return f"{term.metric}/{mistake}"


def _predictions(term: LossTerm, showing: Showing) -> Iterator[tuple[str, NDArray[np.float64]]]:
    """Every known mistake of a term by its name, with its weights: [tokens]."""
    for mistake in chain(mistakes(term.context), shares(term.context)):
        for name in mistake.names:
            yield name, mistake.weights
    nothing = WITHOUT_GRADIENT
    if not showing.is_per_token:
        nothing = NOTHING_REPORTED if len(showing.terms) == 1 else LEFT_OUT
    yield nothing, np.zeros_like(term.context.expected)


def _visible(
    of_terms: Sequence[Sequence[Alternative]], look: _Look, numbers: NDArray[np.float64]
) -> frozenset[str]:
    """Names of mistakes that alone, in each of their variants, would give other numbers."""
    visible: set[str] = set()
    hidden = {RIGHT}
    for right, *wrong in of_terms:
        for one in wrong:
            total = look.expected - right.numbers + one.numbers
            size = look.magnitude - right.magnitude + one.magnitude
            same = _matches(total, size, numbers, look.tolerance)
            (hidden if same else visible).update(one.names)
        hidden |= right.names
    return frozenset(visible - hidden)


def _explanations(
    of_terms: Sequence[Sequence[Alternative]], look: _Look
) -> Iterator[list[frozenset[str]]]:
    """Yield the choices of an alternative for each term that give what was observed."""
    some = np.unique(np.linspace(0, len(look.observed) - 1, FEW).astype(int))
    numbers = _sums([np.stack([one.numbers[some] for one in of_term]) for of_term in of_terms])
    magnitude = _sums([np.stack([one.magnitude[some] for one in of_term]) for of_term in of_terms])
    likely = _matches(numbers, magnitude, look.observed[some], look.tolerance)
    for places in np.argwhere(likely):
        chosen = [of_term[place] for of_term, place in zip(of_terms, places, strict=True)]
        total, size = sum(one.numbers for one in chosen), sum(one.magnitude for one in chosen)
        if _matches(total, size, look.observed, look.tolerance):
            yield [one.names for one in chosen if RIGHT not in one.names]


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


def _with_a_factor(
    alternatives: Sequence[Alternative], look: _Look
) -> Iterator[list[frozenset[str]]]:
    """Yield pairs of a factor and another mistake that together give what was observed."""
    right, *wrong = alternatives
    for factor, other in product(wrong, wrong):
        names = frozenset(name for name in factor.names if _is_factor(name))
        if not names:
            continue
        ratio = factor.magnitude.sum() / right.magnitude.sum()
        numbers, magnitude = ratio * other.numbers, ratio * other.magnitude
        if _matches(numbers, magnitude, look.observed, look.tolerance):
            yield [names, other.names]


def _with_losses(
    alternatives: Sequence[Alternative], look: _Look
) -> Iterator[list[frozenset[str]]]:
    """Yield mistakes that give what was observed, but for tokens that are lost besides."""
    [term] = look.showing.terms
    gone = (term.context.expected > 0) & np.equal(look.showing.observed, 0)
    if not look.showing.is_per_token or not gone.any():
        return
    lost = frozenset(_named(term, name) for name, _ in kinds_of_loss(term.context, gone))
    for one in alternatives[1:]:
        kept = np.where(gone[look.tokens], 0, one.numbers)
        if kept.any() and _matches(kept, np.abs(kept), look.observed, look.tolerance):
            yield [one.names, lost]


def _is_factor(name: str) -> bool:
    return name.partition("/")[2].startswith(FACTORS)
