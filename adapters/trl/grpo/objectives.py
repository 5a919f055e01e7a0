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


CORRECTION = "use_bias_correction_kl"
"""The setting that multiplies the divergence by the ratio."""


def modes() -> frozenset[Mode]:
    """The modes whose loss types the loss implements."""
    return frozenset(mode for mode, name in LOSS_TYPES.items() if has_loss_type(name))


def default_mode() -> Mode:
    """The mode of the default loss type."""
    return {name: mode for mode, name in LOSS_TYPES.items()}[_defaults()["loss_type"]]


def has_loss_type(name: str) -> bool:
    """Whether the loss implements a loss type."""
    return name in _texts(_loss().__code__.co_consts)


def objectives() -> frozenset[Objective]:
    """The objectives whose settings and loss types exist.

    In versions before 1.10 the entropy bonus depends on the loss type.
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
    """The default estimator of the divergence in the loss."""
    corrected = _defaults().get(CORRECTION)
    return DivergenceEstimator.K3_BY_RATIO if corrected else DivergenceEstimator.K3


def _loss() -> Any:
    return module("trainer.grpo_trainer").GRPOTrainer._compute_loss


def _defaults() -> dict[str, Any]:
    """The defaults of TRL's configuration, by name."""
    return {one.name: one.default for one in fields(module("trainer.grpo_config").GRPOConfig)}


def _texts(constants: tuple[object, ...]) -> Iterator[str]:
    """Yield the strings among a function's constants, where lists and sets are tuples."""
    for constant in constants:
        if isinstance(constant, str):
            yield constant
        elif isinstance(constant, (tuple, frozenset)):
            yield from _texts(tuple(constant))
