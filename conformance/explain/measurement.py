"""The numbers that one rank observed in one step, with the expected terms and observed weights."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from conformance.expected.step_context import StepContext
    from conformance.expected.term import LossTerm
    from reference.arrays import Mask, Values


@dataclass(frozen=True, kw_only=True, eq=False)
class Measurement:
    """Numbers that a rank observed in a step: the sum of terms, for each token or over all tokens.

    ``observed`` is [tokens] or, for a sum over all tokens, [1]. ``tolerance`` is relative to the
    sum of the terms' magnitudes. The numbers of tokens times ``derivatives`` are the gradient.
    """

    terms: Sequence[LossTerm]
    observed: Values
    tolerance: float
    is_per_token: bool = True
    derivatives: Values | float = 1.0
    others: Values | float = 0.0
    """The magnitudes of subtracted terms, whose rounding errors remain: [numbers]."""

    bounds: tuple[float, float] | None = None
    """The bounds to which a sum over all tokens is clipped before it is observed."""

    @property
    def context(self) -> StepContext:
        """The context of the first term."""
        return self.terms[0].context

    @cached_property
    def expected(self) -> Values:
        """The right numbers: [numbers]."""
        return self.reduced(np.sum([term.products for term in self.terms], axis=0))

    @cached_property
    def magnitude(self) -> Values:
        """The sum of the terms' magnitudes, which is the scale of rounding errors: [numbers]."""
        of_terms = np.sum([term.magnitudes for term in self.terms], axis=0)
        return self.reduced(of_terms) + self.others

    def reduced(self, products: Values) -> Values:
        """The numbers, [numbers], given the products weight · factor of all tokens, [tokens]."""
        if self.is_per_token:
            return products
        total: Values = products.sum(keepdims=True)
        return total if self.bounds is None else total.clip(*self.bounds)

    def of_term(self, term: LossTerm) -> Measurement:
        """The measurement of one term, from which all other terms are subtracted as expected."""
        return replace(
            self,
            terms=[term],
            observed=self.observed - (self.expected - self.reduced(term.products)),
            others=self.magnitude - self.reduced(term.magnitudes),
        )

    def is_given_by(self, weights: Values) -> bool:
        """Whether weights, [tokens], of the only term explain the numbers of visible tokens."""
        [term] = self.terms
        products = weights * term.factors
        magnitude = np.abs(products) + np.abs(weights) * term.rounding
        off = np.abs(self.observed - self.reduced(products))
        close = off <= self.tolerance * (self.reduced(magnitude) + self.others)
        return bool(close[~term.hidden].all() if self.is_per_token else close.all())


@dataclass(frozen=True, eq=False)
class ObservedWeights:
    """The weights of tokens, given a measurement of a single term."""

    measurement: Measurement
    elsewhere: bool = False
    """Whether at least one rank observed weights of the step, even if this rank observed none."""

    @property
    def term(self) -> LossTerm:
        """The only term."""
        return self.measurement.terms[0]

    @property
    def context(self) -> StepContext:
        """The term's context."""
        return self.term.context

    @cached_property
    def observed(self) -> Values:
        """The observed weights; for a token whose factor is 0, its product: [tokens]."""
        return self.term.weights_of(self.measurement.observed)

    @property
    def expected(self) -> Values:
        """The reference's weights: [tokens]."""
        return self.context.expected

    @cached_property
    def active(self) -> Mask:
        """Whether each token's expected weight is not 0 and can be observed: [tokens]."""
        return np.not_equal(self.expected, 0) & ~self.term.hidden

    @property
    def hidden_have_gradient(self) -> bool:
        """Whether a token has a gradient although the derivative of its loss is 0."""
        return bool(self.observed[self.term.hidden].any())

    @cached_property
    def ratios(self) -> Values:
        """The ratios of observed to expected weights of the active tokens."""
        return self.observed[self.active] / self.expected[self.active]

    @cached_property
    def tolerance(self) -> float:
        """The largest bound on the relative error of any active token's weight."""
        own = np.abs(self.term.products)[self.active]
        others = np.broadcast_to(self.measurement.others, self.expected.shape)[self.active]
        return self.measurement.tolerance * float((1 + others / own).max(initial=1.0))

    @cached_property
    def middle(self) -> float:
        """The median of the ratios."""
        return float(np.median(self.ratios))

    @cached_property
    def common_ratio(self) -> float | None:
        """The ratio that all active tokens share; None if their ratios differ or are 0."""
        middle = self.middle
        amplification = np.broadcast_to(self.term.amplification, self.expected.shape)[self.active]
        bound = 2 * self.tolerance * amplification * abs(middle)
        return middle if middle and (np.abs(self.ratios - middle) <= bound).all() else None
