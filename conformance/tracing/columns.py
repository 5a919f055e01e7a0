"""The columns that are painted: what a token adds to a loss, or to a logged number, comes from one.

A token's share in a sum is proportional to, or at least made of, its own value there alone.
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
"""Tokens of the largest batch that is traced: every operation on them is kept in memory."""

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
"""Checks of sums over tokens, in gradients and in logs, also of unusual configurations."""

UNTRACED = frozenset({Objective.ROUTER, Objective.WITH_VALUE, *OF_TEACHER, *FROM_REWARDS})
"""The losses of a router, no sum over tokens, that of a value head with the policy's, those by a
teacher, and those whose advantages are traced instead."""

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
"""The ingredients of each term, or of a logged number."""

FOLLOWED = {Metric.KL_COEFFICIENT: Metric.KL}
"""Logged numbers that others follow, and are traced instead."""


COEFFICIENTS = {
    Column.ENTROPIES: ENTROPY_COEFFICIENT,
    Column.REFERENCE_LOG_PROBS: KL_COEFFICIENT,
    Column.OLD_LOG_PROBS: CONSTANTS.kl_penalty,
}
"""By what a loss multiplies the term that has a column."""


def is_traced(cell: MatrixCell) -> bool:
    """Whether a painted token tells what a cell's weights, or its logged number, are made of."""
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

    Of several that may be poisoned it is the one that is made of the column.
    """
    spec = cell.spec
    poison = spec.law.poison if spec.law else None
    if spec.is_logged and poison is not None and poison.place is Place.MASKED:
        return next((metric for metric in Metric if COLUMNS.get(metric) is poison.column), None)
    return None if spec.metric is None else FOLLOWED.get(spec.metric, spec.metric)


def columns_of(objective: Objective, metric: Metric | None) -> dict[Metric | Objective, Column]:
    """The column of each term of a logged number, or of the gradient if there is none."""
    if metric is not None:
        return {term: COLUMNS[term] for term in coefficients(metric, objective) if term in COLUMNS}
    term = trained_term(objective)
    if objective is Objective.KL_COV:  # what its penalty on log-ratios adds
        return {term: Column.OLD_LOG_PROBS}
    return {term: COLUMNS[term]}


def contribution(batch: ProbedBatch, column: Column, derivative: float) -> float:
    """The size of the painted token's loss, which its weight multiplies.

    ``batch`` is the painted one; ``derivative`` is that of the loss by the log-probability, which a
    policy loss without penalties is equal to.
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
