"""Known mistakes in policy losses whose ratios are not 1, as changes to a loss's inputs.

A loss is a formula of its tokens and constants (`reference.losses`). A mistake leaves out a part of
the formula, or computes ratios, selections and means over a wrong scope. The formula with wrong
inputs gives the wrong derivative, so a new loss needs no new mistakes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from adapters.contract.batch.columns import DERIVATIVES
from adapters.contract.objective import CONSTANTS, NORMALISED, SELECTING, Objective
from conformance.explain.catalogue.mistake import OPTION_IGNORED
from reference.losses import corrections, policy_losses

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conformance.expected.placement import TokenPlacement
    from reference.arrays import Values
    from reference.losses.constants import LossConstants
    from reference.losses.policy_losses import PolicyTokens
    from reference.losses.value_losses import ValueTokens

    Wrong = tuple[str, Values]

BOUNDS = [f"{of}_{end}" for of in ("clip", "variation", "divergence") for end in ("low", "high")]
"""Constants that bound the change of a probability."""

WITHOUT = {
    "clipping_left_out": replace(CONSTANTS, **dict.fromkeys(BOUNDS, math.inf)),
    "dual_clip_left_out": replace(CONSTANTS, dual_clip=math.inf),
    "truncation_left_out": replace(CONSTANTS, truncation=math.inf),
    "penalty_left_out": replace(CONSTANTS, kl_penalty=0.0),
    "dropping_left_out": replace(
        CONSTANTS,
        kept_low=0.0,
        kept_high=math.inf,
        sequence_divergence=math.inf,
        outlier_low=0.0,
        outlier_high=math.inf,
    ),
}
"""For each mistake that leaves out a part of a loss, the constants that disable that part."""

RATIOS = {"ratios_left_out": "log_ratios", "correction_left_out": "rollout_log_ratios"}
"""For each mistake that ignores ratios, the field of `PolicyTokens` that is taken as 0."""

SCOPES = ("per_micro_batch", "per_rank", "per_micro_batch_of_all_ranks")
"""The parts of a step within which tokens may be compared or averaged by mistake."""

COMPARING = {**dict.fromkeys(NORMALISED, "normalised"), **dict.fromkeys(SELECTING, "selected")}
"""The verb in the names of a loss's mistakes, for losses that depend on all tokens of a step
together."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Loss:
    """The loss of an objective, with its tokens and their right weights: [tokens]."""

    objective: Objective
    tokens: PolicyTokens
    weights: Values

    def derivative(self, constants: LossConstants = CONSTANTS) -> Values:
        """The derivative of the loss, perhaps with other constants: [tokens]."""
        return DERIVATIVES[self.objective](self.tokens, constants)

    def having(self, **wrong: object) -> Values:
        """The derivative if fields of the tokens have other values: [tokens]."""
        return replace(self, tokens=replace(self.tokens, **wrong)).derivative()  # type: ignore[arg-type]

    @property
    def unpenalised(self) -> Values:
        """The derivative without the penalty on log-ratios: [tokens]."""
        return self.derivative(WITHOUT["penalty_left_out"])


def wrong_derivatives(
    objective: Objective, tokens: PolicyTokens, weights: Values, placement: TokenPlacement | None
) -> Iterator[tuple[str, Values, tuple[str, ...]]]:
    """Yield each mistake that a loss may have, with its derivatives: [tokens].

    Each comes with the names of mistakes that are made together with it. ``weights`` are the
    reference's; ``placement`` is how the step was cut, if known. Derivatives that are not finite
    are left out, since wrong ratios may overflow.
    """
    loss = Loss(objective=objective, tokens=tokens, weights=weights)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        found = [*_left_out(loss), *_other_tokens(loss)]
        if placement is not None:
            found += _other_scopes(loss, placement)
    for name, derivative in found:
        if np.isfinite(derivative).all():
            yield name, derivative, ()
    yield from _divided_early(loss)
    if DERIVATIVES[objective] is not policy_losses.ppo:
        yield OPTION_IGNORED, policy_losses.ppo(tokens, CONSTANTS), ()


def wrong_value_derivatives(tokens: ValueTokens) -> Iterator[Wrong]:
    """Yield each mistake that a critic's loss may have, with its derivatives: [tokens]."""
    yield "clipping_left_out", tokens.derivative


def _left_out(loss: Loss) -> Iterator[Wrong]:
    """Yield the derivatives of a loss without one of its parts."""
    for name, constants in WITHOUT.items():
        yield name, loss.derivative(constants)
    for name, part in RATIOS.items():
        yield name, loss.having(**{part: np.zeros(len(loss.tokens.mask))})


def _other_tokens(loss: Loss) -> Iterator[Wrong]:
    """Yield the derivatives if ratios are of single tokens, or include masked tokens."""
    mask = loss.tokens.mask
    yield "ratios_of_tokens", loss.having(sequence=np.arange(len(mask)))
    yield "masked_tokens_in_ratios", loss.having(mask=np.ones_like(mask))


def _other_scopes(loss: Loss, placement: TokenPlacement) -> Iterator[Wrong]:
    """Yield the derivatives if only a part of a sequence or of the step is considered."""
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
        yield "dropped_tokens_not_counted_per_micro_batch", _divided(loss.derivative(), share)


def _divided_early(loss: Loss) -> Iterator[tuple[str, Values, tuple[str, ...]]]:
    """Yield the derivatives if advantages are divided by the mean's divisor before the loss.

    A penalty that is added afterwards is then not divided, and comparisons see divided advantages.
    """
    tokens, weights = loss.tokens, loss.weights
    divided = replace(loss, tokens=replace(tokens, advantages=tokens.advantages * weights))
    penalty, penalty_of_divided = (one.derivative() - one.unpenalised for one in (loss, divided))
    compared, undivided = "divided_advantages_compared", "penalty_not_divided"
    if loss.objective is Objective.COVARIANCE_CLIPPED:
        yield compared, _divided(divided.derivative(), weights), ()
    if loss.objective in (Objective.KL_COV, Objective.DRO, Objective.COVARIANCE_PENALISED):
        yield undivided, loss.unpenalised + _divided(penalty, weights), ()
    if loss.objective is Objective.COVARIANCE_PENALISED:
        if len(np.unique(weights[tokens.mask])) > 1:
            yield compared, loss.unpenalised + penalty_of_divided, ()
        yield undivided, loss.unpenalised + _divided(penalty_of_divided, weights), (compared,)


def _divided(values: Values, divisors: Values) -> Values:
    """Values divided by divisors; 0 where a divisor is 0: [tokens]."""
    return np.divide(values, divisors, out=np.zeros(len(values)), where=divisors > 0)
