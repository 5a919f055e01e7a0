"""The columns that are painted, such as advantages: one for each loss or logged number.

A painted column has a value for a single token, so that only this token adds to the loss or number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from adapters.contract.batch.altered import painted_value
from adapters.contract.job import Column, Place
from adapters.contract.objective import (
    CONSTANTS,
    ENTROPY_COEFFICIENT,
    FROM_REWARDS,
    KL_COEFFICIENT,
    OF_TEACHER,
    Metric,
    Objective,
)
from conformance.expected.loss_terms import coefficients, trained_term
from conformance.findings.verdict import Check

if TYPE_CHECKING:
    from adapters.contract.batch.probed_batch import ProbedBatch
    from conformance.plan.matrix import MatrixCell

MOST_TOKENS = 4096
"""The most tokens of a traced batch, since every operation on a batch is kept in memory."""

CHECKED = frozenset(
    {
        Check.WEIGHTS,
        Check.METRIC,
        Check.REJECTION,
        Check.OFF_POLICY,
        Check.AUXILIARY,
        Check.OTHER_LOSSES,
        Check.ARGUMENTS,
    }
)
"""Checks whose gradients or logged numbers are sums over tokens."""

UNTRACED = frozenset({Objective.ROUTER, Objective.WITH_VALUE, *OF_TEACHER, *FROM_REWARDS})
"""Objectives whose weights are not traced: a router's losses, which are not sums over tokens; the
combined loss of policy and value head; distillation; and objectives whose advantages are traced
instead."""

COLUMNS: dict[Metric | Objective, Column] = {
    Metric.POLICY_LOSS: Column.ADVANTAGES,
    Metric.ENTROPY: Column.ENTROPIES,
    Metric.KL: Column.REFERENCE_LOG_PROBS,
    Metric.POLICY_KL: Column.OLD_LOG_PROBS,
    Metric.CLIP_FRACTION: Column.OLD_LOG_PROBS,
    Metric.VALUE_LOSS: Column.RETURNS,
    Objective.SFT: Column.LOG_PROBS,
    Objective.VALUE: Column.RETURNS,
}
"""The column that is painted to trace each term or logged number."""

FOLLOWED = {Metric.KL_COEFFICIENT: Metric.KL}
"""Logged numbers that are computed from another number, which is traced in their place."""


COEFFICIENTS = {
    Column.ENTROPIES: ENTROPY_COEFFICIENT,
    Column.REFERENCE_LOG_PROBS: KL_COEFFICIENT,
    Column.OLD_LOG_PROBS: CONSTANTS.kl_penalty,
}
"""The coefficient, in a loss, of the term that reads each column."""


def is_traced(cell: MatrixCell) -> bool:
    """Whether a painted token can show how a cell's weights or logged number are computed."""
    spec, tokens = cell.spec, sum(len(step.mask) for step in cell.case.steps)
    if tokens > MOST_TOKENS:
        return False
    if spec.law is not None:
        return spec.law.poison is not None and traced_metric(cell) is not None
    if spec.check is Check.ADVANTAGES:
        return spec.metric is None and spec.objective is not Objective.OVERLONG
    return spec.check in CHECKED and spec.objective not in UNTRACED


def traced_metric(cell: MatrixCell) -> Metric | None:
    """The logged number that a cell is traced to; None if it is traced to its gradient.

    For poison in logged numbers, it is the number that is computed from the poisoned column.
    """
    spec = cell.spec
    poison = spec.law.poison if spec.law else None
    if spec.is_logged and poison is not None and poison.place is Place.MASKED:
        return next((metric for metric in Metric if COLUMNS.get(metric) is poison.column), None)
    return None if spec.metric is None else FOLLOWED.get(spec.metric, spec.metric)


def columns_of(objective: Objective, metric: Metric | None) -> dict[Metric | Objective, Column]:
    """The column of each term of a logged number, or of the gradient if ``metric`` is None."""
    if metric is not None:
        return {term: COLUMNS[term] for term in coefficients(metric, objective) if term in COLUMNS}
    term = trained_term(objective)
    if objective is Objective.KL_COV:  # its penalty reads log-ratios
        return {term: Column.OLD_LOG_PROBS}
    return {term: COLUMNS[term]}


def contribution(batch: ProbedBatch, column: Column, derivative: float) -> float:
    """The size of the painted token's loss, before it is multiplied by the token's weight.

    ``batch`` is the painted batch. ``derivative`` is the loss's derivative by the log-probability;
    for a policy loss without penalties, it equals the loss.
    """
    size = painted_value(column)
    match column:
        case Column.REFERENCE_LOG_PROBS:
            return COEFFICIENTS[column] * float(np.abs(batch.divergences).max())
        case Column.ENTROPIES | Column.OLD_LOG_PROBS:
            return COEFFICIENTS[column] * size
        case Column.RETURNS:
            return size**2
        case Column.LOG_PROBS:
            return size
    return abs(derivative)
