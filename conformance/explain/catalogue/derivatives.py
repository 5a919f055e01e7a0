"""Known mistakes in the derivative of a policy loss where ratios of policies are not 1.

Each is the loss's own formula, of `reference.policy_losses`, on wrong ratios or constants, or that
of another loss.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from adapters.contract.formulas import DERIVATIVES
from adapters.contract.objective import CONSTANTS, Objective
from conformance.explain.catalogue.mistake import OPTION_IGNORED, Kind, known
from reference import policy_losses, value_losses

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from reference.loss_constants import LossConstants
    from reference.policy_losses import Derivative, PolicyTokens
    from reference.value_losses import ValueTokens

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
        "correction_left_out": "the ratio of old to rollout policy is ignored",
        "correction_inverted": "the ratio of old to rollout policy is inverted",
        "correction_not_truncated": "the ratio of old to rollout policy is not truncated",
        "correction_averaged": "the correction of a sequence is a mean instead of a product",
        "correction_of_tokens": "token-level corrections are used instead of sequence-level ones",
        "correction_of_sequences": (
            "sequence-level corrections are used instead of token-level ones"
        ),
        "sequences_kept": "sequences whose ratio to the rollout policy is out of bounds are kept",
        "tokens_dropped": "tokens are dropped by their own ratio instead of their sequence's",
        "kept_tokens_not_corrected": (
            "tokens of kept sequences are not multiplied by their ratios"
        ),
        "correction_by_the_new_policy": ("the correction uses the ratio of new to rollout policy"),
    },
    rank=14,
    kind=Kind.DERIVATIVE,
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
        Objective.TIS_TOKEN,
        Objective.TIS_SEQUENCE,
        Objective.SEQUENCE_MASKED,
    }
)
"""Objectives with clipping bounds."""

OF_SEQUENCES = (
    Objective.GSPO,
    Objective.GEO_MEAN,
    Objective.TIS_SEQUENCE,
    Objective.SEQUENCE_MASKED,
)
"""Objectives with a ratio for a whole sequence."""

WITHOUT_RATIOS = (Objective.GPG, Objective.DRO)
"""Objectives whose losses are no multiples of ratios."""


@dataclass(frozen=True, kw_only=True, eq=False)
class _Loss:
    """An objective's loss of some tokens."""

    objective: Objective
    tokens: PolicyTokens
    weights: NDArray[np.float64]

    def having(self, **wrong: object) -> NDArray[np.float64]:
        """The derivative with other values of tokens, [tokens]."""
        return self.derivative(replace(self.tokens, **wrong), CONSTANTS)  # type: ignore[arg-type]

    def under(self, **wrong: float) -> NDArray[np.float64]:
        """The derivative with other constants, [tokens]."""
        return self.derivative(self.tokens, replace(CONSTANTS, **wrong))

    def of(self, other: Derivative) -> NDArray[np.float64]:
        """The derivative of another loss, [tokens]."""
        return other(self.tokens, CONSTANTS)

    @property
    def derivative(self) -> Derivative:
        return DERIVATIVES[self.objective]


def wrong_derivatives(
    objective: Objective,
    tokens: PolicyTokens,
    weights: NDArray[np.float64],
    cp_rank: NDArray[np.int64] | None,
) -> Iterator[tuple[str, NDArray[np.float64]]]:
    """Yield names and derivatives, [tokens], with each mistake that a loss may have.

    ``weights`` are the reference's. ``cp_rank`` is the context-parallel rank that holds each token,
    if it is known.
    """
    loss = _Loss(objective=objective, tokens=tokens, weights=weights)
    if objective not in WITHOUT_RATIOS:
        yield from _of_ratios(loss)
    if objective in CLIPPED:
        yield from _of_clipping(loss)
    yield from _of_loss(loss)
    yield from _of_slices(loss, cp_rank)
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


def _of_ratios(loss: _Loss) -> Iterator[tuple[str, NDArray[np.float64]]]:
    log_ratios = loss.tokens.log_ratios
    yield "ratios_left_out", loss.having(log_ratios=np.zeros_like(log_ratios))
    inverted = loss.having(log_ratios=-log_ratios)
    yield "ratios_inverted", inverted
    yield "ratios_inverted", -inverted  # where the inverted ratio is what is derived


