"""The record of NeMo-RL: options of its example configurations, and what it documents."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from adapters.contract.description import Assumed, Documented
from adapters.contract.framework import Framework
from adapters.contract.job import Unsupported
from adapters.contract.layout import Option
from adapters.contract.objective import (
    ADVANTAGE_CONSTANTS,
    CONSTANTS,
    KL_COEFFICIENT,
    Metric,
    Objective,
)
from adapters.contract.tables import read_departures, read_options
from adapters.engines.shells import CPU_AS_CUDA, NOTHING_LEARNED, ZEROED
from adapters.toolkit.settings import largest_micro_batch, samples_per_step, token_budget
from reference.aggregation import (
    AuxiliaryAggregation,
    Compared,
    DenominatorMask,
    DivergenceEstimator,
    EmptyUnits,
    EstimatorConventions,
    LoggedMean,
    Lone,
    Mode,
    Rejected,
)

if TYPE_CHECKING:
    from adapters.contract import Job


def _multiple(job: Job) -> int:
    """The number that must divide row lengths: context-parallel ranks have two slices each."""
    return 1 if job.layout.cp == 1 else 2 * job.layout.cp


def _budget(job: Job) -> int:
    """The tokens that a micro-batch may have: about a third of a rank's."""
    return -(-token_budget(job.steps, job.layout.dp) // _multiple(job)) * _multiple(job)


def _all_tokens(job: Job) -> int:
    """A token budget with which a rank has one micro-batch."""
    if job.layout.micro_batches != 1:
        raise Unsupported("packed micro-batches are cut by tokens, not by their number")
    return max(int((step.prompt_lengths + step.response_lengths).sum()) for step in job.steps)


CLIPPED = {
    "loss_fn.ratio_clip_min": CONSTANTS.clip_low,
    "loss_fn.ratio_clip_max": CONSTANTS.clip_high,
}
CORRECTED = {**CLIPPED, "loss_fn.use_importance_sampling_correction": True}
LOW = "loss_fn.truncated_importance_sampling_ratio_min"
HIGH = "loss_fn.truncated_importance_sampling_ratio"
KIND = "loss_fn.truncated_importance_sampling_type"
FILTERED = {
    **CORRECTED,
    KIND: "icepop",
    HIGH: CONSTANTS.truncation,
    LOW: CONSTANTS.kept_low,
}
NORMALIZATION = "docs/guides/grpo.md, Loss Normalization"

NEMO_RL = Framework(
    title="NeMo-RL",
    scope="Of GRPO unless a row says otherwise.",
    modes={
        "token_level_loss=true": (Mode.TOKEN_MEAN, {"loss_fn.token_level_loss": True}),
        "token_level_loss=false": (Mode.SAMPLE_MEAN, {"loss_fn.token_level_loss": False}),
    },
    objectives={
        Objective.POLICY: {},
        Objective.OFF_POLICY: CLIPPED,
        Objective.DUAL_CLIP: {**CLIPPED, "loss_fn.ratio_clip_c": CONSTANTS.dual_clip},
        Objective.GSPO: {**CLIPPED, "loss_fn.sequence_level_importance_ratios": True},
        Objective.CISPO: {**CLIPPED, "loss_fn.use_cispo": True},
        Objective.GPG: {"loss_fn.disable_ppo_ratio": True},
        Objective.KL: {
            "loss_fn.reference_policy_kl_penalty": KL_COEFFICIENT,
            "loss_fn.use_kl_in_reward": False,
        },
        Objective.TIS_TOKEN: {**CORRECTED, KIND: "tis", HIGH: CONSTANTS.truncation},
        Objective.TIS_BOUNDED: {
            **CORRECTED,
            KIND: "tis",
            HIGH: CONSTANTS.truncation,
            LOW: CONSTANTS.kept_low,
        },
        Objective.ICEPOP: {
            **CORRECTED,
            KIND: "icepop",
            HIGH: CONSTANTS.truncation,
            LOW: CONSTANTS.kept_low,
        },
        Objective.REJECTION: FILTERED,
        Objective.REJECTION_OFF_POLICY: FILTERED,
        Objective.SEQUENCE_MASKED: {
            **CORRECTED,
            KIND: "seq-mask-tis",
            HIGH: CONSTANTS.kept_high,
            LOW: CONSTANTS.kept_low,
        },
        Objective.GROUP_NORMALISED: {"grpo.use_leave_one_out_baseline": False},
        Objective.GROUP_CENTRED: {
            "grpo.use_leave_one_out_baseline": False,
            "grpo.normalize_rewards": False,
        },
        Objective.LEAVE_ONE_OUT: {"grpo.normalize_rewards": False},
        Objective.OTHERS_NORMALISED: {
            "grpo.use_leave_one_out_baseline": True,
            "grpo.normalize_rewards": True,
        },
        Objective.REINFORCE_PP_BASELINE: {
            "grpo.adv_estimator.name": "reinforce_plus_plus",
            "loss_fn.use_kl_in_reward": True,
            "loss_fn.reference_policy_kl_type": "k1",
            "loss_fn.reference_policy_kl_penalty": ADVANTAGE_CONSTANTS.penalty,
        },
        Objective.SFT: {},
    },
    only_modes={
        Objective.GSPO: Mode.SAMPLE_MEAN,
        Objective.CISPO: Mode.TOKEN_MEAN,
        Objective.SFT: Mode.TOKEN_MEAN,
    },
    layout={
        "mb-bshd": {"policy.train_micro_batch_size": largest_micro_batch},
        "mbtokens-bshd": {
            "policy.dynamic_batching.enabled": True,
            "policy.dynamic_batching.train_mb_tokens": _budget,
        },
        "thd": {"policy.sequence_packing.enabled": True},
        "mb-thd": {"policy.sequence_packing.train_mb_tokens": _all_tokens},
        "mbtokens-thd": {"policy.sequence_packing.train_mb_tokens": _budget},
        "cp": {
            "policy.dtensor_cfg.context_parallel_size": lambda job: job.layout.cp,
            "policy.make_sequence_length_divisible_by": _multiple,
            "policy.dynamic_batching.sequence_length_round": _multiple,
        },
    },
    always={
        "checkpointing.enabled": False,
        "cluster.gpus_per_node": lambda job: job.layout.world_size,
        # Each sample is given as a prompt of its own, in one step of a trainer.
        "grpo.num_prompts_per_step": lambda job: sum(step.size for step in job.steps),
        "grpo.num_generations_per_prompt": 1,
        "grpo.max_num_steps": 1,
        "grpo.max_num_epochs": 1,
        "grpo.val_period": 0,
        "sft.max_num_steps": 1,
        "sft.max_num_epochs": 1,
        "sft.val_period": 0,
        "policy.model_name": "probe",
        "policy.precision": "float32",
        "policy.max_grad_norm": None,
        "policy.optimizer.kwargs.lr": 0.0,
        "policy.optimizer.kwargs.weight_decay": 0.0,
        "policy.train_global_batch_size": lambda job: samples_per_step(job.steps),
        "policy.dynamic_batching.enabled": False,
        "policy.sequence_packing.enabled": False,
        "loss_fn.reference_policy_kl_penalty": 0.0,
    },
    metrics={
        Metric.POLICY_LOSS: "loss",
        Metric.RATIO: "probs_ratio",
        Metric.REJECTED: "is_oob_ratio",
        Metric.REWARD: "reward",
        Metric.ADVANTAGE: "advantages/mean",
    },
    # Samples whose multiplier of the loss is 0 are invalid, and N is the number of valid ones;
    # denominators count all unmasked tokens, and what truncated importance sampling filters has a
    # weight of 0 (docs/guides/prorlv2.md, Filtering Strategies). Assumptions were read off
    # `algorithms/advantage_estimator.py`, whose variance has the divisor n, and off
    # `ClippedPGLossFn`, whose k3 has a gradient through the sampling probability.
    conventions={
        "empty_units": Documented(EmptyUnits.EXCLUDED, NORMALIZATION),
        "denominator_mask": Documented(DenominatorMask.ORIGINAL, NORMALIZATION),
        "kl": Documented(AuxiliaryAggregation.WITH_POLICY_LOSS, NORMALIZATION),
        "diagnostics": Documented(
            AuxiliaryAggregation.TOKEN_MEAN, "docs/guides/grpo.md, How metrics are normalized"
        ),
        "of_groups": Assumed(EstimatorConventions(lost_degrees_of_freedom=0)),
        "compared": Assumed(Compared.SAMPLES),
        "rejected_rewards": Assumed(Rejected.COUNTED),
        "lone_reward": Assumed(Lone.ZERO),
        "logged_advantages": Assumed(LoggedMean(mode=Mode.TOKEN_MEAN)),
        "kl_estimator": Assumed(DivergenceEstimator.K3_BY_RATIO),
    },
    options=read_options("adapters.nemo_rl"),
    departures=(*read_departures("adapters.nemo_rl"), NOTHING_LEARNED, ZEROED, CPU_AS_CUDA),
)

DTENSOR_V1 = replace(NEMO_RL, always={**NEMO_RL.always, "policy.dtensor_cfg._v2": False})

DTENSOR_V2 = replace(
    NEMO_RL,
    always={**NEMO_RL.always, "policy.dtensor_cfg._v2": True},
    layout={
        **NEMO_RL.layout,
        Option.HYBRID_SHARDING: {"+policy.dtensor_cfg.dp_replicate_size": 2},
    },
)
