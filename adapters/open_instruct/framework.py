"""The record of open-instruct: fields of its two configurations, and what it documents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from adapters.contract.description import Assumed, Documented
from adapters.contract.framework import Configurable, Framework
from adapters.contract.job import Setting, Unsupported
from adapters.contract.layout import Option
from adapters.contract.objective import CONSTANTS, KL_COEFFICIENT, Metric, Objective
from adapters.contract.tables import read_departures, read_options
from adapters.engines import grpo
from adapters.engines.shells import CPU_AS_CUDA, PROBED, UNCOMPILED
from adapters.open_instruct.packing import packing_of
from adapters.toolkit.settings import (
    gives_advantages,
    longest,
    samples_of_prompt,
    samples_per_step,
)
from reference.aggregation import (
    AuxiliaryAggregation,
    DenominatorMask,
    Deviation,
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


def _samples_of_prompt(job: Job) -> int:
    """The samples of a prompt, whose rewards are compared before rows are sliced for ranks."""
    if gives_advantages(job):
        return 1
    if job.layout.cp > 1:
        raise Unsupported("open-instruct's advantages are looked at without Ulysses")
    return samples_of_prompt(job, "num_samples_per_prompt_rollout")


def _bounds(of: str, low: float, high: float) -> dict[str, Any]:
    return {f"{of}_lower_bound": low, f"{of}_upper_bound": high}


CLIPPED = {"num_epochs": 2, "clip_lower": CONSTANTS.clip_low, "clip_higher": CONSTANTS.clip_high}
MASKED = _bounds("rho_mask", 0.5, 5.0)
KEPT = (CONSTANTS.kept_low, CONSTANTS.truncation)
DROPPED = {**_bounds("rho_clamp", 0.0, 0.0), **_bounds("rho_mask", *KEPT)}
KL = {"load_ref_policy": True, "beta": KL_COEFFICIENT}

OPEN_INSTRUCT = Framework(
    title="open-instruct",
    scope="Fields of `GRPOExperimentConfig` and `StreamingDataLoaderConfig` that a step reads.",
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
        Objective.TIS_BOUNDED: {**CLIPPED, **_bounds("rho_clamp", *KEPT)},
        Objective.ICEPOP: {**CLIPPED, **DROPPED},
        Objective.KL: KL,
        Objective.GROUP_NORMALISED: {"advantage_normalization_type": "standard"},
        Objective.GROUP_CENTRED: {"advantage_normalization_type": "centered"},
    },
    configurations={
        Setting.MODE: Configurable({"loss_denominator": ""}, ("loss_denominator",)),
        Setting.DIVISOR: Configurable(
            {"loss_denominator": lambda job: job.configuration.divisor}, ("loss_denominator",)
        ),
        Setting.KL: Configurable(KL, ("beta",)),
    },
    rules={
        "default_mode": f"{OPTIONS}, loss_denominator",
        **dict.fromkeys(("divisor_zero", "divisor_negative"), f"{OPTIONS}, __post_init__"),
    },
    permits={"divisor_missing": f"{OPTIONS}, loss_denominator: a mode of its own"},
    deliberate={
        "samples_dropped": Documented(
            "rows that do not divide by ranks are dropped with a warning",
            "open_instruct/data_loader.py (prepare_collated_data_for_workers)",
        ),
    },
    layout={
        "mb mbtokens": {"pack_length": lambda job: packing_of(job).pack_length},
        "cp": {"sequence_parallel_size": lambda job: job.layout.cp},
        **{option: {"deepspeed_stage": stage} for option, stage in STAGES.items()},
        Option.SHARED_GENERATION: {"num_mini_batches": lambda job: len(job.steps)},
        Option.TWO_EPOCHS: {"num_epochs": 2},
    },
    always={
        "deepspeed_stage": lambda job: 3 if job.layout.cp > 1 else 0,  # Ulysses is for 3 alone
        "deepspeed_zpg": 1,
        "world_size": lambda job: job.layout.world_size,
        "num_training_steps": lambda job: len(packing_of(job).generations),
        "per_device_train_batch_size": lambda job: packing_of(job).rows,
        "max_prompt_token_length": lambda job: longest(job)[0],
        "response_length": lambda job: longest(job)[1],
        "num_samples_per_prompt_rollout": _samples_of_prompt,
        "filter_zero_std_samples": False,
        "async_steps": lambda job: len(job.steps),
        "load_ref_policy": False,
        "beta": 0.0,
        "learning_rate": 0.0,
        "max_grad_norm": None,
        "set_weight_decay_on_bias_and_norm": False,
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
        "of_groups": Assumed(EstimatorConventions(lost_degrees_of_freedom=0, std_epsilon=1e-8)),
        "deviation": Assumed(Deviation.BIASED),  # NumPy's
    },
    options=read_options("adapters.open_instruct"),
    departures=(
        *read_departures("adapters.open_instruct"),
        CPU_AS_CUDA,
        PROBED,
        UNCOMPILED,
        grpo.OF_DTYPE,
        grpo.OF_VALUES,
    ),
)
