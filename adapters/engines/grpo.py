"""GRPO's options by TRL's names, which ms-swift's trainers, Liger-Kernel and Unsloth share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from adapters.contract.description import Assumed, Convention
from adapters.contract.objective import CONSTANTS, KL_COEFFICIENT, Metric, Objective
from adapters.contract.tables import read_departures, read_options
from reference.aggregation import AuxiliaryAggregation, EstimatorConventions, Mode

if TYPE_CHECKING:
    from adapters.contract.framework import Settings

CLIPPED = {"epsilon": CONSTANTS.clip_low, "epsilon_high": CONSTANTS.clip_high}
PENALTY = {"beta": KL_COEFFICIENT}


def modes(divisor: Settings) -> dict[str, tuple[Mode, Settings]]:
    """The modes of the losses that are means of tokens; ``divisor`` is the constant of one."""
    return {
        "grpo": (Mode.SAMPLE_MEAN, {"loss_type": "grpo"}),
        "dapo": (Mode.TOKEN_MEAN, {"loss_type": "dapo"}),
        "dr_grpo": (Mode.CONSTANT, {"loss_type": "dr_grpo", **divisor}),
    }


def objectives(off_policy: Settings, temperatures: tuple[str, str]) -> dict[Objective, Settings]:
    """The policy losses, and the divergence; ``temperatures`` are the names of SAPO's."""
    of_sapo = (CONSTANTS.positive_temperature, CONSTANTS.negative_temperature)
    return {
        Objective.POLICY: {},
        Objective.OFF_POLICY: off_policy,
        Objective.DUAL_CLIP: {**off_policy, "delta": CONSTANTS.dual_clip},
        Objective.GSPO: {**off_policy, "importance_sampling_level": "sequence"},
        Objective.SAPO: {
            **off_policy,
            "loss_type": "sapo",
            **dict(zip(temperatures, of_sapo, strict=True)),
        },
        Objective.KL: PENALTY,
    }


SCALED: dict[Objective, Settings] = {
    Objective.GROUP_NORMALISED: {"scale_rewards": "group"},
    Objective.GROUP_CENTRED: {"scale_rewards": "none"},
}
"""The option that chooses how trainers compare rewards."""

METRICS = {
    Metric.LOSS: "loss",
    Metric.CLIP_FRACTION: "clip_ratio/region_mean",
    Metric.KL: "kl",
    Metric.REWARD: "reward",
}

ASSUMED: dict[str, Convention] = {
    "diagnostics": Assumed(AuxiliaryAggregation.TOKEN_MEAN),
    "of_groups": Assumed(EstimatorConventions(std_epsilon=1e-4)),
    "logged_kl": Assumed(AuxiliaryAggregation.TOKEN_MEAN),
}
"""The documents do not say whether what they call averages over completions is pooled."""

OPTIONS = read_options("adapters.engines")

OF_VALUES, OF_HUB, OF_DTYPE, OF_POLICIES, OF_PROMPTS = read_departures("adapters.engines", "grpo")

OF_ALL, OF_GENERATING = (OF_VALUES, OF_HUB, OF_DTYPE), (OF_POLICIES, OF_PROMPTS)


def micro_batches(schedule: Any) -> dict[str, Settings]:
    """The options of micro-batches, by what makes the schedule of a job."""
    return {
        "mb": {
            "per_device_train_batch_size": lambda job: schedule(job).micro_batch_size,
            "gradient_accumulation_steps": lambda job: schedule(job).micro_batches,
        }
    }
