"""Known mistakes of policy losses where ratios of policies are not 1, as operators on their parts.

A loss is a formula of its tokens and constants (`reference.losses`). A mistake leaves a part out,
inverts it, ignores a bound, or takes ratios, masks and means of another scope. The formula of the
loss itself tells what comes of that, so that a new loss needs no mistakes of its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from adapters.contract.batch.formulas import DERIVATIVES
from adapters.contract.objective import CONSTANTS, NORMALISED, OF_SEQUENCES, SELECTING, Objective
from conformance.explain.catalogue.mistake import OPTION_IGNORED, Kind, known
from reference.losses import corrections, policy_losses, value_losses

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from conformance.expected.placement import TokenPlacement
    from reference.losses.constants import LossConstants
    from reference.losses.policy_losses import PolicyTokens
    from reference.losses.value_losses import ValueTokens

    Values = NDArray[np.float64]
    Wrong = tuple[str, Values]

RATIOS = {
    "ratios": ("log_ratios", "importance ratios"),
    "correction": ("rollout_log_ratios", "ratios of old to rollout policy"),
}
"""The field of `PolicyTokens` with the ratios that a mistake is about, and their name."""

OPERATORS = {
    "left_out": "are ignored",
    "inverted": "are inverted",
    "averaged": "are averaged over sequences",
    "multiplied": "are multiplied over sequences",
}

SCOPES = {
    "per_micro_batch": "their micro-batch",
    "per_rank": "their data-parallel rank",
    "per_micro_batch_of_all_ranks": "one micro-batch on all ranks",
}
"""The parts of a step that tokens may be compared or averaged in."""

COMPARING = {
    **dict.fromkeys(NORMALISED, "normalised"),
    **dict.fromkeys(SELECTING, "selected"),
}
"""The verb for a loss that looks at all tokens of a step."""

known(
    {
        "clipping_left_out": "clipped tokens still have a gradient",
        "dual_clip_left_out": "losses of negative advantages are not bounded",
        "correction_not_truncated": "the ratio of old to rollout policy is not truncated",
        "nothing_dropped": "tokens and sequences whose ratios are out of bounds are kept",
        "penalty_left_out": "the penalty on log-ratios has no gradient",
        "penalty_inverted": "the penalty on log-ratios has the wrong sign",
        "constants_swapped": "the constants of positive and negative advantages are swapped",
        "one_constant": "one constant is used for positive and negative advantages",
        **{
            f"{part}_{operator}": f"{ratios} {words}"
            for part, (_, ratios) in RATIOS.items()
            for operator, words in OPERATORS.items()
        },
        "ratios_of_tokens": "token-level ratios are used instead of sequence-level ones",
        "ratios_per_cp_slice": "sequence-level ratios are computed per context-parallel slice",
        "masked_tokens_in_ratios": "ratios of sequences and means include masked tokens",
        **{
            f"normalised_{scope}": (
                f"corrections are divided by the mean of {words} instead of that of the step"
            )
            for scope, words in SCOPES.items()
        },
        **{
            f"selected_{scope}": f"tokens are selected within {words} instead of the step"
            for scope, words in SCOPES.items()
        },
        "clipped_on_both_sides": (
            "tokens are clipped or dropped whatever the sign of their advantage or error"
        ),
        "mask_inverted": "the mask is inverted: kept tokens are dropped, and dropped ones kept",
        "other_divergence": "the bound is on another divergence than the configured one",
        "values_clipped_on_the_wrong_side": (
            "the smaller of a critic's two squared errors is trained instead of the larger"
        ),
        "values_clipped_by_the_policy_bound": (
            "a critic's values are clipped by the bound of the policy's ratios"
        ),
        "penalty_not_divided": "the penalty on log-ratios is summed but never normalised",
        "divided_advantages_compared": (
            "tokens are selected by advantages that the loss normaliser has already scaled"
        ),
        "dropped_tokens_not_counted_per_micro_batch": (
            "each micro-batch is divided by the number of its kept tokens, but weighted by all of"
            " its tokens"
        ),
    },
    rank=14,
    kind=Kind.DERIVATIVE,
    at_size={
        "penalty_not_divided": (
            "the penalty outweighs the policy loss by the divisor of the mean, such as the number"
            " of tokens"
        ),
        "dropped_tokens_not_counted_per_micro_batch": (
            "each micro-batch is divided by the share of its tokens that are kept"
        ),
    },
)
known(
    {OPTION_IGNORED: "an option is accepted and changes nothing"},
    rank=15,
    kind=Kind.DERIVATIVE,
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Loss:
    """The loss of an objective with its tokens, whose weights are the reference's: [tokens]."""

    objective: Objective
    tokens: PolicyTokens
    weights: Values

    def derivative(self, constants: LossConstants) -> Values:
        """The derivative with other constants: [tokens]."""
        return DERIVATIVES[self.objective](self.tokens, constants)

    def having(self, **wrong: object) -> Values:
        """The derivative with other values of tokens: [tokens]."""
        return replace(self, tokens=replace(self.tokens, **wrong)).right  # type: ignore[arg-type]

    @property
    def right(self) -> Values:
        """The derivative: [tokens]."""
        return self.derivative(CONSTANTS)

    @property
    def penalty(self) -> Values:
        """The part of the derivative that is a penalty on log-ratios: [tokens]."""
        return self.right - self.derivative(UNPENALISED)


