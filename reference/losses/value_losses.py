"""The derivative of a critic's clipped squared error with respect to a token's value, in float64.

With a value v, the value v_old that was predicted before training, a return R and a bound ε,

    value_clipped   max((v - R)², (v' - R)²), where v' = v_old + clip(v - v_old, -ε, ε)

which is the value loss of PPO's first implementation (OpenAI Baselines, ``ppo2/model.py``; Engstrom
et al., Implementation Matters in Deep Policy Gradients, arXiv:2005.12729, section 3).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from reference.arrays import Mask, Values


@dataclass(frozen=True, kw_only=True, eq=False)
class ValueTokens:
    """The inputs of a critic's loss, for every response token: [tokens] each."""

    values: Values
    old_values: Values
    returns: Values

    @property
    def errors(self) -> Values:
        """(v - R)², the loss without clipping."""
        squared: Values = (self.values - self.returns) ** 2
        return squared

    @property
    def derivative(self) -> Values:
        """2·(v - R), the derivative without clipping."""
        return 2 * (self.values - self.returns)

    def within(self, bound: float) -> Mask:
        """Whether a value is at most the bound away from the old value."""
        return np.asarray(np.abs(self.values - self.old_values) <= bound)

    def bounded(self, bound: float) -> Values:
        """v', the value that has moved by the bound at most."""
        return self.old_values + np.clip(self.values - self.old_values, -bound, bound)


def clipped(tokens: ValueTokens, bound: float) -> Mask:
    """Whether the loss uses the bounded value, whose derivative is 0."""
    of_value = (tokens.values - tokens.returns) ** 2
    of_bounded = (tokens.bounded(bound) - tokens.returns) ** 2
    return np.asarray(~tokens.within(bound) & (of_bounded > of_value))


def value_clipped(tokens: ValueTokens, bound: float) -> Values:
    """2·(v - R), 0 if clipped."""
    return np.where(clipped(tokens, bound), 0.0, tokens.derivative)
