"""The record of open-instruct: fields of its two configurations, and what it documents."""

from __future__ import annotations

from typing import TYPE_CHECKING

from adapters.contract.description import Assumed, Documented, parse_departures
from adapters.contract.framework import Framework, parse_options
from adapters.contract.layout import Option
from adapters.contract.objective import CONSTANTS, KL_COEFFICIENT, Metric, Objective
from adapters.open_instruct.packing import Packing
from adapters.toolkit.settings import gives_advantages, samples_of_prompt, samples_per_step
from reference.aggregation import (
    AuxiliaryAggregation,
    DenominatorMask,
    DivergenceEstimator,
    EstimatorConventions,
    Mode,
)

if TYPE_CHECKING:
    from adapters.contract import Job

STAGES = {Option.ZERO_1: 1, Option.ZERO_2: 2, Option.ZERO_3: 3}
"""Options that choose a stage of ZeRO other than the default, 0."""

OPTIONS = "open_instruct/grpo_utils.py (GRPOExperimentConfig)"


def _denominator(job: Job) -> str:
    """The one number that a step's loss is divided by: `constant` divides by samples too."""
    return str((job.aggregation.divisor or 1.0) * samples_per_step(job.steps))


def _stage(job: Job) -> int:
    """Ulysses is for stage 3 alone."""
    return 3 if job.layout.cp > 1 else 0


def _samples_of_prompt(job: Job) -> int:
    name = "num_samples_per_prompt_rollout"
    return 1 if gives_advantages(job) else samples_of_prompt(job, name)


CLIPPED = {
    "num_epochs": 2,
    "clip_lower": CONSTANTS.clip_low,
    "clip_higher": CONSTANTS.clip_high,
}
MASKED = {"rho_mask_lower_bound": 0.5, "rho_mask_upper_bound": 5.0}
UNCLAMPED = {"rho_clamp_lower_bound": 0.0, "rho_clamp_upper_bound": 0.0}
KL = {"load_ref_policy": True, "beta": KL_COEFFICIENT}
OF_GROUPS = EstimatorConventions(lost_degrees_of_freedom=0, std_epsilon=1e-8)

OPEN_INSTRUCT = Framework(
    title="open-instruct",
    scope="Fields of `GRPOExperimentConfig` and `StreamingDataLoaderConfig`.",
    modes={
        "token": (Mode.TOKEN_MEAN, {"loss_denominator": "token"}),
        "constant": (Mode.CONSTANT, {"loss_denominator": _denominator}),
    },
    objectives={
        Objective.POLICY: {},
        Objective.OFF_POLICY: CLIPPED,
        Objective.REJECTION: MASKED,
        Objective.REJECTION_OFF_POLICY: {**CLIPPED, **MASKED},
        Objective.TIS_TOKEN: {**CLIPPED, "rho_clamp_upper_bound": CONSTANTS.truncation},
        Objective.TIS_BOUNDED: {
            **CLIPPED,
            "rho_clamp_lower_bound": CONSTANTS.kept_low,
            "rho_clamp_upper_bound": CONSTANTS.truncation,
        },
        Objective.ICEPOP: {
            **CLIPPED,
            **UNCLAMPED,
            "rho_mask_lower_bound": CONSTANTS.kept_low,
            "rho_mask_upper_bound": CONSTANTS.truncation,
        },
        Objective.SEQUENCE_MASKED: {
            **CLIPPED,
            **UNCLAMPED,
            "rho_mask_sequence_level": True,
            "rho_mask_lower_bound": CONSTANTS.kept_low,
            "rho_mask_upper_bound": CONSTANTS.kept_high,
        },
        Objective.KL: KL,
        Objective.GROUP_NORMALISED: {"advantage_normalization_type": "standard"},
        Objective.GROUP_CENTRED: {"advantage_normalization_type": "centered"},
    },
    layout={
        "mb mbtokens": {"pack_length": lambda job: Packing.of(job).pack_length},
        "cp": {"sequence_parallel_size": lambda job: job.layout.cp},
        **{option: {"deepspeed_stage": stage} for option, stage in STAGES.items()},
        Option.SHARED_GENERATION: {"num_mini_batches": lambda job: len(job.steps)},
        Option.TWO_EPOCHS: {"num_epochs": 2},
    },
    always={
        "deepspeed_stage": _stage,
        "deepspeed_zpg": 1,
        "world_size": lambda job: job.layout.world_size,
        "num_training_steps": lambda job: len(Packing.of(job).generations),
        "per_device_train_batch_size": lambda job: Packing.of(job).rows,
        "max_prompt_token_length": lambda job: Packing.of(job).longest[0],
        "response_length": lambda job: Packing.of(job).longest[1],
        "num_samples_per_prompt_rollout": _samples_of_prompt,
        "filter_zero_std_samples": False,
        "async_steps": lambda job: len(job.steps),
        "load_ref_policy": False,
        "beta": 0.0,
        "learning_rate": 0.0,
        "max_grad_norm": None,
    },
    metrics={
        Metric.POLICY_LOSS: "loss/policy_avg",
        Metric.LOSS: "loss/total_avg",
        Metric.CLIP_FRACTION: "policy/clipfrac_avg",
        Metric.KL: "objective/kl2_avg",
        Metric.REJECTED: "val/rho_drop_frac",
        Metric.REWARD: "scores",
        Metric.RESPONSE_LENGTH: "val/sequence_lengths",
        Metric.ADVANTAGE: "val/advantages_mean",
    },
    conventions={
        "denominator_mask": Documented(
            DenominatorMask.ORIGINAL, f"{OPTIONS}, use_rho_correction: the loss is zeroed out"
        ),
        "kl": Assumed(AuxiliaryAggregation.WITH_POLICY_LOSS),
        "kl_mask": Assumed(DenominatorMask.ORIGINAL),
        "kl_estimator": Documented(DivergenceEstimator.K3, f"{OPTIONS}, kl_estimator"),
        "logged_kl": Assumed(AuxiliaryAggregation.TOKEN_MEAN),
        "logged_policy_loss": Assumed(AuxiliaryAggregation.TOKEN_MEAN),
        "diagnostics": Assumed(AuxiliaryAggregation.TOKEN_MEAN),
        "diagnostics_mask": Assumed(DenominatorMask.ORIGINAL),
        "of_groups": Assumed(OF_GROUPS),
    },
    options=parse_options(
        """
        loss_denominator | the mode
        """
    ),
    departures=parse_departures(
        """
        set: learning_rate 0
            it acts after the gradient is read
        """
    ),
)