UNPENALISED = replace(CONSTANTS, kl_penalty=0.0)

BOUNDS = (
    ("clip_low", "clip_high"),
    ("variation_low", "variation_high"),
    ("divergence_low", "divergence_high"),
)
"""Constants that bound how far a probability may fall, and how far it may rise."""

OF_SIGNS = (*BOUNDS, ("negative_temperature", "positive_temperature"))
"""Pairs of constants for negative and for positive advantages; a loss uses one pair."""


def _wrong_constants() -> Iterator[tuple[str, LossConstants]]:
    def having(**wrong: float) -> LossConstants:
        return replace(CONSTANTS, **wrong)

    yield "clipping_left_out", having(**{name: math.inf for pair in BOUNDS for name in pair})
    yield "dual_clip_left_out", having(dual_clip=math.inf)
    yield "correction_not_truncated", having(truncation=math.inf)
    unbounded = having(kept_low=0.0, kept_high=math.inf, sequence_divergence=math.inf)
    yield "nothing_dropped", replace(unbounded, outlier_low=0.0, outlier_high=math.inf)
    yield "penalty_left_out", UNPENALISED
    yield "penalty_inverted", having(kl_penalty=-CONSTANTS.kl_penalty)
    negative = {name: getattr(CONSTANTS, pair[0]) for pair in OF_SIGNS for name in pair}
    positive = {name: getattr(CONSTANTS, pair[1]) for pair in OF_SIGNS for name in pair}
    swapped = negative | {one: positive[one] for one, _ in OF_SIGNS}
    yield "constants_swapped", having(**swapped)
    yield "one_constant", having(**negative)
    yield "one_constant", having(**positive)


WRONG_CONSTANTS = (*_wrong_constants(),)


def wrong_derivatives(
    objective: Objective,
    tokens: PolicyTokens,
    weights: Values,
    placement: TokenPlacement | None,
) -> Iterator[tuple[str, Values, tuple[str, ...]]]:
    """Yield names and derivatives, [tokens], with each mistake that a loss may have.

    Last are the names of mistakes that are made besides. ``weights`` are the reference's,
    ``placement`` is how the step was cut, if it is known. Wrong ratios may be of no probability:
    derivatives that are not finite are left out.
    """
    loss = Loss(objective=objective, tokens=tokens, weights=weights)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        found = [*_wrong_bounds(loss), *_wrong_inputs(loss), *_wrong_masks(loss)]
        if placement is not None:
            found += _wrong_scopes(loss, placement)
    for name, derivative in found:
        if np.isfinite(derivative).all():
            yield name, derivative, ()
    yield from _divided_early(loss)
    if DERIVATIVES[objective] is not policy_losses.ppo:
        yield OPTION_IGNORED, policy_losses.ppo(tokens, CONSTANTS), ()


def _wrong_inputs(loss: Loss) -> Iterator[Wrong]:
    """Yield what comes of wrong ratios and masks."""
    tokens, is_of_sequences = loss.tokens, loss.objective in OF_SEQUENCES
    for part, (name, _) in RATIOS.items():
        ratios = getattr(tokens, name)
        yield f"{part}_left_out", loss.having(**{name: np.zeros_like(ratios)})
        yield f"{part}_inverted", loss.having(**{name: -ratios})
        if not is_of_sequences:
            yield f"{part}_averaged", loss.having(**{name: tokens.averaged(ratios)})
            yield f"{part}_multiplied", loss.having(**{name: tokens.summed(ratios)})
    if is_of_sequences:  # a correction is a product over a sequence, and a ratio a geometric mean
        sizes = np.maximum(tokens.summed(np.ones(len(tokens.mask))), 1)
        averaged = tokens.rollout_log_ratios / sizes
        yield "correction_averaged", loss.having(rollout_log_ratios=averaged)
        yield "ratios_multiplied", loss.having(log_ratios=tokens.log_ratios * sizes)
    # Where the inverted ratio is what is derived:
    yield "ratios_inverted", -loss.having(log_ratios=-tokens.log_ratios)
    yield "ratios_of_tokens", loss.having(sequence=np.arange(len(tokens.mask)))
    yield "masked_tokens_in_ratios", loss.having(mask=np.ones_like(tokens.mask))


