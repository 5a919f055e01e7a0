"""Advantages from rewards in words, and those of the samples of one step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from adapters.contract.formulas import ESTIMATORS, estimator_conventions
from adapters.contract.objective import OF_GROUPS, OF_VALUES, PENALISING, Objective
from adapters.contract.probed_batch import ProbedBatch
from conformance.views.derivatives import token_table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conformance.expected.term import LossTerm

_CENTRED = "the sample's reward minus the mean of its prompt's rewards"
_NORMALISED = f"{_CENTRED}, divided by their standard deviation (n - 1) plus 1e-6"
_GAE = "A_t = δ_t + γλ·A_{t+1}, where δ_t = ρ_t + γ·V_{t+1} - V_t"

FORMULAS = {
    Objective.GROUP_NORMALISED: _NORMALISED,
    Objective.GROUP_CENTRED: _CENTRED,
    Objective.LEAVE_ONE_OUT: f"{_CENTRED}, times n / (n - 1)",
    Objective.GROUP_WHITENED: _NORMALISED,
    Objective.REINFORCE_PP: "G_t = ρ_t + γ·G_{t+1}",
    Objective.REINFORCE_PP_BASELINE: f"{_CENTRED}, minus β·kl_t",
    Objective.GAE: _GAE,
    Objective.PENALISED_GAE: _GAE,
}
"""Each estimator in words, before advantages are whitened."""


def advantage_words(term: LossTerm, objective: Objective) -> str:
    """Returns the formula that right weights are multiplied by."""
    estimator = ESTIMATORS[objective]
    whitened = ", whitened over the batch" if estimator.whitens else ""
    words = [
        "The right gradient of a token is its weight times -A, where A is its advantage:"
        f" {FORMULAS[objective]}{whitened}."
    ]
    if objective not in OF_GROUPS:
        words.append("ρ_t is -β·kl_t, to which the reward is added at the last token.")
    words += [f"{name} = {value:g}." for name, value in _constants(objective)]
    declared = estimator_conventions(objective, term.context.conventions)
    return " ".join([*words, f"Tokens and the divisor of the variance: {declared}."])


def _constants(objective: Objective) -> Iterator[tuple[str, float]]:
    """Yields the constants of an estimator."""
    constants = ESTIMATORS[objective].constants
    if objective not in OF_GROUPS:
        yield "γ", constants.discount
    if objective in OF_VALUES:
        yield "λ", constants.trace
    if objective in PENALISING:
        yield "β", constants.penalty


def advantage_table(term: LossTerm, objective: Objective) -> tuple[list[str], list[list[str]]]:
    """Returns the header and a row for each active token of a step: inputs and advantage."""
    context = term.context
    batch = ProbedBatch.under(context.conventions, context.steps, objective)
    of_batch = {"reward": batch.rewards[batch.sample]}
    if objective in OF_VALUES:
        of_batch["V"] = np.concatenate(batch.values)
    if objective in PENALISING:
        of_batch["kl"] = -np.concatenate(batch.reference_log_probs)
    columns = {name: batch.split(of)[context.step_index] for name, of in of_batch.items()}
    return token_table(context, columns, "A", -term.factors)
