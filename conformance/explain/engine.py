"""Tests every known mistake against one rank's observation of one step.

Each term of a loss or logged number is right or has a known mistake. Every choice of one
alternative per term predicts numbers; the choices whose numbers match the observation within the
bound explain it. A mistake is excluded if it would be visible on its own and is in no explanation.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from conformance.explain.catalogue.misalignments import misaligned, misaligned_by_padding, shifts_of
from conformance.explain.catalogue.missing_tokens import kinds_of_loss, shares, slices_without_first
from conformance.explain.catalogue.mistake import MISTAKES, Kind, Prediction
from conformance.explain.catalogue.predictions import (
    predictions,
    predictions_of_factors,
    predictions_of_sums,
)
from conformance.findings.cause import TermMistake

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from conformance.expected.term import LossTerm
    from conformance.explain.measurement import Measurement
    from reference.arrays import Integers, Mask, Values

    Names = frozenset[TermMistake]
    """The names of mistakes that an observation cannot distinguish."""

MANY = 4096
"""The largest step, in tokens, whose tokens are all compared."""

FEW = 16
"""The number of entries that are compared first, to discard most choices quickly."""

DIGITS = 10
"""The decimals, relative to the largest number, up to which predictions count as equal."""

NO_NUMBERS = np.empty(0)


class Alternatives(NamedTuple):
    """The numbers that a term may have, the right ones first: [alternatives, numbers].

    Mistakes that predict the same numbers form one alternative.
    """

    term: LossTerm
    predictions: list[list[Prediction]]
    """The predictions of each alternative, without weights; the right alternative has none."""

    invisible: list[Prediction]
    """Predictions of mistakes that give the right numbers."""

    numbers: Values
    magnitude: Values

    def parts(self, place: int | np.integer) -> list[Names]:
        """The mistakes that make up an alternative, usually one, each with its possible names."""
        found = self.predictions[place]
        if not found:
            return []
        together = (frozenset([self.name(mistake)]) for mistake in found[0].together)
        return [self.names(found), *together]

    def names(self, found: Iterable[Prediction]) -> Names:
        """The names, in this term, of the mistakes of the given predictions."""
        mistakes = chain.from_iterable(one.mistakes for one in found)
        return frozenset(self.name(mistake.name) for mistake in mistakes)

    def name(self, mistake: str) -> TermMistake:
        """The name of a mistake in this term."""
        return TermMistake.of(self.term.metric, mistake)


@dataclass(frozen=True, eq=False)
class Explained:
    """The explanations of a measurement by known mistakes."""

    measurement: Measurement
    elsewhere: bool = False
    """Whether at least one rank observed weights of the step, even if this rank observed none."""

    @property
    def terms(self) -> list[str]:
        """The names of the terms."""
        return [str(term.metric) for term in self.measurement.terms]

    @cached_property
    def choices(self) -> list[list[list[Prediction]]]:
        """For each choice that explains the observation, the predictions of each term."""
        return [
            [one.predictions[place] for one, place in zip(self._of_terms, places, strict=True)]
            for places in self._chosen
        ]

    @cached_property
    def _chosen(self) -> list[Integers]:
        return [*self._places()]

    @property
    def is_right(self) -> bool:
        """Whether the observation is right within its bound."""
        return any(not any(choice) for choice in self.choices)

    @cached_property
    def explanations(self) -> list[list[Names]]:
        """The explanations: mistakes that occur together, each with all of its possible names.

        Empty if the observation is right.
        """
        if self.is_right:
            return []
        found = [*self._named(self._chosen)]
        if not found:
            return [*self._with_a_factor(), *self._with_losses(), *self._weights_and_derivatives()]
        if len(self._of_terms) == 1:  # in a small step, another mistake may fit by chance
            on_top = (
                [factor, *(names - {*filter(_is_factor, names)} for names in others)]
                for factor, *others in self._with_a_factor()
            )
            found += filter(all, on_top)
        return found

    @cached_property
    def visible(self) -> Names:
        """The mistakes whose variants would all be visible on their own.

        The numbers of a variant must differ from the right numbers and, if the observation is right
        within its bound, from the observation too.
        """
        numbers = self._observed if self.is_right else self._expected
        visible: set[TermMistake] = set()
        hidden: set[TermMistake] = set()
        for one in self._of_terms:
            totals = self._expected - one.numbers[0] + one.numbers
            sizes = self._magnitude - one.magnitude[0] + one.magnitude
            same = self._are_close(totals, sizes, numbers)
            hidden.update(one.names(one.invisible))
            for place in range(1, len(same)):
                names, *together = one.parts(place)
                if not together:
                    (hidden if same[place] else visible).update(names)
        return frozenset(visible - hidden)

    @property
    def contradicted(self) -> Names:
        """The mistakes that are absent, if the observation is right or explained."""
        return self.contradicted_by(self.explanations)

    def contradicted_by(self, explanations: Iterable[Iterable[Names]]) -> Names:
        """The mistakes that are absent, given the explanations of the observation."""
        explaining = frozenset[TermMistake]().union(*chain.from_iterable(explanations))
        if not self.is_right and all(_kind(name) is Kind.COUNT for name in explaining):
            return frozenset()
        hidden = {name.term for name in explaining if _kind(name) is Kind.ABSENT}
        return frozenset(name for name in self.visible - explaining if name.term not in hidden)

    @cached_property
    def _tokens(self) -> Integers | slice:
        """Representative tokens: all of a small step, the extreme ones of a large step's parts.

        Every known mistake treats the tokens of a sample in the same rank and micro-batch alike.
        """
        measurement, context = self.measurement, self.measurement.context
        if not measurement.is_per_token or len(context.step.mask) <= MANY:
            return slice(None)
        part, placement = 2 * context.sample + context.step.mask, context.placement
        if placement is not None:
            for place in (placement.dp_rank, placement.cp_rank, placement.micro_batch):
                part = part * (place.max() + 1) + place
        for term in measurement.terms:  # equal factors stay equal under every mistake
            factor = np.unique(term.factors, return_inverse=True)[1]
            part = part * (factor.max() + 1) + factor
        order = np.lexsort((measurement.observed, part))
        ends = np.flatnonzero(np.diff(part[order], prepend=-1, append=-1))
        extremes: Integers = np.unique(order[[*ends[:-1], *(ends[1:] - 1)]])
        return extremes

    @cached_property
    def _observed(self) -> Values:
        return self.measurement.observed[self._tokens]

    @cached_property
    def _expected(self) -> Values:
        return self.measurement.expected[self._tokens]

    @cached_property
    def _magnitude(self) -> Values:
        return self.measurement.magnitude[self._tokens]

    @cached_property
    def _others(self) -> Values:
        size = self.measurement.observed.shape
        return np.broadcast_to(self.measurement.others, size)[self._tokens]

    @cached_property
    def _of_terms(self) -> list[Alternatives]:
        return [self._alternatives(term) for term in self.measurement.terms]

    def _alternatives(self, term: LossTerm) -> Alternatives:
        """The numbers of the right term, and the numbers of the term with each known mistake."""
        rounding = np.broadcast_to(term.rounding, term.factors.shape)[self._tokens]
        known: list[Prediction] = []
        numbers, magnitudes = [], []
        for one in self._known(term):
            products = one.products(term)[self._tokens]
            sizes = np.abs(products) + np.abs(one.weights[self._tokens]) * rounding
            known.append(replace(one, weights=NO_NUMBERS, order=len(known)))
            numbers.append(self.measurement.reduced(products))
            magnitudes.append(self.measurement.reduced(sizes))
        scale = float(magnitudes[0].max(initial=0.0)) or 1.0
        rounded = np.round(np.stack(numbers) / scale, DIGITS) + 0.0
        same: dict[tuple[tuple[str, ...], bytes], list[int]] = {}
        for place, one in enumerate(known):
            same.setdefault((one.together, rounded[place].tobytes()), []).append(place)
        first = [places[0] for places in same.values()]
        right, *wrong = same.values()
        return Alternatives(
            term,
            [[], *([known[place] for place in places] for places in wrong)],
            [known[place] for place in right[1:]],
            np.stack([numbers[place] for place in first]),
            np.stack([magnitudes[place] for place in first]),
        )

    def _known(self, term: LossTerm) -> Iterator[Prediction]:
        """Yield the prediction of the right term, then those of every known mistake."""
        context, measurement = term.context, self.measurement
        yield Prediction(name="", weights=context.expected)
        if measurement.is_per_token:
            gone, hidden = (
                np.equal(one, 0) for one in (measurement.observed, measurement.expected)
            )
            firsts = slices_without_first(context, (gone, hidden))
            moved = misaligned(term, self._shifts, measurement.derivatives)
            yield from chain(predictions(context), shares(context), firsts, moved)
            absent = "term_without_gradient"
        else:
            moved = misaligned_by_padding(term, predictions(context))
            yield from chain(predictions_of_sums(context), slices_without_first(context), moved)
            absent = "nothing_reported" if len(measurement.terms) == 1 else "term_left_out"
        yield from predictions_of_factors(term)
        yield Prediction(name=absent, weights=np.zeros_like(context.expected))

    @cached_property
    def _shifts(self) -> Integers | None:
        """The shifts of log-probabilities in positions, if they explain the mismatch: [N]."""
        return shifts_of(self.measurement)

    def _places(self, factor: float = 1.0) -> Iterator[Integers]:
        """Yield the choices of alternatives whose numbers equal the observation / ``factor``."""
        of_terms, observed = self._of_terms, self._observed / factor
        # There are thousands of choices; comparing the largest number alone discards nearly all.
        largest = [self._magnitude.argmax()]
        numbers = _sums([one.numbers[:, largest] for one in of_terms])
        magnitude = _sums([one.magnitude[:, largest] for one in of_terms]) + self._others[largest]
        places = np.argwhere(self._are_close(numbers, magnitude, observed[largest]))
        few = np.unique(np.linspace(0, len(observed) - 1, FEW).astype(int))
        for place in places[self._give(places, observed, few)]:
            if self._give(place[np.newaxis], observed, slice(None)):
                yield place

    def _give(self, places: Integers, observed: Values, some: Integers | slice) -> Mask:
        """Whether each choice, [choices, terms], gives the observed numbers at ``some`` places."""
        chosen = [*zip(self._of_terms, places.T, strict=True)]
        total = np.sum([one.numbers[:, some][place] for one, place in chosen], axis=0)
        size = np.sum([one.magnitude[:, some][place] for one, place in chosen], axis=0)
        return self._are_close(total, size + self._others[some], observed[some])

    def _named(self, chosen: Iterable[Integers]) -> Iterator[list[Names]]:
        """Yield the names of the mistakes of each choice."""
        for places in chosen:
            pairs = zip(self._of_terms, places, strict=True)
            yield [*chain.from_iterable(one.parts(place) for one, place in pairs)]

    def _are_close(self, predicted: Values, magnitude: Values, observed: Values) -> Mask:
        close = np.abs(observed - predicted) <= self.measurement.tolerance * magnitude
        return np.asarray(close.all(axis=-1))

    def _with_a_factor(self) -> Iterator[list[Names]]:
        """Yield explanations by a factor of all terms together with further mistakes."""
        first = self._of_terms[0]
        ratios = first.magnitude.sum(axis=1) / (first.magnitude[0].sum() or 1.0)
        for place in range(1, len(ratios)):
            factors = [name.mistake for name in first.parts(place)[0] if _is_factor(name)]
            if factors:
                on_top = [
                    frozenset(TermMistake.of(term, factor) for factor in factors)
                    for term in self.terms
                ]
                others = self._named(self._places(ratios[place]))
                yield from ([*on_top, *parts] for parts in others if parts)

    def _with_losses(self) -> Iterator[list[Names]]:
        """Yield explanations by a mistake of a single term together with lost tokens.

        If lost tokens alone explain the observation, nothing is yielded, since a further mistake
        could not be seen.
        """
        one, term = self._of_terms[0], self.measurement.terms[0]
        active = np.not_equal(term.products, 0)
        if len(self._of_terms) > 1 or not self.measurement.is_per_token:
            return
        gone = active & np.equal(self.measurement.observed, 0)
        if not gone.any():
            return
        lost = frozenset(
            TermMistake.of(term.metric, name) for name, _ in kinds_of_loss(term, gone, active)
        )
        kept = np.where(gone[self._tokens], 0, one.numbers)
        both = self._are_close(kept, np.abs(kept), self._observed) & kept.any(axis=1)
        if not both[0]:
            yield from ([*one.parts(place), lost] for place in np.flatnonzero(both))

    def _weights_and_derivatives(self) -> Iterator[list[Names]]:
        """Yield wrong weights with a wrong derivative that together explain the observation."""
        if len(self._of_terms) > 1 or not self.measurement.is_per_token:
            return
        one, term = self._of_terms[0], self.measurement.terms[0]
        known = [*self._known(term)][1:]
        weighed = [
            each
            for each in known
            if each.factors is None and each.kind is not Kind.FACTOR and each.weights.any()
        ]
        if not weighed:  # no token is active
            return
        weights = np.stack([each.weights[self._tokens] for each in weighed])
        found: dict[tuple[int, ...], list[Prediction]] = {}
        for derivative in (each for each in known if each.kind is Kind.DERIVATIVE):
            assert derivative.factors is not None
            numbers = weights * derivative.factors[self._tokens]
            close = self._are_close(numbers, np.abs(numbers), self._observed)
            found.setdefault(tuple(np.flatnonzero(close)), []).append(derivative)
        for places, derivatives in found.items():
            if places:
                yield [one.names(weighed[place] for place in places), one.names(derivatives)]


def _sums(of_terms: Sequence[Values]) -> Values:
    """The sums for all combinations of one row per array: [rows of 1st, of 2nd, …, numbers]."""
    total = of_terms[0]
    for rows in of_terms[1:]:
        total = total[..., np.newaxis, :] + rows
    return total


def _kind(name: TermMistake) -> Kind:
    return MISTAKES[name.mistake].kind


def _is_factor(name: TermMistake) -> bool:
    return _kind(name) is Kind.FACTOR
