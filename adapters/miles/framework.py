"""The records of miles, one for each of its engines, and where its code does what."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from adapters.contract.job import Column
from adapters.contract.objective import Objective
from adapters.contract.tables import read_departures
from adapters.engines.shells import ZEROED
from adapters.slime_family.framework import (
    BOUNDED,
    CORRECTION,
    FAMILY,
    OBSERVED_ENTROPY,
    ON_MEGATRON,
)
from adapters.toolkit.settings import WITH_CRITIC

if TYPE_CHECKING:
    from adapters.contract.framework import Framework

TRAIN_DATA = "ray.rollout.train_data_conversion"
HUB = "backends.training_utils.loss_hub"
BEFORE_HUB = "backends.training_utils.loss"
LOSSES = (f"{HUB}.losses", BEFORE_HUB)
LOG_PROBS = (f"{HUB}.logit_processors", f"{HUB}.logits", BEFORE_HUB)
CORRECTIONS = (f"{HUB}.corrections", BEFORE_HUB)
AGGREGATION = "backends.training_utils.log_utils:aggregate_train_losses"
VALIDATION = (
    "utils.arguments:_validate_loss_aggregation_args",
    "utils.arguments:miles_validate_args",
)

KEEPERS = (
    *VALIDATION,
    f"{TRAIN_DATA}:convert_samples_to_train_data",
    f"{TRAIN_DATA}:_prompt_group_partitions",
    f"{HUB}.losses:get_pg_loss_reducer",
    AGGREGATION,
)
"""Functions that may enforce rules of configurations and logs."""

STATED = dict.fromkeys(
    (
        f"no_gradient.{column}"
        for column in (
            Column.OLD_LOG_PROBS,
            Column.ROLLOUT_LOG_PROBS,
            Column.REFERENCE_LOG_PROBS,
            Column.TEACHER_LOG_PROBS,
            Column.ADVANTAGES,
        )
    ),
    "miles pull request 1966: scores produced before the update are fixed training data",
)
"""Rules that miles states of columns; tests/fast/backends/training_utils/loss/test_opd.py."""

ICEPOP = {
    **BOUNDED,
    CORRECTION: "miles.backends.training_utils.loss_hub.corrections.icepop_function",
}

MEGATRON = replace(
    ON_MEGATRON,
    objectives={**ON_MEGATRON.objectives, Objective.ICEPOP: ICEPOP},
    always={**ON_MEGATRON.always, OBSERVED_ENTROPY: True},
    departures=(
        *ON_MEGATRON.departures,
        *read_departures("adapters.miles"),
        *read_departures("adapters.miles", "megatron"),
    ),
)

FSDP = replace(
    FAMILY,
    objectives={
        Objective.ICEPOP: ICEPOP,
        **{one: chosen for one, chosen in FAMILY.objectives.items() if one not in WITH_CRITIC},
    },
    always={
        **FAMILY.always,
        OBSERVED_ENTROPY: True,
        "--train-backend": "fsdp",
        "--debug-train-only": True,
        "--actor-num-gpus-per-node": lambda job: job.layout.world_size,
        "--lr": 0,
        "--clip-grad": math.inf,
    },
    departures=(
        *FAMILY.departures,
        *read_departures("adapters.miles"),
        *read_departures("adapters.miles", "fsdp"),
        ZEROED,
    ),
)


def ci_record(record: Framework) -> Framework:
    """The record of versions that run an engine in tests alone, which expect positive entropies."""
    return replace(
        record,
        always={**record.always, "--ci-test": True, "--ci-disable-logprobs-checker": True},
        departures=(
            *read_departures("adapters.miles", "ci"),
            *record.departures,
        ),
    )
