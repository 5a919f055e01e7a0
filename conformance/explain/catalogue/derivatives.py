"""Known mistakes in the derivative of a policy loss where ratios of policies are not 1.

Each is the loss's own formula, of `reference.losses.policy_losses`, on wrong ratios or constants,
or that of another loss.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from adapters.contract.objective import CONSTANTS, CORRECTIONS, OF_SEQUENCES, Objective
from conformance.explain.catalogue.corrections import (
    Loss,
    divided_covariances,
    of_corrections,
    selected,
)
from conformance.explain.catalogue.mistake import OPTION_IGNORED, Kind, known
from reference.losses import policy_losses, value_losses

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from conformance.expected.placement import TokenPlacement
    from reference.losses.constants import LossConstants
    from reference.losses.policy_losses import PolicyTokens
    from reference.losses.value_losses import ValueTokens

known(
    {
        "ratios_left_out": "importance ratios are ignored",
        "ratios_inverted": "importance ratios are inverted",
        "ratios_put_in": "importance ratios and clipping are applied to a loss without them",
        "clipping_left_out": "clipped tokens still have a gradient",
        "clipped_on_both_sides": "tokens are clipped regardless of the sign of their advantage",
        "clipped_tokens_left_out": "tokens whose ratio is clipped have no gradient",
        "clip_bounds_swapped": "the clipping bounds are swapped",
        "one_clip_bound": "one clipping bound is used on both sides",
        "dual_clip_left_out": "losses of negative advantages are not bounded",
        "ratios_of_tokens": "token-level ratios are used instead of sequence-level ones",
        "ratios_of_sequences": "sequence-level ratios are used instead of token-level ones",
        "ratios_multiplied": "the ratio of a sequence is a product instead of a mean",
        "masked_tokens_in_ratios": "sequence-level ratios include masked tokens",
        "ratios_per_cp_slice": "sequence-level ratios are computed per context-parallel slice",
        "temperatures_swapped": "the temperatures of positive and negative advantages are swapped",
        "one_temperature": "one temperature is used for both signs of the advantage",
        "penalty_not_divided": "the penalty on log-ratios is summed but never normalised",
        "penalty_left_out": "the penalty on log-ratios has no gradient",
        "penalty_inverted": "the penalty on log-ratios has the wrong sign",
        "penalty_of_one_sign": "the penalty on log-ratios has the same sign for every token",
    },
    rank=14,
    kind=Kind.DERIVATIVE,
    at_size={
        "penalty_not_divided": (
            "the penalty outweighs the policy loss by the divisor of the mean, such as the number"
            " of tokens"
        ),
    },
)
known(
    {OPTION_IGNORED: "an option is accepted and changes nothing"},
    rank=15,
    kind=Kind.DERIVATIVE,
)

known(
    {
        "value_clipping_left_out": "a critic's values that moved beyond the bound have a gradient",
        "values_clipped_on_both_sides": (
            "a critic's values that moved beyond the bound never have a gradient"
        ),
        "values_clipped_on_the_wrong_side": (
            "the smaller of a critic's two squared errors is trained instead of the larger"
        ),
        "values_clipped_by_the_policy_bound": (
            "a critic's values are clipped by the bound of the policy's ratios"
        ),
    },
    rank=14,
    kind=Kind.DERIVATIVE,
)

CLIPPED = frozenset(
    {
        Objective.OFF_POLICY,
        Objective.REJECTION_OFF_POLICY,
        Objective.DUAL_CLIP,
        Objective.GSPO,
        Objective.CISPO,
        Objective.CLIP_COV,
        Objective.GEO_MEAN,
        Objective.SEQUENCE_MASKED,
        Objective.COVARIANCE_CLIPPED,
        Objective.OPSM,
        *CORRECTIONS,
    }
) - {Objective.M2PO}
"""Objectives with clipping bounds."""

WITHOUT_RATIOS = (Objective.GPG, Objective.DRO, Objective.REINFORCE_NORMALISED, Objective.M2PO)
"""Objectives whose losses are no multiples of ratios, or whose ratios are 1."""

OF_PROBABILITIES = (Objective.DPPO_TV, Objective.DPPO_KL)
"""Objectives whose inverted ratios may be of no probability."""


def wrong_derivatives(
    objective: Objective,
    tokens: PolicyTokens,
    weights: NDArray[np.float64],
    placement: TokenPlacement | None,
) -> Iterator[tuple[str, NDArray[np.float64]]]:
    """Yield names and derivatives, [tokens], with each mistake that a loss may have.

    ``weights`` are the reference's, ``placement`` is how the step was cut, if it is known.
    """
    loss = Loss(objective=objective, tokens=tokens, weights=weights)
    if objective not in WITHOUT_RATIOS:
        yield from _of_ratios(loss)
    if objective in CLIPPED:
        yield from _of_clipping(loss)
    yield from _of_loss(loss)
    yield from of_corrections(loss, placement)
    yield from _of_slices(loss, placement)
    if loss.derivative is not policy_losses.ppo:
        yield OPTION_IGNORED, loss.of(policy_losses.ppo)


def wrong_value_derivatives(tokens: ValueTokens) -> Iterator[tuple[str, NDArray[np.float64]]]:
    """Yield names and derivatives, [tokens], with each mistake that a critic's loss may have."""
    bound, derivative = CONSTANTS.value_clip, tokens.derivative
    within = tokens.within(bound)
    yield "value_clipping_left_out", derivative
    yield "values_clipped_on_both_sides", np.where(within, derivative, 0.0)
    smaller = within | value_losses.clipped(tokens, bound)
    yield "values_clipped_on_the_wrong_side", np.where(smaller, derivative, 0.0)
    of_policy = value_losses.value_clipped(tokens, CONSTANTS.clip_low)
    yield "values_clipped_by_the_policy_bound", of_policy


