"""Bounds on rounding errors, from which every tolerance is derived.

Notation and lemma are Higham's (Accuracy and Stability of Numerical Algorithms, 2nd ed., lemma
3.1): with unit roundoff u, a chain of k products and quotients has a relative error of at most
gamma(k, u) = k·u / (1 - k·u). The error of a sum of n terms, relative to the sum of their absolute
values, has the same bound with k = n - 1.
"""

from __future__ import annotations

UNIT_ROUNDOFF = {
    "float64": 2.0**-53,
    "float32": 2.0**-24,
    "float16": 2.0**-11,
    "bfloat16": 2.0**-8,
}
"""Largest relative error of one rounding to nearest."""

WEIGHT_OPERATIONS = 8
"""Roundings on the longest path from 1 to a token weight in a conforming framework.

The denominator's product (1) and quotient (1); a loss scaled by the number of micro-batches and
divided by it again (2); scaled by the data- and context-parallel sizes and averaged over the ranks
again (2); the product with the token loss (1); the train step's final divisor (1). Counts of tokens
are exact up to 1/u, and adding zeros from other micro-batches and ranks does not round.
"""

TERM_OPERATIONS = 8
"""Roundings of a logged quantity itself, and of summed loss terms.

An exponential (2), the bound it is clipped to (1) and the product with the advantage (1); the
product of a term with its coefficient (1) and two sums of terms (2); one to spare.
"""

LOSS_DTYPE = "float32"
"""Dtype of token losses and of everything computed from them, even if parameters are narrower:
every framework computes log-probabilities in it (SkyRL's ``logprobs_from_logits``, Megatron's
``fused_vocab_parallel_cross_entropy``)."""

PARAMETER_OPERATIONS = 3
"""Roundings of a weight to the parameters' dtype, if that is narrower than the losses' dtype.

The parameter's gradient is stored (1), averaged over the ranks (1) and divided by the train step's
final divisor (1).
"""

SAFETY_FACTOR = 2
"""Allows a framework twice as many roundings as the longest known path."""


def gamma(operations: int, unit_roundoff: float) -> float:
    """Bound on the relative error of a chain of roundings.

    Raises:
        ValueError: the chain is so long that no bound exists.
    """
    product = operations * unit_roundoff
    if product >= 1:
        raise ValueError(
            f"{operations} roundings of {unit_roundoff:g} each leave no correct digit;"
            " use a wider dtype"
        )
    return product / (1 - product)


def weight_bound(dtype: str, summands: int = 0, terms: int = 0) -> float:
    """Bound on the relative error of a token weight, with parameters in ``dtype``.

    ``summands`` is the number of weights that are summed for ratios of whole sequences (GSPO,
    arXiv:2507.18071), ``terms`` the number of loss terms whose gradients are summed.
    """
    of_losses = _loss_dtype(dtype)
    chain = SAFETY_FACTOR * WEIGHT_OPERATIONS + summands + terms
    bound = gamma(chain, UNIT_ROUNDOFF[of_losses])
    if of_losses == dtype:
        return bound
    return bound + gamma(SAFETY_FACTOR * PARAMETER_OPERATIONS + terms, UNIT_ROUNDOFF[dtype])


def ratio_bound(dtype: str, tokens: int, condition: float = 1.0) -> float:
    """Bound on the relative error of a weight times the derivative of an off-policy loss.

    There are two ratios (`TERM_OPERATIONS` each), possibly sums or products over a sequence of
    ``tokens``. ``condition`` is the condition number of the derivative with respect to a ratio.
    """
    roundings = SAFETY_FACTOR * 2 * TERM_OPERATIONS + tokens
    return weight_bound(dtype, tokens) + condition * gamma(
        roundings, UNIT_ROUNDOFF[_loss_dtype(dtype)]
    )


def statistic_bound(dtype: str, numbers: int) -> float:
    """Bound on the error of a mean or deviation of some numbers, relative to the largest of them.

    The sum (one rounding for each), its division, a difference and the root of a sum of squares
    (`TERM_OPERATIONS`). The bound does not hold for a mean of squares minus the square of the mean,
    whose error is relative to the squares.
    """
    return gamma(SAFETY_FACTOR * (numbers + TERM_OPERATIONS), UNIT_ROUNDOFF[_loss_dtype(dtype)])


def reported_bound(tokens: int, dtype: str, operations: int = 0) -> float:
    """Bound on the error of a step scalar, with parameters in ``dtype``, relative to Σ|w · loss|.

    The sum has one term for each of ``tokens``, rounded as weights are, in any order.
    ``operations`` is the number of roundings in each loss.
    """
    roundings = SAFETY_FACTOR * (WEIGHT_OPERATIONS + operations) + tokens
    return gamma(roundings, UNIT_ROUNDOFF[_loss_dtype(dtype)])


def _loss_dtype(dtype: str) -> str:
    """The dtype of losses, given that of the parameters."""
    return dtype if UNIT_ROUNDOFF[dtype] < UNIT_ROUNDOFF[LOSS_DTYPE] else LOSS_DTYPE
