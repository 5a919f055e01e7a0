"""Known mistakes in the corrections of policy losses, and in the tokens that these select.

A correction is what the loss of a token is multiplied by, or whether it has a loss at all, by how
far one policy is from another.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from adapters.contract.batch.formulas import DERIVATIVES
from adapters.contract.objective import CONSTANTS, NORMALISED, SELECTING, Objective
from conformance.explain.catalogue.mistake import Kind, known
from reference.losses import corrections, policy_losses

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from conformance.expected.placement import TokenPlacement
    from reference.losses.policy_losses import Derivative, PolicyTokens

    Values = NDArray[np.float64]
    Wrong = Iterator[tuple[str, Values]]

known(
    {
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
        "correction_without_lower_bound": "the lower bound on the correction is ignored",
        "clipped_instead_of_dropped": "ratios out of bounds are clipped instead of dropped",
        "dropped_instead_of_clipped": "ratios out of bounds are dropped instead of clipped",
        "kept_tokens_corrected": "tokens that are kept are multiplied by their ratios as well",
        "outliers_dropped_alone": "outliers are dropped, but the sequences that have them are not",
        "dropped_for_both_signs": "tokens are dropped regardless of the sign of their advantage",
        "mask_inverted": "the mask is inverted: kept tokens are dropped, and dropped ones kept",
        "other_divergence": "the bound is on another divergence than the configured one",
        "correction_not_normalised": "corrections are not divided by their mean",
        "normalised_per_micro_batch": (
            "corrections are divided by the mean of their micro-batch instead of that of the step"
        ),
        "normalised_per_micro_batch_of_all_ranks": (
            "corrections are divided by the mean of one micro-batch on all ranks instead of that of"
            " the step"
        ),
        "normalised_per_rank": (
            "corrections are divided by the mean of their data-parallel rank instead of that of"
            " the step"
        ),
        "masked_tokens_in_mean": "the mean that corrections are divided by includes masked tokens",
        "correction_has_gradient": "the factor on the log-probability has a gradient of its own",
        "normalised_before_truncation": (
            "corrections are divided by their mean before they are truncated"
        ),
        "selected_per_micro_batch": (
            "tokens are selected within each micro-batch instead of the step"
        ),
        "selected_per_rank": (
            "tokens are selected within each data-parallel rank instead of the step"
        ),
        "masked_tokens_compared": "masked tokens take part in the selection of tokens",
        "all_tokens_selected": "every token is selected",
        "selection_inverted": "tokens of small covariance are selected instead of large ones",
        "covariances_not_centred": "covariances are products without the means subtracted",
        "divided_advantages_compared": (
            "tokens are selected by advantages that the loss normaliser has already scaled"
        ),
        "dropped_tokens_not_counted": (
            "losses are divided by the number of tokens that are kept instead of all"
        ),
        "dropped_tokens_not_counted_per_micro_batch": (
            "each micro-batch is divided by the number of its kept tokens, but weighted by all of"
            " its tokens"
        ),
    },
    rank=14,
    kind=Kind.DERIVATIVE,
    at_size={
        "dropped_tokens_not_counted": "divided by the share of tokens that are kept",
        "dropped_tokens_not_counted_per_micro_batch": (
            "each micro-batch is divided by the share of its tokens that are kept"
        ),
    },
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Loss:
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
        """The right one."""
        return DERIVATIVES[self.objective]

    @property
    def ppo(self) -> NDArray[np.float64]:
        """PPO's term without any correction, [tokens]."""
        return self.of(policy_losses.ppo)


def of_corrections(loss: Loss, placement: TokenPlacement | None) -> Wrong:
    """Yield names and derivatives, [tokens], with each mistake in the correction of a loss."""
    match loss.objective:
        case Objective.TIS_TOKEN | Objective.TIS_SEQUENCE:
            yield from _of_correction(loss)
        case Objective.TIS_BOUNDED | Objective.ICEPOP | Objective.SEQUENCE_ICEPOP:
            yield from _of_bounds(loss)
        case Objective.ROLLOUT_IS:
            yield "clipped_instead_of_dropped", loss.of(policy_losses.cispo)
            yield "clipping_left_out", loss.of(policy_losses.importance_sampling)
            yield "correction_has_gradient", loss.having() * (1 + loss.tokens.log_probs)
        case Objective.SEQUENCE_MASKED:
            yield from _of_masked_sequences(loss)
        case Objective.PRODUCT_MASKED | Objective.OUTLIER_MASKED:
            yield from _of_masks(loss)
        case Objective.OPSM:
            yield from _of_fallen_sequences(loss)
        case Objective.DPPO_TV | Objective.DPPO_KL:
            yield from _of_moved_tokens(loss)
        case Objective.TIS_NORMALISED | Objective.REINFORCE_NORMALISED:
            yield from _of_means(loss)
    if loss.objective in SELECTING:
        yield from _of_selection(loss)
    if loss.objective in SELECTING + NORMALISED and placement is not None:
        yield from _of_parts(loss, placement)


