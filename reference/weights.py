"""Token weights in float64.

A step scalar is linear in the token losses, so its token weights describe it completely::

    w[i, t] = d(step scalar) / d(token loss of token t in sample i)

For N samples, P prompt groups, M active tokens, M_i of them in sample i and M_g in group g, an
active token weighs

    sample_mean  1 / (N · M_i)      mean over samples of the sample's token mean
    prompt_mean  1 / (P · M_g)      mean over prompt groups of the group's token mean
    token_mean   1 / M              mean over all tokens of the step
    constant     1 / (L · N)        masked sum over L, mean over samples

and an inactive one 0. The first three are one formula, the mean over *units* of the unit's token
mean, with samples, groups or the whole step as units. (ScaleRL, arXiv:2510.13786, section 3.2;
constant: Dr. GRPO, arXiv:2503.20783, eq. 2; composed with the mean over samples as in the table of
slime's pull request 2090.)

All active tokens of a sample weigh the same, so one number per sample is enough.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from reference.aggregation import (
    DEFAULT_CONVENTIONS,
    Aggregation,
    Conventions,
    DenominatorMask,
    EmptyUnits,
    Mode,
    SampleUnit,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from reference.step import Step


def sample_weights(
    step: Step, aggregation: Aggregation, conventions: Conventions = DEFAULT_CONVENTIONS
) -> NDArray[np.float64]:
    """Weight of an active token of each sample, correctly rounded: float64 [N].

    The weight is 0 for a sample whose unit has no token that denominators count. The only rounding
    is that of the quotient, as long as units · tokens < 2^53.
    """
    unit = unit_of_sample(step, aggregation.mode, conventions)
    tokens = np.bincount(unit, weights=counted_tokens(step, conventions))
    units = len(tokens) if conventions.empty_units is EmptyUnits.COUNTED else (tokens > 0).sum()
    if aggregation.divisor is not None:
        quotient = float(1 / (Fraction(aggregation.divisor) * max(int(units), 1)))
        return np.where(tokens > 0, quotient, 0.0)[unit]
    weights = np.zeros(len(tokens), np.float64)
    np.divide(1.0, units * tokens, out=weights, where=tokens > 0)
    return weights[unit]


def token_weights(
    step: Step, aggregation: Aggregation, conventions: Conventions = DEFAULT_CONVENTIONS
) -> NDArray[np.float64]:
    """Weight of every response token: float64, flat like ``step.mask``."""
    per_sample = sample_weights(step, aggregation, conventions)
    return np.repeat(per_sample, step.response_lengths) * step.mask


def counted_tokens(step: Step, conventions: Conventions) -> NDArray[np.int64]:
    """Number of tokens of each sample that denominators count: [N]."""
    modified = conventions.denominator_mask is DenominatorMask.MODIFIED
    return step.active_tokens if modified else step.original_tokens


def unit_of_sample(step: Step, mode: Mode, conventions: Conventions) -> NDArray[np.int64]:
    """Index of the unit, from 0, that each sample belongs to: int64 [N]."""
    if mode is Mode.TOKEN_MEAN:
        return np.zeros(step.size, np.int64)
    if mode is Mode.PROMPT_MEAN:
        identifiers = step.groups
    elif conventions.sample_unit is SampleUnit.ROLLOUT:
        identifiers = step.rollouts
    else:
        return np.arange(step.size)
    return np.unique(identifiers, return_inverse=True)[1]


def router_coefficient(
    positions: NDArray[np.int64], slices: int, counted: float | None = None
) -> float:
    """The coefficient of a router loss in a step, divided by the configured coefficient.

    ``positions`` has the number of positions of each micro-batch on each rank, padding included.
    The losses of a mixture of experts' router are means over positions (load balancing: Switch
    Transformer, arXiv:2101.03961; z-loss: ST-MoE, arXiv:2202.08906); each of ``slices``
    context-parallel ranks has a share. Megatron-Core averages the losses over micro-batches and
    data-parallel ranks, which gives 1. With a loss per token it multiplies a rank's share by the
    rank's positions instead, and divides all gradients by the ``counted`` tokens (its
    transformer/moe/router.py and distributed/finalize_model_grads.py).
    """
    return 1.0 if counted is None else float(positions.sum() / (slices * counted))
