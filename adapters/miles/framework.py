"""The records of miles, one for each of its engines, and where its code does what."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from adapters.contract.description import parse_departures
from adapters.contract.job import Column
from adapters.contract.objective import Objective
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

OBSERVED = parse_departures(
    """
    set: --observe-training-entropy, if the option exists
        newer versions log no entropy without it; it has no gradient unless it is trained on
    """
)

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
        *OBSERVED,
        *parse_departures(
            """
            stubbed: the phases of sglang's debug dumper: off, as by default
                a class of sglang's reads its settings; it would only write files
            stubbed: get_data_parallel_group_gloo: the data-parallel group itself
                with gloo both groups are the same, and with NCCL the sums are
            """
        ),
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
        *OBSERVED,
        *parse_departures(
            """
            set: --debug-train-only
                no inference servers are started; the train step does not read it
            set: --lr=0 --clip-grad=inf
                the probe stays 0, and its gradient, read before the optimizer's step, is not
                changed
            stubbed: FSDP2's mixed precision and the precision policy: parameters and gradients in
            float32
                bfloat16 leaves two digits of a weight; --dtype=bfloat16 keeps miles' own policies
            stubbed: device meshes below depth step: one rank each
                that depth ends before gradients are reduced
            """,
            ZEROED,
        ),
    ),
)


def ci_record(record: Framework) -> Framework:
    """The record of versions that run an engine in tests alone, which expect positive entropies."""
    return replace(
        record,
        always={**record.always, "--ci-test": True, "--ci-disable-logprobs-checker": True},
        departures=(
            *parse_departures(
                """
                set: --ci-test --ci-disable-logprobs-checker
                    without it this version stops a user with an error that calls the engine not
                    maintained; in a train step it only adds checks of saved gradient norms and of
                    log-probabilities
                """
            ),
            *record.departures,
        ),
    )