def _of_correction(loss: Loss) -> Iterator[tuple[str, NDArray[np.float64]]]:
    tokens, log_ratios = loss.tokens, loss.tokens.rollout_log_ratios
    yield "correction_left_out", loss.of(policy_losses.ppo)
    yield "correction_inverted", loss.having(rollout_log_ratios=-log_ratios)
    yield "correction_not_truncated", loss.under(truncation=math.inf)
    by_new_policy = loss.having(rollout_log_ratios=log_ratios + tokens.log_ratios)
    yield "correction_by_the_new_policy", by_new_policy
    if loss.objective is Objective.TIS_TOKEN:
        yield "correction_of_sequences", loss.of(corrections.tis_sequence)
        return
    yield "correction_of_tokens", loss.of(corrections.tis_token)
    yield "masked_tokens_in_ratios", loss.having(mask=np.ones_like(tokens.mask))
    averaged = replace(tokens, rollout_log_ratios=tokens.averaged(log_ratios))
    yield "correction_averaged", corrections.tis_token(averaged, CONSTANTS)


def _of_masked_sequences(loss: Loss) -> Iterator[tuple[str, NDArray[np.float64]]]:
    tokens, log_ratios = loss.tokens, loss.tokens.rollout_log_ratios
    yield "correction_left_out", loss.of(policy_losses.ppo)
    yield "correction_inverted", loss.having(rollout_log_ratios=-log_ratios)
    yield "sequences_kept", loss.under(kept_low=0.0, kept_high=math.inf)
    corrected = loss.of(policy_losses.ppo) * np.exp(log_ratios)
    yield "tokens_dropped", np.where(corrections.kept(log_ratios, CONSTANTS), corrected, 0.0)
    of_sequences = corrections.kept(tokens.averaged(log_ratios), CONSTANTS)
    yield "kept_tokens_not_corrected", np.where(of_sequences, loss.of(policy_losses.ppo), 0.0)
    yield "masked_tokens_in_ratios", loss.having(mask=np.ones_like(tokens.mask))


def _of_bounds(loss: Loss) -> Wrong:
    log_ratios = loss.tokens.rollout_log_ratios
    yield "correction_left_out", loss.ppo
    yield "correction_inverted", loss.having(rollout_log_ratios=-log_ratios)
    yield "correction_not_truncated", loss.under(truncation=math.inf)
    yield "correction_without_lower_bound", loss.under(kept_low=0.0)
    match loss.objective:
        case Objective.ICEPOP:
            yield "clipped_instead_of_dropped", loss.of(corrections.tis_bounded)
            yield "correction_of_sequences", loss.of(corrections.sequence_icepop)
        case Objective.SEQUENCE_ICEPOP:
            yield "correction_of_tokens", loss.of(corrections.icepop)
            yield "masked_tokens_in_ratios", loss.having(mask=np.ones_like(loss.tokens.mask))
        case _:
            yield "dropped_instead_of_clipped", loss.of(corrections.icepop)


def _of_masks(loss: Loss) -> Wrong:
    """Yield the mistakes of masks of sequences that leave others as they are."""
    tokens, log_ratios = loss.tokens, loss.tokens.rollout_log_ratios
    right = loss.having()
    yield "sequences_kept", loss.ppo
    yield "kept_tokens_corrected", right * np.exp(log_ratios)
    yield "mask_inverted", loss.ppo - right
    yield "masked_tokens_in_ratios", loss.having(mask=np.ones_like(tokens.mask))
    if loss.objective is Objective.OUTLIER_MASKED:
        alone = corrections.outliers(tokens, CONSTANTS)
        yield "outliers_dropped_alone", np.where(alone, 0.0, loss.ppo)
        return
    yield "correction_inverted", loss.having(rollout_log_ratios=-log_ratios)
    active = tokens.summed(np.ones_like(log_ratios))
    means = np.divide(log_ratios, active, out=log_ratios.copy(), where=active > 0)
    yield "correction_averaged", loss.having(rollout_log_ratios=means)


def _of_fallen_sequences(loss: Loss) -> Wrong:
    tokens = loss.tokens
    yield "sequences_kept", loss.ppo
    yield "masked_tokens_in_ratios", loss.having(mask=np.ones_like(tokens.mask))
    dropped = np.where(tokens.advantages < 0, 0.0, loss.ppo)
    far = tokens.averaged(-tokens.log_ratios) > CONSTANTS.sequence_divergence
    yield "dropped_for_both_signs", np.where(far, 0.0, loss.ppo)
    near = tokens.averaged(tokens.log_ratios) > CONSTANTS.sequence_divergence
    yield "mask_inverted", np.where(near, dropped, loss.ppo)
    summed = tokens.summed(-tokens.log_ratios) > CONSTANTS.sequence_divergence
    yield "ratios_multiplied", np.where(summed, dropped, loss.ppo)


