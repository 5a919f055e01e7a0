"""The laws of columns: of values that must not matter, and of columns that must be constant.

Each column is poisoned where a loss or an estimator reads it: at masked tokens, in prompts and in
padding. Right or wrong, the step must give the same numbers as without poison. Each column that a
model computes is also given with a gradient, which must stay 0.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from adapters.contract.job import OVERFLOWS, Column, Configuration, Place, Poison
from adapters.contract.objective import Objective
from conformance.laws.law import Law

if TYPE_CHECKING:
    from adapters.contract import Job


def _poison(name: str, objective: Objective, column: Column, place: Place = Place.MASKED) -> Law:
    """The law of a poisoned column; poison of clipped or rejected tokens makes ratios overflow."""
    poison = Poison(column=column, place=place)
    if place in (Place.CLIPPED, Place.REJECTED):
        poison = replace(poison, values=OVERFLOWS)
    values = ", ".join(f"{value:g}" for value in poison.values)
    return Law(
        name=name,
        mistake="ratios_overflow" if place is Place.CLIPPED else "masked_values_multiplied",
        says=f"{poison} are {values}",
        before=partial(replace, poison=None),
        after=partial(replace, poison=poison),
        objectives=(objective,),
        poison=poison,
    )


POISONS = (
    _poison("old_log_probs", Objective.OFF_POLICY, Column.OLD_LOG_PROBS),
    _poison("advantages", Objective.OFF_POLICY, Column.ADVANTAGES),
    _poison("log_probs", Objective.OFF_POLICY, Column.LOG_PROBS),
    _poison("old_log_probs_of_prompts", Objective.OFF_POLICY, Column.OLD_LOG_PROBS, Place.OUTSIDE),
    _poison("overflowing_ratios", Objective.OFF_POLICY, Column.OLD_LOG_PROBS, Place.CLIPPED),
    _poison("old_log_probs_of_sequences", Objective.GSPO, Column.OLD_LOG_PROBS),
    _poison("rollout_log_probs", Objective.TIS_TOKEN, Column.ROLLOUT_LOG_PROBS),
    _poison(
        "overflowing_corrections", Objective.TIS_TOKEN, Column.ROLLOUT_LOG_PROBS, Place.CLIPPED
    ),
    _poison(
        "overflowing_masked_corrections", Objective.ICEPOP, Column.ROLLOUT_LOG_PROBS, Place.CLIPPED
    ),
    _poison(
        "overflowing_rejections", Objective.REJECTION, Column.ROLLOUT_LOG_PROBS, Place.REJECTED
    ),
    _poison("reference_log_probs", Objective.KL, Column.REFERENCE_LOG_PROBS),
    _poison(
        "reference_log_probs_of_prompts", Objective.KL, Column.REFERENCE_LOG_PROBS, Place.OUTSIDE
    ),
    _poison("entropies", Objective.ENTROPY, Column.ENTROPIES),
    _poison("reference_log_probs_in_rewards", Objective.REINFORCE_PP, Column.REFERENCE_LOG_PROBS),
    _poison(
        "old_log_probs_of_prompts_in_rewards",
        Objective.REINFORCE_PP,
        Column.OLD_LOG_PROBS,
        Place.OUTSIDE,
    ),
    _poison("values", Objective.GAE, Column.VALUES),
    _poison("values_of_prompts", Objective.GAE, Column.VALUES, Place.OUTSIDE),
    _poison("returns", Objective.VALUE, Column.RETURNS),
    _poison("old_values", Objective.VALUE_CLIPPED, Column.OLD_VALUES),
)
"""A law for each column and each loss or estimator that reads it."""


def _constant(name: str, objective: Objective, column: Column) -> Law:
    """The law of a column that must have no gradient; a teacher's column needs distillation."""

    def attached(job: Job) -> Job:
        distilling = Configuration(distils=column is Column.TEACHER_LOG_PROBS)
        return replace(job, attached=column, configuration=distilling)

    return Law(
        name=name,
        mistake="gradient_of_constants",
        says=f"{name} have a gradient",
        after=attached,
        objectives=(objective,),
        attached=column,
    )


CONSTANTS = (
    _constant("old_log_probs", Objective.OFF_POLICY, Column.OLD_LOG_PROBS),
    _constant("advantages", Objective.OFF_POLICY, Column.ADVANTAGES),
    _constant("rollout_log_probs", Objective.TIS_TOKEN, Column.ROLLOUT_LOG_PROBS),
    _constant("reference_log_probs", Objective.KL, Column.REFERENCE_LOG_PROBS),
    _constant("reference_log_probs_in_rewards", Objective.REINFORCE_PP, Column.REFERENCE_LOG_PROBS),
    _constant("values", Objective.GAE, Column.VALUES),
    _constant("teacher_log_probs", Objective.GROUP_CENTRED, Column.TEACHER_LOG_PROBS),
)
"""A law for each column that must be constant: a model computes it, and a loss or estimator reads
it."""