def _of_ratios(loss: Loss) -> Iterator[tuple[str, NDArray[np.float64]]]:
    log_ratios = loss.tokens.log_ratios
    yield "ratios_left_out", loss.having(log_ratios=np.zeros_like(log_ratios))
    if loss.objective in OF_PROBABILITIES:
        return
    inverted = loss.having(log_ratios=-log_ratios)
    yield "ratios_inverted", inverted
    yield "ratios_inverted", -inverted  # where the inverted ratio is what is derived


def _of_clipping(loss: Loss) -> Iterator[tuple[str, NDArray[np.float64]]]:
    low, high = CONSTANTS.clip_low, CONSTANTS.clip_high
    yield "clipping_left_out", loss.under(clip_low=math.inf, clip_high=math.inf)
    yield "clip_bounds_swapped", loss.under(clip_low=high, clip_high=low)
    for bound in (low, high):
        yield "one_clip_bound", loss.under(clip_low=bound, clip_high=bound)


def _of_loss(loss: Loss) -> Iterator[tuple[str, NDArray[np.float64]]]:
    """Yield the mistakes of a loss's own."""
    tokens = loss.tokens
    clipped_for_all = np.where(_within(tokens.ratios, CONSTANTS), -tokens.advantages, 0.0)
    match loss.objective:
        case Objective.OFF_POLICY | Objective.REJECTION_OFF_POLICY | Objective.CLIP_COV:
            yield "clipped_on_both_sides", clipped_for_all * tokens.ratios
            yield "ratios_of_sequences", loss.of(policy_losses.gspo)
        case Objective.DUAL_CLIP:
            yield "dual_clip_left_out", loss.of(policy_losses.ppo)
        case Objective.GSPO:
            yield "ratios_of_tokens", loss.of(policy_losses.ppo)
            yield "masked_tokens_in_ratios", loss.having(mask=np.ones_like(tokens.mask))
            active = tokens.summed(np.ones_like(tokens.ratios))
            yield "ratios_multiplied", loss.having(log_ratios=tokens.log_ratios * active)
        case Objective.CISPO:
            yield "clipped_tokens_left_out", loss.of(policy_losses.ppo)
            yield "clipped_tokens_left_out", clipped_for_all * tokens.ratios
        case Objective.SAPO:
            yield from _of_temperatures(loss)
        case Objective.COVARIANCE_PENALISED:
            yield from _of_penalty(loss)
        case Objective.KL_COV:
            without = loss.under(kl_penalty=0.0)
            yield "penalty_of_one_sign", without + CONSTANTS.kl_penalty
            yield from _of_penalty(loss)
        case Objective.GPG:
            yield "ratios_put_in", loss.of(policy_losses.ppo)
        case Objective.DRO:
            yield "penalty_inverted", loss.having(log_ratios=-tokens.log_ratios)
            yield from _of_penalty(loss)
        case Objective.GEO_MEAN:
            yield "masked_tokens_in_ratios", loss.having(mask=np.ones_like(tokens.mask))


def _of_temperatures(loss: Loss) -> Iterator[tuple[str, NDArray[np.float64]]]:
    positive, negative = CONSTANTS.positive_temperature, CONSTANTS.negative_temperature
    swapped = loss.under(positive_temperature=negative, negative_temperature=positive)
    yield "temperatures_swapped", swapped
    yield "one_temperature", loss.under(negative_temperature=positive)
    yield "one_temperature", loss.under(positive_temperature=negative)


def _of_penalty(loss: Loss) -> Iterator[tuple[str, NDArray[np.float64]]]:
    yield "penalty_left_out", loss.under(kl_penalty=0.0)
    yield "penalty_not_divided", _penalty_undivided(loss, loss.having())


def _penalty_undivided(loss: Loss, derivative: NDArray[np.float64]) -> NDArray[np.float64]:
    """A derivative whose penalty is not multiplied by the tokens' weights."""
    without = loss.under(kl_penalty=0.0)
    penalty = derivative - without
    return without + np.divide(penalty, loss.weights, out=penalty.copy(), where=loss.weights > 0)


def two_wrong(
    objective: Objective, tokens: PolicyTokens, weights: NDArray[np.float64]
) -> Iterator[tuple[str, NDArray[np.float64], tuple[str, ...]]]:
    """Yield names and derivatives, [tokens], with two mistakes, and the names of the second.

    One line makes both: advantages are divided for the loss's mean before the loss has them.
    """
    if objective is Objective.COVARIANCE_PENALISED:
        loss = Loss(objective=objective, tokens=tokens, weights=weights)
        chosen = selected(loss, divided_covariances(loss))
        undivided = _penalty_undivided(loss, chosen)
        yield "penalty_not_divided", undivided, ("divided_advantages_compared",)


def _of_slices(
    loss: Loss, placement: TokenPlacement | None
) -> Iterator[tuple[str, NDArray[np.float64]]]:
    if loss.objective in OF_SEQUENCES and placement is not None:
        slices = loss.tokens.sequence * (placement.cp_rank.max() + 1) + placement.cp_rank
        yield "ratios_per_cp_slice", loss.having(sequence=slices)


def _within(ratios: NDArray[np.float64], constants: LossConstants) -> NDArray[np.bool_]:
    return np.equal(ratios, policy_losses.truncated(ratios, constants))
