"""What `GRPOTrainer` has for each objective, and what of it a version has, found in its code."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from adapters.contract.objective import (
    CONSTANTS,
    CORRECTIONS,
    ENTROPY_COEFFICIENT,
    KL_COEFFICIENT,
    OFF_POLICY,
    Objective,
)
from adapters.trl.importing import module
from reference.aggregation import DivergenceEstimator, Mode

if TYPE_CHECKING:
    from collections.abc import Iterator

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


CORRECTION = "use_bias_correction_kl"
"""The setting that multiplies the divergence by the ratio."""


def modes() -> frozenset[Mode]:
    """The modes whose loss types the loss knows."""
    return frozenset(mode for mode, name in LOSS_TYPES.items() if has_loss_type(name))


def default_mode() -> Mode:
    """The mode of the loss type that is trained if a user chooses none."""
    return {name: mode for mode, name in LOSS_TYPES.items()}[_defaults()["loss_type"]]


def has_loss_type(name: str) -> bool:
    """Whether the loss has a case for a loss type."""
    return name in _texts(_loss().__code__.co_consts)


def objectives() -> frozenset[Objective]:
    """The objectives whose settings and loss types there are.

    Versions before 1.10 add an entropy bonus in a way that depends on the loss type.
    """
    found = {
        objective
        for objective, settings in OF_OBJECTIVES.items()
        if settings.keys() <= _defaults().keys()
        if objective not in OWN_LOSS_TYPES or has_loss_type(OWN_LOSS_TYPES[objective][1])
    }
    if "accumulation_factor" not in _loss().__code__.co_varnames:
        found -= {Objective.ENTROPY, Objective.COMBINED}
    return frozenset({Objective.POLICY, Objective.OFF_POLICY, *found})


def kl_estimator() -> DivergenceEstimator:
    """The estimator of the divergence in the loss, by default."""
    corrected = _defaults().get(CORRECTION)
    return DivergenceEstimator.K3_BY_RATIO if corrected else DivergenceEstimator.K3


def _loss() -> Any:
    return module("trainer.grpo_trainer").GRPOTrainer._compute_loss


def _defaults() -> dict[str, Any]:
    """The defaults of TRL's configuration, by name."""
    return {one.name: one.default for one in fields(module("trainer.grpo_config").GRPOConfig)}


def _texts(constants: tuple[object, ...]) -> Iterator[str]:
    """Yield the texts of a function's constants, which lists and sets are tuples of."""
    for constant in constants:
        if isinstance(constant, str):
            yield constant
        elif isinstance(constant, (tuple, frozenset)):
            yield from _texts(tuple(constant))
