"""What `GRPOTrainer` needs for each objective: settings and iterations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from adapters.contract.objective import (
    CONSTANTS,
    CORRECTIONS,
    ENTROPY_COEFFICIENT,
    KL_COEFFICIENT,
    OFF_POLICY,
    Objective,
)
from reference.aggregation import Mode

if TYPE_CHECKING:
    from adapters.contract import Job
    from adapters.trl.configuration import Settings

LOSS_TYPES = {Mode.SAMPLE_MEAN: "grpo", Mode.TOKEN_MEAN: "dapo", Mode.CONSTANT: "dr_grpo"}
"""TRL's name of each mode."""

NAMES_OF_MODES = {name: mode.value for mode, name in LOSS_TYPES.items()} | {
    "cispo": "token_mean",
    "vespo": "token_mean",
    "sapo": "sample_mean",
    "luspo": "constant:1",
}
"""Loss types that a mode reduces, whatever their token losses are. The divisor of `dr_grpo` is
``max_completion_length``; `bnpo`, a token mean of each micro-batch, is none of the modes."""

OWN_LOSS_TYPES = {Objective.SAPO: (Mode.SAMPLE_MEAN, "sapo")}
"""Objectives that are a loss type in TRL, which has one mode."""

BONUS: Settings = {"entropy_coef": ENTROPY_COEFFICIENT}
PENALTY: Settings = {"beta": KL_COEFFICIENT}

COMPARED: Settings = {
    "use_vllm": True,
    "vllm_importance_sampling_clip_max": CONSTANTS.truncation,
}
"""The setting that lets rollout and old policy differ: TRL compares only vLLM's rollouts."""

OF_OBJECTIVES: dict[Objective, Settings] = {
    Objective.DUAL_CLIP: {"delta": CONSTANTS.dual_clip},
    Objective.GSPO: {"importance_sampling_level": "sequence"},
    Objective.SAPO: {
        "sapo_temperature_pos": CONSTANTS.positive_temperature,
        "sapo_temperature_neg": CONSTANTS.negative_temperature,
    },
    Objective.TIS_TOKEN: {**COMPARED, "vllm_importance_sampling_mode": "token_truncate"},
    Objective.TIS_SEQUENCE: {**COMPARED, "vllm_importance_sampling_mode": "sequence_truncate"},
    Objective.REJECTION: {**COMPARED, "vllm_importance_sampling_mode": "token_mask"},
    Objective.ENTROPY: BONUS,
    Objective.KL: PENALTY,
    Objective.COMBINED: {**BONUS, **PENALTY},
    Objective.GROUP_NORMALISED: {"scale_rewards": "group"},
    Objective.GROUP_CENTRED: {"scale_rewards": "none"},
}
"""The settings of each objective."""


def iterations(job: Job) -> int:
    """How many times each generation is trained on: from the second time on, the ratio is not 1."""
    return 2 if job.objective in OFF_POLICY and job.objective not in CORRECTIONS else 1