def _of_clipping(loss: _Loss) -> Iterator[tuple[str, NDArray[np.float64]]]:
    low, high = CONSTANTS.clip_low, CONSTANTS.clip_high
    yield "clipping_left_out", loss.under(clip_low=math.inf, clip_high=math.inf)
    yield "clip_bounds_swapped", loss.under(clip_low=high, clip_high=low)
    for bound in (low, high):
        yield "one_clip_bound", loss.under(clip_low=bound, clip_high=bound)


def _of_loss(loss: _Loss) -> Iterator[tuple[str, NDArray[np.float64]]]:
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
        case Objective.TIS_TOKEN | Objective.TIS_SEQUENCE:
            yield from _of_correction(loss)
        case Objective.SEQUENCE_MASKED:
            yield from _of_masked_sequences(loss)


def _of_temperatures(loss: _Loss) -> Iterator[tuple[str, NDArray[np.float64]]]:
    positive, negative = CONSTANTS.positive_temperature, CONSTANTS.negative_temperature
    swapped = loss.under(positive_temperature=negative, negative_temperature=positive)
    yield "temperatures_swapped", swapped
    yield "one_temperature", loss.under(negative_temperature=positive)
    yield "one_temperature", loss.under(positive_temperature=negative)


def _of_penalty(loss: _Loss) -> Iterator[tuple[str, NDArray[np.float64]]]:
    without = loss.under(kl_penalty=0.0)
    yield "penalty_left_out", without
    penalty = loss.having() - without
    undivided = np.divide(penalty, loss.weights, out=penalty.copy(), where=loss.weights > 0)
    yield "penalty_not_divided", without + undivided


def _of_correction(loss: _Loss) -> Iterator[tuple[str, NDArray[np.float64]]]:
    tokens, log_ratios = loss.tokens, loss.tokens.rollout_log_ratios
    yield "correction_left_out", loss.of(policy_losses.ppo)
    yield "correction_inverted", loss.having(rollout_log_ratios=-log_ratios)
    yield "correction_not_truncated", loss.under(truncation=math.inf)
    by_new_policy = loss.having(rollout_log_ratios=log_ratios + tokens.log_ratios)
    yield "correction_by_the_new_policy", by_new_policy
    if loss.objective is Objective.TIS_TOKEN:
        yield "correction_of_sequences", loss.of(policy_losses.tis_sequence)
        return
    yield "correction_of_tokens", loss.of(policy_losses.tis_token)
    yield "masked_tokens_in_ratios", loss.having(mask=np.ones_like(tokens.mask))
    averaged = replace(tokens, rollout_log_ratios=tokens.averaged(log_ratios))
    yield "correction_averaged", policy_losses.tis_token(averaged, CONSTANTS)


def _of_masked_sequences(loss: _Loss) -> Iterator[tuple[str, NDArray[np.float64]]]:
    tokens, log_ratios = loss.tokens, loss.tokens.rollout_log_ratios
    yield "correction_left_out", loss.of(policy_losses.ppo)
    yield "correction_inverted", loss.having(rollout_log_ratios=-log_ratios)
    yield "sequences_kept", loss.under(kept_low=0.0, kept_high=math.inf)
    corrected = loss.of(policy_losses.ppo) * np.exp(log_ratios)
    yield "tokens_dropped", np.where(policy_losses.kept(log_ratios, CONSTANTS), corrected, 0.0)
    of_sequences = policy_losses.kept(tokens.averaged(log_ratios), CONSTANTS)
    yield "kept_tokens_not_corrected", np.where(of_sequences, loss.of(policy_losses.ppo), 0.0)
    yield "masked_tokens_in_ratios", loss.having(mask=np.ones_like(tokens.mask))


def _of_slices(
    loss: _Loss, cp_rank: NDArray[np.int64] | None
) -> Iterator[tuple[str, NDArray[np.float64]]]:
    if loss.objective in OF_SEQUENCES and cp_rank is not None:
        slices = loss.tokens.sequence * (cp_rank.max() + 1) + cp_rank
        yield "ratios_per_cp_slice", loss.having(sequence=slices)


def _within(ratios: NDArray[np.float64], constants: LossConstants) -> NDArray[np.bool_]:
    return np.equal(ratios, policy_losses.truncated(ratios, constants))