def _wrong_bounds(loss: Loss) -> Iterator[Wrong]:
    """Yield what comes of wrong bounds and penalties."""
    for name, constants in WRONG_CONSTANTS:
        yield name, loss.derivative(constants)
    of_other_sign = loss.having(advantages=-loss.tokens.advantages)
    yield "clipped_on_both_sides", np.where(of_other_sign == 0, 0.0, loss.right)


def _wrong_masks(loss: Loss) -> Iterator[Wrong]:
    """Yield what comes of dropping the wrong tokens, which else seem to be lost."""
    tokens, ppo = loss.tokens, policy_losses.ppo(loss.tokens, CONSTANTS)
    match loss.objective:
        case Objective.PRODUCT_MASKED | Objective.OUTLIER_MASKED:
            yield "mask_inverted", ppo - loss.right
        case Objective.OPSM:
            far = tokens.averaged(-tokens.log_ratios) > CONSTANTS.sequence_divergence
            yield "clipped_on_both_sides", np.where(far, 0.0, ppo)
        case Objective.DPPO_KL:
            bounds = CONSTANTS.divergence_low, CONSTANTS.divergence_high
            moved = policy_losses.total_variation(tokens)
            yield "other_divergence", policy_losses.trusted(moved, bounds, tokens)


def wrong_value_derivatives(tokens: ValueTokens) -> Iterator[Wrong]:
    """Yield names and derivatives, [tokens], with each mistake that a critic's loss may have."""
    bound, errors = CONSTANTS.value_clip, tokens.derivative
    within = tokens.within(bound)
    smaller = within | value_losses.clipped(tokens, bound)
    yield "clipping_left_out", errors
    yield "clipped_on_both_sides", np.where(within, errors, 0.0)
    yield "values_clipped_on_the_wrong_side", np.where(smaller, errors, 0.0)
    of_policy = value_losses.value_clipped(tokens, CONSTANTS.clip_low)
    yield "values_clipped_by_the_policy_bound", of_policy


def _wrong_scopes(loss: Loss, placement: TokenPlacement) -> Iterator[Wrong]:
    """Yield what comes of looking at a part of a sequence or of the step alone."""
    tokens, cp_rank = loss.tokens, placement.cp_rank
    slices = tokens.sequence * (cp_rank.max() + 1) + cp_rank
    yield "ratios_per_cp_slice", loss.having(sequence=slices)
    parts = placement.micro_batch_number, placement.dp_rank, placement.micro_batch
    if verb := COMPARING.get(loss.objective):
        for scope, part in zip(SCOPES, parts, strict=True):
            yield f"{verb}_{scope}", loss.having(batch=part)
    if loss.objective is Objective.M2PO:
        kept = corrections.of_small_moment(tokens, CONSTANTS).astype(np.float64)
        share = replace(tokens, batch=placement.micro_batch_number).averaged_over_batch(kept)
        yield "dropped_tokens_not_counted_per_micro_batch", _divided(loss.right, share)


def _divided_early(loss: Loss) -> Iterator[tuple[str, Values, tuple[str, ...]]]:
    """Yield what follows where advantages are divided for the mean before the loss has them.

    A penalty beside them is then not divided, and what compares them has others.
    """
    tokens, weights = loss.tokens, loss.weights
    divided = replace(loss, tokens=replace(tokens, advantages=tokens.advantages * weights))
    unpenalised = loss.derivative(UNPENALISED)
    compared, undivided = "divided_advantages_compared", "penalty_not_divided"
    if loss.objective is Objective.COVARIANCE_CLIPPED:
        yield compared, _divided(divided.right, weights), ()
    if loss.objective in (Objective.KL_COV, Objective.DRO, Objective.COVARIANCE_PENALISED):
        yield undivided, unpenalised + _divided(loss.penalty, weights), ()
    if loss.objective is Objective.COVARIANCE_PENALISED:
        if len(np.unique(weights[tokens.mask])) > 1:
            yield compared, unpenalised + divided.penalty, ()
        yield undivided, unpenalised + _divided(divided.penalty, weights), (compared,)


def _divided(values: Values, divisors: Values) -> Values:
    """Values over divisors, 0 where these are 0: [tokens]."""
    return np.divide(values, divisors, out=np.zeros(len(values)), where=divisors > 0)