def _of_moved_tokens(loss: Loss) -> Wrong:
    tokens = loss.tokens
    moved = policy_losses.total_variation(tokens)
    low, high = CONSTANTS.variation_low, CONSTANTS.variation_high
    if loss.objective is Objective.DPPO_KL:
        low, high = CONSTANTS.divergence_low, CONSTANTS.divergence_high
        yield "other_divergence", policy_losses.trusted(moved, (low, high), tokens)
        moved = policy_losses.binary_divergence(tokens)
    yield "clipping_left_out", loss.of(policy_losses.importance_sampling)
    yield "clip_bounds_swapped", policy_losses.trusted(moved, (high, low), tokens)
    for bound in (low, high):
        yield "one_clip_bound", policy_losses.trusted(moved, (bound, bound), tokens)
    bounds = np.where(tokens.log_ratios > 0, high, low)
    dropped = np.where(moved > bounds, 0.0, loss.of(policy_losses.importance_sampling))
    yield "clipped_on_both_sides", dropped


def _of_means(loss: Loss) -> Wrong:
    tokens = loss.tokens
    of_rollouts = loss.objective is Objective.REINFORCE_NORMALISED
    plain = policy_losses.gpg if of_rollouts else policy_losses.ppo
    log_ratios = tokens.log_ratios if of_rollouts else tokens.rollout_log_ratios
    truncated = np.minimum(np.exp(log_ratios), CONSTANTS.truncation)
    yield "correction_left_out", loss.of(plain)
    yield "correction_not_normalised", loss.of(plain) * truncated
    yield "correction_not_truncated", loss.under(truncation=math.inf)
    of_mean = corrections.normalised(np.exp(log_ratios), tokens)
    yield "normalised_before_truncation", loss.of(plain) * np.minimum(of_mean, CONSTANTS.truncation)
    yield "masked_tokens_in_mean", loss.having(mask=np.ones_like(tokens.mask))
    if of_rollouts:
        varies = np.exp(log_ratios) < CONSTANTS.truncation
        yield "correction_has_gradient", loss.having() * (1 + varies * tokens.log_probs)


def _of_selection(loss: Loss) -> Wrong:
    tokens = loss.tokens
    yield "masked_tokens_compared", loss.having(mask=np.ones_like(tokens.mask))
    if loss.objective is Objective.M2PO:
        of_step = replace(tokens, batch=np.zeros_like(tokens.batch))
        share = of_step.averaged_over_batch(_kept_tokens(tokens))
        yield "dropped_tokens_not_counted", _per_kept(loss.having(), share)
        return
    covariance = corrections.covariances(tokens)
    if (
        loss.objective is Objective.COVARIANCE_CLIPPED
        or len(np.unique(loss.weights[tokens.mask])) > 1
    ):
        yield "divided_advantages_compared", selected(loss, divided_covariances(loss))
    yield "selection_inverted", selected(loss, -covariance)
    yield "covariances_not_centred", selected(loss, tokens.advantages * tokens.log_probs)
    if loss.objective is Objective.COVARIANCE_PENALISED:
        yield "all_tokens_selected", loss.of(policy_losses.kl_cov)


def divided_covariances(loss: Loss) -> Values:
    """The covariances of advantages that are multiplied by the tokens' weights."""
    divided = replace(loss.tokens, advantages=loss.tokens.advantages * loss.weights)
    return corrections.covariances(divided)


def selected(loss: Loss, covariance: Values) -> Values:
    """The derivative with tokens that are selected by other covariances."""
    if loss.objective is Objective.COVARIANCE_CLIPPED:
        return np.where(corrections.between_bounds(covariance, CONSTANTS), 0.0, loss.ppo)
    is_chosen = corrections.are_largest(covariance, loss.tokens, CONSTANTS)
    unpenalised = loss.of(policy_losses.importance_sampling)
    return np.where(is_chosen, loss.of(policy_losses.kl_cov), unpenalised)


def _kept_tokens(tokens: PolicyTokens) -> Values:
    """1 for the tokens that M2PO keeps, 0 for others."""
    return corrections.of_small_moment(tokens, CONSTANTS).astype(np.float64)


def _per_kept(derivative: Values, share: Values) -> Values:
    """A derivative divided by the share of kept tokens, 0 where no token is kept."""
    return np.divide(derivative, share, out=np.zeros(len(share)), where=share > 0)


def _of_parts(loss: Loss, placement: TokenPlacement) -> Wrong:
    """Yield what comes of comparing the tokens of a part of the step alone."""
    named = {
        "per_micro_batch": placement.micro_batch_number,
        "per_rank": placement.dp_rank,
        "per_micro_batch_of_all_ranks": placement.micro_batch,
    }
    verb = "selected" if loss.objective in SELECTING else "normalised"
    for name, part in named.items():
        if verb == "normalised" or name != "per_micro_batch_of_all_ranks":
            yield f"{verb}_{name}", loss.having(batch=part)
    if loss.objective is Objective.M2PO:
        of_parts = replace(loss.tokens, batch=placement.micro_batch_number)
        share = of_parts.averaged_over_batch(_kept_tokens(loss.tokens))
        yield "dropped_tokens_not_counted_per_micro_batch", _per_kept(loss.having(), share)
