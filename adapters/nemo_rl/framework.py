"""The record of NeMo-RL: options of its example configurations, and what it documents."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from adapters.contract.description import Assumed, Documented, parse_departures
from adapters.contract.framework import Framework, parse_options
from adapters.contract.job import Unsupported
from adapters.contract.layout import Option
from adapters.contract.objective import (
    ADVANTAGE_CONSTANTS,
    CONSTANTS,
    KL_COEFFICIENT,
    Metric,
    Objective,
)
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


def _micro_batch_size(job: Job) -> int:
    """The samples of a micro-batch."""
    return largest_micro_batch(job, samples_per_step(job.steps))


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
        "mb-bshd": {"policy.train_micro_batch_size": _micro_batch_size},
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
    options=parse_options(
        """
        loss_fn.token_level_loss | the reduction of the policy loss and of the divergence
        loss_fn.ratio_clip_min, loss_fn.ratio_clip_max | the bounds of the ratio
        loss_fn.ratio_clip_c | the bound of the loss for negative advantages
        loss_fn.sequence_level_importance_ratios | ratios of tokens or of sequences
        loss_fn.use_cispo | clipped ratios on the log-probability
        loss_fn.disable_ppo_ratio | log-probabilities instead of ratios
        loss_fn.force_on_policy_ratio | the ratio is 1 | `weights` has ratios of 1
        loss_fn.use_importance_sampling_correction | losses are corrected by the ratio to the policy
            of the rollouts
        loss_fn.truncated_importance_sampling_type, loss_fn.truncated_importance_sampling_ratio,
            loss_fn.truncated_importance_sampling_ratio_min | what is truncated or filtered, and the
            bounds
        loss_fn.reference_policy_kl_penalty | the divergence in the loss
        loss_fn.reference_policy_kl_type | its estimator | `auxiliary.kl` has the default, `k3`
        loss_fn.use_on_policy_kl_approximation, loss_fn.kl_input_clamp_value,
            loss_fn.kl_output_clamp_value | the divergence is weighted by another ratio, or clamped
            | ratios are 1 where it is in the loss, and no divergence is so large
        loss_fn.use_kl_in_reward | the divergence in advantages
        loss_fn.positive_example_nll_weight | the likelihood of rewarded samples, in PPO | the
            reference has no such term
        grpo.adv_estimator.name, grpo.normalize_rewards, grpo.use_leave_one_out_baseline |
            advantages | those of `grpo` and `reinforce_plus_plus`; `gdpo` and `opd` have no formula
            in the reference
        grpo.advantage_clip_low, grpo.advantage_clip_high, grpo.reward_scaling, grpo.reward_shaping,
            grpo.use_dynamic_sampling | rewards and advantages before the loss | they are a case's
        grpo.overlong_filtering, grpo.seq_logprob_error_threshold | samples that are not valid |
            `weights` has samples that are not valid, by their multiplier
        policy.train_global_batch_size | optimizer steps of a batch | a batch is one step, but in
            `advantages.reinforce_pp_baseline`
        policy.train_micro_batch_size, policy.dynamic_batching.enabled,
            policy.dynamic_batching.train_mb_tokens, policy.sequence_packing.enabled,
            policy.sequence_packing.train_mb_tokens | micro-batches
        policy.dtensor_cfg.context_parallel_size, policy.make_sequence_length_divisible_by,
            policy.dynamic_batching.sequence_length_round | sequences split over ranks
        policy.dtensor_cfg._v2 | the worker | the engines are looked at one by one
        +policy.dtensor_cfg.dp_replicate_size | copies of a sharded model
        policy.dtensor_cfg.tensor_parallel_size, policy.dtensor_cfg.sequence_parallel,
            policy.dtensor_cfg.lora_cfg, policy.dtensor_cfg.activation_checkpointing | layers of the
            model | the probe's model has none
        policy.megatron_cfg | the Megatron worker | it is not driven
        policy.generation.temperature, policy.generation.top_p, policy.generation.top_k | what
            logits are divided by, and the tokens that log-probabilities are of | those of the
            default are run
        policy.precision | precision | `float32` is run
        policy.max_grad_norm | the norm of the gradient | the gradient is read before it
        data_plane.enabled, grpo.async_grpo.enabled | the trainer | the default one is run
        """
    ),
    departures=parse_departures(
        """
        not_run: `setup`, data sets, environments and rollouts
            a batch of rollouts is given to `grpo_train` or `sft_train`
        not_run: `grpo_train_sync`, `async_grpo_train` and the single controller
            the default trainer runs (data_plane.enabled=false)
        set: each sample as a prompt of its own (num_generations_per_prompt=1), and one trainer step
        for each optimizer step
            samples are a case's; where NeMo-RL computes advantages, all optimizer steps of a batch
            come from one
        set: masked tokens of a response as an environment's turns, and a sample without active
        tokens as one with a loss multiplier of 0
            NeMo-RL masks tokens and samples in this way
        set: a prompt as a conversation with an earlier turn of the policy, except in SFT
            no turn of a prompt is trained on
        set: log-probabilities of the policy, the reference policy and the rollouts, 64 below 0
            ratios are a case's; if all are 1, the old log-probabilities are the policy's own
        stubbed: the advantage estimator, by the job's advantages, except in checks on NeMo-RL's own
            they are signed powers of two, on which no weight depends
        set: prompts to one token where NeMo-RL's estimators group samples by prompt
            token ids of probed samples all differ, in prompts too
        set: precision=float32
            the tolerance is derived from the dtype, which a report names
        set: row lengths to multiples of 2 · cp under context parallelism
            the documentation of `shard_by_batch_size` requires it
        set: no validation, no checkpoints
            both happen between steps
        stubbed: Ray's worker group, by one worker per rank, which is called with its share of the
        data
            NeMo-RL's policy deals the shares; results are gathered from all ranks
        stubbed: the model, by one whose log-softmax is the probe's, sharded by the worker itself
            weights are read through it; NeMo-RL's own code computes log-probabilities from logits
        set: workers and process groups are made once per world
            their only state is the probe, which is 0
        stubbed: the rollout engine, the logger, and the memory tracker
            nothing listens, and logged numbers are those handed to the logger
        passed_by: moving a model between devices, and binding processes to a GPU's cores
            the model stays where it is
        stubbed: packages that track a run, read images and sound or measure GPUs, and the data sets
        that use them
            no step uses them
        """,
        NOTHING_LEARNED,
        ZEROED,
        CPU_AS_CUDA,
    ),
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
