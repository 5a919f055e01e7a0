"""What right weights are multiplied by, in words, and its value for each active token of a step."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from adapters.contract.formulas import ESTIMATORS, estimator_conventions
from adapters.contract.objective import (
    CONSTANTS,
    FROM_REWARDS,
    OF_GROUPS,
    OF_ROLLOUT_RATIOS,
    OF_VALUES,
    OFF_POLICY,
    PENALISING,
    Objective,
)
from adapters.contract.probed_batch import ProbedBatch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from conformance.expected.term import LossTerm

_PPO = "-A·r, or 0 where PPO's loss is that of the clipped ratio"
_CENTRED = "the sample's reward minus the mean of its prompt's rewards"
_NORMALISED = f"{_CENTRED}, divided by their standard deviation (n - 1) plus 1e-6"
_GAE = "A_t = δ_t + γλ·A_{t+1}, where δ_t = ρ_t + γ·V_{t+1} - V_t"

DERIVATIVES = {
    Objective.OFF_POLICY: _PPO,
    Objective.DUAL_CLIP: f"{_PPO}, or where A < 0 and r > {CONSTANTS.dual_clip:g}",
    Objective.GSPO: f"{_PPO}, with r = exp(mean of log r over the active tokens of the sample)",
    Objective.CISPO: "-A times the clipped ratio",
    Objective.SAPO: (
        "-A·r·4·σ·(1-σ), where σ is the sigmoid of τ·(r-1), with"
        f" τ = {CONSTANTS.positive_temperature:g} for A > 0"
        f" and {CONSTANTS.negative_temperature:g} for A < 0"
    ),
    Objective.CLIP_COV: _PPO,
    Objective.KL_COV: f"-A·r + {CONSTANTS.kl_penalty:g}·sign(log r), with every token chosen",
    Objective.GEO_MEAN: (
        "-A·s, or 0 for a token that is clipped, where s = exp(mean of log r over the active tokens"
        f" of the sample, each at most {CONSTANTS.clip_high:g} for A > 0 and at least"
        f" {-CONSTANTS.clip_low:g} for A < 0)"
    ),
    Objective.GPG: "-A",
    Objective.DRO: f"-A + {CONSTANTS.kl_penalty:g}·log r",
    Objective.TIS_TOKEN: f"{_PPO}, times q, which is at most {CONSTANTS.truncation:g}",
    Objective.TIS_SEQUENCE: (
        f"{_PPO}, times the product of q over the active tokens of the sample, which is at most"
        f" {CONSTANTS.truncation:g}"
    ),
    Objective.SEQUENCE_MASKED: (
        f"{_PPO}, times q, or 0 unless exp(mean of log q over the active tokens of the sample) is"
        f" in [{CONSTANTS.kept_low:g}, {CONSTANTS.kept_high:g}]"
    ),
}
"""The derivative of each off-policy loss by a token's log-probability."""

ADVANTAGES = {
    Objective.GROUP_NORMALISED: _NORMALISED,
    Objective.GROUP_CENTRED: _CENTRED,
    Objective.LEAVE_ONE_OUT: f"{_CENTRED}, times n / (n - 1)",
    Objective.GROUP_WHITENED: _NORMALISED,
    Objective.REINFORCE_PP: "G_t = ρ_t + γ·G_{t+1}",
    Objective.REINFORCE_PP_BASELINE: f"{_CENTRED}, minus β·kl_t",
    Objective.GAE: _GAE,
    Objective.PENALISED_GAE: _GAE,
}
"""Each estimator of advantages, before they are whitened."""


class Formula(NamedTuple):
    """What the weights of a step's tokens are multiplied by."""

    words: str
    header: list[str]
    rows: list[list[str]]
    """A row for each active token: sample, token, inputs, and what comes of them."""


def formula(term: LossTerm, objective: Objective) -> Formula | None:
    """Returns the formula of an objective; None if its weights are multiplied by constants."""
    if objective in OFF_POLICY:
        return _derivative(term, objective)
    return _advantage(term, objective) if objective in FROM_REWARDS else None


def _derivative(term: LossTerm, objective: Objective) -> Formula:
    context = term.context
    batch = ProbedBatch.under(context.conventions, context.steps, objective)
    tokens = batch.policy_tokens_of_step(context.step_index)
    columns = {"A": tokens.advantages, "log r": tokens.log_ratios}
    if objective in OF_ROLLOUT_RATIOS:
        columns["log q"] = tokens.rollout_log_ratios
    words = (
        "The right gradient of a token is its weight times the derivative of its loss by its"
        f" log-probability: {DERIVATIVES[objective]}. Ratios are clipped to"
        f" [{1 - CONSTANTS.clip_low:g}, {1 + CONSTANTS.clip_high:g}]. A is the advantage, r the"
        " ratio of the new to the old policy, q that of the old policy to that of the rollouts."
    )
    return _tabulated(words, term, columns, "derivative", term.factors)


def _advantage(term: LossTerm, objective: Objective) -> Formula:
    context = term.context
    batch = ProbedBatch.under(context.conventions, context.steps, objective)
    of_batch = {"reward": batch.rewards[batch.sample]}
    if objective in OF_VALUES:
        of_batch["V"] = np.concatenate(batch.values)
    if objective in PENALISING:
        of_batch["kl"] = -np.concatenate(batch.reference_log_probs)
    columns = {name: batch.split(of)[context.step_index] for name, of in of_batch.items()}
    return _tabulated(_advantage_words(term, objective), term, columns, "A", -term.factors)


def _advantage_words(term: LossTerm, objective: Objective) -> str:
    estimator = ESTIMATORS[objective]
    constants = estimator.constants
    whitened = ", whitened over the batch" if estimator.whitens else ""
    words = [
        "The right gradient of a token is its weight times -A, where A is its advantage:"
        f" {ADVANTAGES[objective]}{whitened}."
    ]
    if objective not in OF_GROUPS:
        words.append("ρ_t is -β·kl_t, to which the reward is added at the last token.")
        words.append(f"γ = {constants.discount:g}.")
    if objective in OF_VALUES:
        words.append(f"λ = {constants.trace:g}.")
    if objective in PENALISING:
        words.append(f"β = {constants.penalty:g}.")
    declared = estimator_conventions(objective, term.context.conventions)
    return " ".join([*words, f"Tokens and the divisor of the variance: {declared}."])


def _tabulated(
    words: str,
    term: LossTerm,
    columns: Mapping[str, NDArray[np.float64]],
    result: str,
    values: NDArray[np.float64],
) -> Formula:
    context = term.context
    rows = [
        [
            str(sample := context.sample[place]),
            str(place - context.step.offsets[sample] + 1),
            *(f"{column[place]:g}" for column in columns.values()),
            f"{values[place]:.6g}",
        ]
        for place in np.flatnonzero(context.step.mask)
    ]
    return Formula(words, ["sample", "token", *columns, result], rows)
