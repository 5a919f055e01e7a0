"""The laws of values that nothing may depend on: those of masked tokens, prompts and padding.

Each column is poisoned where a loss or an estimator reads it. The step must give what it gives
without poison, right or wrong.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from adapters.contract.job import OVERFLOWS, Column, Place, Poison
from adapters.contract.objective import Objective
from conformance.laws.law import Law


def _poison(name: str, objective: Objective, column: Column, place: Place = Place.MASKED) -> Law:
    """The law of a column; where tokens are clipped or rejected, it is ratios that overflow."""
    poison = Poison(column=column, place=place)
    if place in (Place.CLIPPED, Place.REJECTED):
        poison = replace(poison, values=OVERFLOWS)
    values = ", ".join(f"{value:g}" for value in poison.values)
    return Law(
        name=name,
        mistake="ratios_overflow" if place is Place.CLIPPED else "masked_values_multiplied",
        says=f"{poison} are {values}",
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
"""Each column where a loss or an estimator reads it."""
