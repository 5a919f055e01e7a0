"""One term of a loss or of a logged number: the weights of tokens, and the weighted quantity."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from adapters.contract.objective import Metric, Objective
    from conformance.expected.advantages import BatchAdvantages
    from conformance.expected.step_context import StepContext
    from reference.controllers import AdaptiveCoefficient
    from reference.losses.policy_losses import PolicyTokens
    from reference.losses.value_losses import ValueTokens


@dataclass(frozen=True, kw_only=True, eq=False)
class PolicyDerivative:
    """The source of a term whose factors are a policy loss's derivatives by log-probabilities."""

    objective: Objective
    tokens: PolicyTokens


@dataclass(frozen=True, kw_only=True, eq=False)
class PolicyQuantity:
    """The source of a term whose factors are computed from the inputs of a policy loss."""

    of: Callable[[PolicyTokens], NDArray[np.float64]]
    tokens: PolicyTokens


@dataclass(frozen=True, kw_only=True, eq=False)
class ValueDerivative:
    """The source of a term whose factors are a critic's clipped loss's derivatives by values."""

    tokens: ValueTokens


if TYPE_CHECKING:
    Source = (
        PolicyDerivative | PolicyQuantity | ValueDerivative | BatchAdvantages | AdaptiveCoefficient
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class LossTerm:
    """One term of a step's loss or of a logged number: the sum of weight · factor over tokens."""

    metric: Metric | Objective
    """The name of the term. A loss that replaces the policy loss is named after its objective."""

    context: StepContext
    factors: NDArray[np.float64]
    """The number that multiplies the weight of each token: [tokens]."""

    source: Source | None = None
    """The inputs from which factors are computed, if a framework may compute them wrongly."""

    rounding: NDArray[np.float64] | float = 0.0
    """The scale of rounding errors of factors, besides their own size: [tokens]."""

    @cached_property
    def magnitudes(self) -> NDArray[np.float64]:
        """The scale of the rounding error of each product weight · factor: [tokens]."""
        return np.abs(self.products) + self.spare

    @cached_property
    def spare(self) -> NDArray[np.float64]:
        """The excess of `magnitudes` over the absolute values of products: [tokens]."""
        return self.context.expected * self.rounding

    @cached_property
    def hidden(self) -> NDArray[np.bool_]:
        """Tokens whose weight cannot be observed, since their factor is 0: [tokens]."""
        return np.equal(self.factors, 0)

    def weights_of(self, products: NDArray[np.float64]) -> NDArray[np.float64]:
        """The weights, [tokens], given products; the weight of a hidden token is its product."""
        return products / np.where(self.hidden, 1.0, self.factors)

    @cached_property
    def products(self) -> NDArray[np.float64]:
        """The reference's weight · factor of each token: [tokens]."""
        return self.factors * self.context.expected

    @cached_property
    def expected(self) -> float:
        """The reference's value of the term."""
        return math.fsum(self.products)

    @property
    def magnitude(self) -> float:
        """The scale of rounding errors of the whole term."""
        return float(self.magnitudes.sum())

    @property
    def amplification(self) -> NDArray[np.float64]:
        """The factor by which `rounding` enlarges the relative error of each factor: [tokens]."""
        sizes = np.where(self.hidden, 1.0, np.abs(self.factors))
        return 1 + self.rounding / sizes
