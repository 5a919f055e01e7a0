"""What was observed of a step or of a logged number, and whether a prediction fits it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from conformance.explain.catalogue.predictions import predictions_of_factors

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from conformance.expected.step_context import StepContext
    from conformance.expected.term import LossTerm
    from conformance.explain.catalogue.mistake import Prediction

FEW = 16
"""Tokens by which predictions are sorted out before all tokens are looked at."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Evidence:
    """Observed weights of a step, [tokens], and the bound on their relative error."""

    context: StepContext
    observed: NDArray[np.float64]
    tolerance: float
    elsewhere: bool = False
    """Whether other ranks observed weights, even if this one observed none."""

    amplification: NDArray[np.float64] | float = 1.0
    """By what the rounding error of each weight may be larger than the bound: [tokens]."""

    hidden: NDArray[np.bool_] | None = None
    """Tokens whose weight cannot be seen, as their loss has no derivative; their gradient is given
    instead: [tokens]; None if there are none."""

    wrong_factors: Sequence[Prediction] = ()
    """Predictions of what is left instead of weights where factors are wrong: [tokens]."""

    @classmethod
    def of_term(
        cls, term: LossTerm, gradients: NDArray[np.float64], tolerance: float, *, elsewhere: bool
    ) -> Evidence:
        """What the gradients of a loss, [tokens], say of its only term."""
        return cls(
            context=term.context,
            observed=term.weights_of(gradients),
            tolerance=tolerance,
            amplification=term.amplification,
            elsewhere=elsewhere,
            hidden=term.hidden,
            wrong_factors=[
                replace(each, weights=term.weights_of(each.products(term)))
                for each in predictions_of_factors(term)
            ],
        )

    @property
    def expected(self) -> NDArray[np.float64]:
        """The reference's weights: [tokens]."""
        return self.context.expected

    @cached_property
    def active(self) -> NDArray[np.bool_]:
        """Tokens whose expected weight is not 0, and can be seen."""
        weigh = np.not_equal(self.expected, 0)
        return weigh if self.hidden is None else weigh & ~self.hidden

    @property
    def hidden_have_gradient(self) -> bool:
        """Whether a token has a gradient whose loss has no derivative."""
        return self.hidden is not None and bool(self.observed[self.hidden].any())

    @cached_property
    def observed_of_active(self) -> NDArray[np.float64]:
        """The observed weights of the active tokens."""
        return self.observed[self.active]

    @cached_property
    def ratios(self) -> NDArray[np.float64]:
        """Observed / expected weights of the active tokens."""
        return self.observed_of_active / self.expected[self.active]

    @cached_property
    def common_ratio(self) -> float | None:
        """The ratio that all active tokens share, None if they differ or it is 0."""
        middle = float(np.median(self.ratios))
        same = np.abs(self.ratios - middle) <= 2 * self.tolerances[self.active] * abs(middle)
        return middle if middle and same.all() else None

    @cached_property
    def tolerances(self) -> NDArray[np.float64]:
        """The bound on the relative error of each weight: [tokens]."""
        return np.broadcast_to(self.tolerance * self.amplification, self.expected.shape)

    def matches(self, predicted: NDArray[np.float64]) -> bool:
        """Whether a prediction fits every active token."""
        seen = np.flatnonzero(self.active)
        some = seen[:: max(len(seen) // FEW, 1)]  # most predictions fail at the first
        return self._are_close(predicted, some) and self._are_close(predicted, seen)

    def is_all_of(self, predicted: NDArray[np.float64]) -> bool:
        """Whether a prediction fits every token, those that are to weigh nothing too."""
        return self._are_close(predicted, np.arange(len(predicted)))

    def is_close_to(self, predicted: NDArray[np.float64]) -> bool:
        """Whether a prediction fits every token, those that are hidden too."""
        return self._are_close(predicted, np.flatnonzero(self.expected))

    def _are_close(self, predicted: NDArray[np.float64], tokens: NDArray[np.int64]) -> bool:
        wanted = predicted[tokens]
        off = np.abs(self.observed[tokens] - wanted)
        return bool((off <= self.tolerances[tokens] * np.abs(wanted)).all())


@dataclass(frozen=True, kw_only=True, eq=False)
class ReportedEvidence:
    """One term of a logged number as reported, and the bound on its relative error."""

    term: LossTerm
    reported: float
    tolerance: float
    others: float = 0.0
    """Magnitude of the terms that were subtracted, which adds to the bound."""

    def matches(self, predicted: NDArray[np.float64]) -> bool:
        """Whether predicted weights give the number within the bound."""
        return self.is_sum_of(predicted * self.term.factors)

    def is_sum_of(self, products: NDArray[np.float64]) -> bool:
        """Whether products of weights and factors give the number within the bound."""
        magnitudes = np.abs(products) + self.term.spare
        bound = self.tolerance * (float(magnitudes.sum()) + self.others)
        return abs(math.fsum(products) - self.reported) <= bound
