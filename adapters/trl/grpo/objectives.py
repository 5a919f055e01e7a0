"""What `GRPOTrainer` has for each objective: its settings, and what they need."""

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
"""Loss types that are reduced by a mode, whatever their token losses are. The divisor of `dr_grpo`
is ``max_completion_length``; `bnpo` is a token mean of each micro-batch, and no mode."""

OWN_LOSS_TYPES = {Objective.SAPO: (Mode.SAMPLE_MEAN, "sapo")}
"""Objectives that TRL has as a loss type, which has one mode."""

BONUS: Settings = {"entropy_coef": ENTROPY_COEFFICIENT}
PENALTY: Settings = {"beta": KL_COEFFICIENT}

COMPARED: Settings = {
    "use_vllm": True,
    "vllm_importance_sampling_clip_max": CONSTANTS.truncation,
}
"""What sets rollout and old policy apart: only rollouts of vLLM are told to have another one."""

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
"""What objectives set."""


def iterations(job: Job) -> int:
    """How often each generation is trained on: the ratio is not 1 from the second time on."""
    return 2 if job.objective in OFF_POLICY and job.objective not in CORRECTIONS else 1
