"""The derivatives of off-policy losses in words, and those of the tokens of one step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from adapters.contract.objective import CONSTANTS, OF_ROLLOUT_RATIOS, Objective
from adapters.contract.probed_batch import ProbedBatch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from conformance.expected.step_context import StepContext
    from conformance.expected.term import LossTerm

PPO = "-A·r, or 0 where PPO's loss is that of the clipped ratio"

DERIVATIVES = {
    Objective.OFF_POLICY: PPO,
    Objective.DUAL_CLIP: f"{PPO}, or where A < 0 and r > {CONSTANTS.dual_clip:g}",
    Objective.GSPO: f"{PPO}, with r = exp(mean of log r over the active tokens of the sample)",
    Objective.CISPO: "-A times the clipped ratio",
    Objective.SAPO: (
        "-A·r·4·σ·(1-σ), where σ is the sigmoid of τ·(r-1), with"
        f" τ = {CONSTANTS.positive_temperature:g} for A > 0"
        f" and {CONSTANTS.negative_temperature:g} for A < 0"
    ),
    Objective.CLIP_COV: PPO,
    Objective.KL_COV: f"-A·r + {CONSTANTS.kl_penalty:g}·sign(log r), with every token chosen",
    Objective.GEO_MEAN: (
        "-A·s, or 0 for a token that is clipped, where s = exp(mean of log r over the active tokens"
        f" of the sample, each at most {CONSTANTS.clip_high:g} for A > 0 and at least"
        f" {-CONSTANTS.clip_low:g} for A < 0)"
    ),
    Objective.GPG: "-A",
    Objective.DRO: f"-A + {CONSTANTS.kl_penalty:g}·log r",
    Objective.TIS_TOKEN: f"{PPO}, times q, which is at most {CONSTANTS.truncation:g}",
    Objective.TIS_SEQUENCE: (
        f"{PPO}, times the product of q over the active tokens of the sample, which is at most"
        f" {CONSTANTS.truncation:g}"
    ),
    Objective.SEQUENCE_MASKED: (
        f"{PPO}, times q, or 0 unless exp(mean of log q over the active tokens of the sample) is in"
        f" [{CONSTANTS.kept_low:g}, {CONSTANTS.kept_high:g}]"
    ),
}
"""The derivative of each off-policy loss by a token's log-probability, in words."""


def derivative_words(objective: Objective) -> str:
    """Returns the formula that right weights are multiplied by."""
    return (
        "The right gradient of a token is its weight times the derivative of its loss by its"
        f" log-probability: {DERIVATIVES[objective]}. Ratios are clipped to"
        f" [{1 - CONSTANTS.clip_low:g}, {1 + CONSTANTS.clip_high:g}]. A is the advantage, r the"
        " ratio of the new to the old policy, q that of the old policy to that of the rollouts."
    )


def derivative_table(term: LossTerm, objective: Objective) -> tuple[list[str], list[list[str]]]:
    """Returns the header and a row for each active token of a step: ratios and derivative."""
    context = term.context
    batch = ProbedBatch.under(context.conventions, context.steps, objective)
    tokens = batch.policy_tokens_of_step(context.step_index)
    columns = {"A": tokens.advantages, "log r": tokens.log_ratios}
    if objective in OF_ROLLOUT_RATIOS:
        columns["log q"] = tokens.rollout_log_ratios
    return token_table(context, columns, "derivative", term.factors)


def token_table(
    context: StepContext,
    columns: Mapping[str, NDArray[np.float64]],
    name: str,
    values: NDArray[np.float64],
) -> tuple[list[str], list[list[str]]]:
    """Returns the header and a row for each active token: its inputs, and what comes of them."""
    rows = [
        [
            str(sample := context.sample[place]),
            str(place - context.step.offsets[sample] + 1),
            *(f"{column[place]:g}" for column in columns.values()),
            f"{values[place]:.6g}",
        ]
        for place in np.flatnonzero(context.step.mask)
    ]
    return ["sample", "token", *columns, name], rows
