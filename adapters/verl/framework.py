"""The record of verl: its options as users type them, and what it documents."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from adapters.contract.description import Assumed, Documented, FixedMode, documented
from adapters.contract.framework import Configurable, Framework, Settings, parse_options
from adapters.contract.job import Setting
from adapters.contract.layout import Option
from adapters.contract.objective import (
    ADVANTAGE_CONSTANTS,
    CONSTANTS,
    ENTROPY_COEFFICIENT,
    KL_COEFFICIENT,
    Metric,
    Objective,
)
from adapters.engines import router
from adapters.verl import departures
from adapters.verl.corrections import ALL_CRITERIA, CLIPPED, LOSS, OBJECTIVES, REJECTED
from adapters.verl.sizes import DIVIDED, BatchSizes, cut, divisor, mode_of_divisor
from adapters.verl.teacher import OBJECTIVES as OF_TEACHER
from reference.aggregation import (
    AuxiliaryAggregation,
    Compared,
    ComparedTokens,
    DenominatorMask,
    EmptyUnits,
    EstimatorConventions,
    LoggedMean,
    Lone,
    Mode,
    Rejected,
    TokenSet,
)

CHECKPOINT = Path(__file__).parent / "checkpoint"
GIVEN = "given"
"""The name under which given advantages are registered as an estimator."""

ENTROPY: Settings = {"entropy_coeff": ENTROPY_COEFFICIENT}
KL: Settings = {"use_kl_loss": True, "kl_loss_type": "k1", "kl_loss_coef": KL_COEFFICIENT}

ESTIMATOR = "algorithm.adv_estimator"
DISCOUNTED: Settings = {
    "algorithm.gamma": ADVANTAGE_CONSTANTS.discount,
    "algorithm.lam": ADVANTAGE_CONSTANTS.trace,
}
PENALISED: Settings = {
    "algorithm.use_kl_in_reward": True,
    "algorithm.kl_penalty": "kl",
    "algorithm.kl_ctrl.kl_coef": ADVANTAGE_CONSTANTS.penalty,
}
CRITIC: Settings = {"critic.enable": True}
SKIPPING = EstimatorConventions(transitions=TokenSet.ACTIVE, rewarded=TokenSet.RESPONSE)
OF_ACTIVE_TOKENS = LoggedMean(mode=Mode.TOKEN_MEAN)
MASKED_NAN = "verl/utils/torch_functional.py (masked_sum): NaN outside the mask becomes 0"
DIVISOR_BY_DEFAULT = (
    "verl/workers/config/actor.py (ActorConfig: if loss_scale_factor is None, response_length)"
)

VERL = Framework(
    title="verl",
    scope="Below `actor_rollout_ref.actor` unless a name begins with another section.",
    modes={
        "token-mean": (Mode.TOKEN_MEAN, {"loss_agg_mode": "token-mean"}),
        "seq-mean-token-mean": (Mode.SAMPLE_MEAN, {"loss_agg_mode": "seq-mean-token-mean"}),
        DIVIDED: (
            Mode.CONSTANT,
            {"loss_agg_mode": mode_of_divisor, "loss_scale_factor": divisor},
        ),
        "seq-mean-token-sum": ("constant:1", {"loss_agg_mode": "seq-mean-token-sum"}),
    },
    # The estimator `reinforce_plus_plus_baseline` uses only sample rewards, without the penalty on
    # each token that `REINFORCE_PP_BASELINE` has.
    objectives={
        Objective.POLICY: {},
        Objective.ENTROPY: ENTROPY,
        Objective.KL: KL,
        Objective.WITH_ENTROPY: ENTROPY,
        Objective.COMBINED: {**ENTROPY, **KL},
        Objective.OFF_POLICY: CLIPPED,
        Objective.DUAL_CLIP: {**CLIPPED, "clip_ratio_c": CONSTANTS.dual_clip},
        Objective.GSPO: {**CLIPPED, LOSS: "gspo"},
        Objective.CISPO: {**CLIPPED, LOSS: "cispo"},
        Objective.SAPO: {
            LOSS: "sapo",
            "tau_pos": CONSTANTS.positive_temperature,
            "tau_neg": CONSTANTS.negative_temperature,
        },
        # No token has so large a covariance: which ones of several are clipped is random.
        Objective.CLIP_COV: {**CLIPPED, LOSS: "clip_cov", "policy_loss.clip_cov_lb": 1.0},
        Objective.KL_COV: {
            LOSS: "kl_cov",
            "policy_loss.kl_cov_ratio": 1.0,
            "policy_loss.ppo_kl_coef": CONSTANTS.kl_penalty,
        },
        Objective.GEO_MEAN: {**CLIPPED, LOSS: "geo_mean"},
        Objective.GPG: {LOSS: "gpg"},
        Objective.DRO: {LOSS: "dro", "policy_loss.dro_beta": CONSTANTS.kl_penalty},
        Objective.REJECTION: REJECTED,
        Objective.REJECTION_OFF_POLICY: {**CLIPPED, **ALL_CRITERIA},
        Objective.REJECTION_COMBINED: {**ENTROPY, **KL, **REJECTED},
        **OBJECTIVES,
        Objective.GROUP_NORMALISED: {ESTIMATOR: "grpo"},
        Objective.GROUP_CENTRED: {ESTIMATOR: "grpo", "algorithm.norm_adv_by_std_in_grpo": False},
        Objective.LEAVE_ONE_OUT: {ESTIMATOR: "rloo"},
        Objective.REINFORCE_PP: {ESTIMATOR: "reinforce_plus_plus", **DISCOUNTED, **PENALISED},
        Objective.GAE: {ESTIMATOR: "gae", **DISCOUNTED, **CRITIC},
        Objective.PENALISED_GAE: {ESTIMATOR: "gae", **DISCOUNTED, **PENALISED, **CRITIC},
        Objective.VALUE: CRITIC,
        Objective.VALUE_CLIPPED: {**CRITIC, "critic.cliprange_value": CONSTANTS.value_clip},
        **OF_TEACHER,
        Objective.SFT: {},
    },
    only_modes={Objective.GEO_MEAN: Mode.SAMPLE_MEAN, Objective.SFT: Mode.TOKEN_MEAN},
    # verl requires or recommends one mode for these losses, as their papers do; since 0.9.1 GSPO
    # accepts any.
    fixed_modes={
        objective: FixedMode(
            Mode.SAMPLE_MEAN,
            f"verl/trainer/ppo/core_algos.py (compute_policy_loss_{objective}:"
            " seq-mean-token-mean)",
        )
        for objective in (Objective.SAPO, Objective.GSPO)
    },
    layout={
        "thd": {"actor_rollout_ref.model.use_remove_padding": True},
        "bshd": {"actor_rollout_ref.model.use_remove_padding": False},
        Option.TWO_EPOCHS: {"ppo_epochs": 2},
    },
    always={
        "actor_rollout_ref.model.path": str(CHECKPOINT),
        "actor_rollout_ref.model.load_tokenizer": False,
        "actor_rollout_ref.model.override_config.attn_implementation": "eager",
        "actor_rollout_ref.model.enable_gradient_checkpointing": False,
        "actor_rollout_ref.rollout.name": "vllm",
        "optim.lr": 0.0,
        "optim.weight_decay": 0.0,
        "optim.clip_grad": 1e9,
        "optim.total_training_steps": 1,
        ESTIMATOR: GIVEN,
        "clip_ratio_c": 1e6,  # which no ratio reaches
        "loss_scale_factor": divisor,
        "trainer.n_gpus_per_node": lambda job: job.layout.world_size,
        "trainer.nnodes": 1,
    },
    # Those of the loss are logged by the worker for each mini-batch, the others by the trainer.
    metrics={
        Metric.POLICY_LOSS: "actor/pg_loss",
        Metric.LOSS: "loss",
        Metric.CLIP_FRACTION: "actor/pg_clipfrac",
        Metric.POLICY_KL: "actor/ppo_kl",
        Metric.ENTROPY: "actor/entropy_loss",
        Metric.KL: "kl_loss",
        # The returns that are given are twice the job's, and verl trains half of the error.
        Metric.VALUE_LOSS: "1/2 critic/vf_loss",
        Metric.REJECTED: "rollout_corr/rollout_rs_masked_fraction",
        Metric.REWARD: "critic/rewards/mean",
        Metric.RESPONSE_LENGTH: "response_length/mean",
        Metric.ADVANTAGE: "critic/advantages/mean",
        Metric.VALUE: "critic/values/mean",
        Metric.DIVERGENCE: "actor/reward_kl_penalty",
    },
    # The assumed ones come from `ppo_loss` in `workers/utils/losses.py`, which aggregates entropy
    # and divergence like the policy loss and averages diagnostics over micro-batches, and from
    # `compute_data_metrics` in `trainer/ppo/metric_utils.py`. A sample's reward is at its last
    # token (`experimental/agent_loop`). `agg_loss` in `trainer/ppo/core_algos.py` excludes fully
    # masked sequences from its sums, and its comments say so; its divisor is `global_batch_size`,
    # which trainers set to the configured size of a mini-batch.
    conventions={
        "denominator_mask": Documented(
            DenominatorMask.MODIFIED,
            "docs/algo/rollout_corr.md, Rejection Sampling (Separate Mechanism)",
        ),
        "empty_units": Assumed(EmptyUnits.COUNTED),
        "entropy": Assumed(AuxiliaryAggregation.WITH_POLICY_LOSS),
        "kl": Assumed(AuxiliaryAggregation.WITH_POLICY_LOSS),
        "diagnostics": Assumed(AuxiliaryAggregation.MICRO_BATCH_TOKEN_MEAN),
        "selected": Assumed(ComparedTokens.MICRO_BATCH),
        "rejected": Assumed(AuxiliaryAggregation.TOKEN_MEAN),
        "value_loss": Documented(
            AuxiliaryAggregation.WITH_POLICY_LOSS,
            "verl/trainer/config/critic/critic.yaml, loss_agg_mode",
        ),
        "of_returns": Documented(
            SKIPPING, "tests/trainer/ppo/test_reinforce_pp_multiturn_on_cpu.py"
        ),
        "of_values": Documented(SKIPPING, "tests/trainer/ppo/test_core_algos_on_cpu.py"),
        "compared": Assumed(Compared.SAMPLES),
        "rejected_rewards": Assumed(Rejected.COUNTED),
        "lone_reward": Assumed(Lone.REWARD),
        "logged_advantages": Assumed(OF_ACTIVE_TOKENS),
        "logged_values": Assumed(OF_ACTIVE_TOKENS),
    },
    configurations={
        Setting.MODE: Configurable({"loss_agg_mode": ""}, ("loss_agg_mode",)),
        Setting.DIVISOR: Configurable({"loss_scale_factor": divisor}, ("loss_scale_factor",)),
        Setting.ENTROPY: Configurable(ENTROPY, ("entropy_coeff",)),
        Setting.KL: Configurable(KL, ("use_kl_loss",)),
        Setting.BATCH_SIZE: Configurable(
            {"ppo_mini_batch_size": lambda job: job.configuration.batch_size}, ("mini_batch_size",)
        ),
    },
    rules={
        "default_mode": "verl/trainer/config/actor/actor.yaml (loss_agg_mode)",
        "divisor_by_default": DIVISOR_BY_DEFAULT,
        "poison.logged_old_log_probs": MASKED_NAN,
        "poison.logged_reference_log_probs": MASKED_NAN,
    },
    permits={"divisor_missing": DIVISOR_BY_DEFAULT},
    # `_update_actor` in `trainer/ppo/v1/trainer_base.py` and `ppo_loss` in
    # `workers/utils/losses.py`. verl says that padding rows contribute nothing
    # (`trainer/ppo/padding_utils.py`), which is true of their tokens.
    deliberate={
        "filling_rows_counted": Assumed(
            "global_batch_size is the configured size of a mini-batch, padded or not"
        ),
        "padding_micro_batches_averaged": Assumed(
            "metrics of the policy loss are means over micro-batches, padding-only ones included"
        ),
    },
    defaults=documented(
        "docs/ascend_tutorial/dev_guide/model_dev/parameter_and_metrics.md",
        {
            "clip_ratio_low": 0.2,
            "clip_ratio_high": 0.2,
            "clip_ratio_c": 3.0,
            "tau_pos": 1.0,
            "tau_neg": 1.05,
            "kl_loss_coef": 0.001,
            "policy_loss.clip_cov_lb": 1.0,
            "policy_loss.clip_cov_ub": 5.0,
            "policy_loss.kl_cov_ratio": 0.0002,
            "policy_loss.ppo_kl_coef": 0.1,
            "critic.cliprange_value": 0.5,
            "algorithm.gamma": 1.0,
            "algorithm.lam": 1.0,
            "algorithm.kl_ctrl.kl_coef": 0.001,
            "algorithm.rollout_correction.rollout_is_threshold": 2.0,
        },
    ),
    options=parse_options(
        """
        loss_agg_mode | the mode | with other divisors `seq-mean-token-sum-norm`, and with one over
            the number of samples, such as `--modes=constant:0.125` for 8, `token-sum`
        loss_scale_factor | the divisor of `constant` | left out, `arguments`
        policy_loss.loss_mode | the policy loss | elsewhere `vanilla`
        clip_ratio_low, clip_ratio_high | clipping bounds | they differ
        clip_ratio | both bounds, unless they are set | they are where a ratio is not 1
        clip_ratio_c | the bound of dual clip | no ratio reaches it elsewhere
        tau_pos, tau_neg | temperatures of SAPO
        policy_loss.clip_cov_ratio, policy_loss.clip_cov_lb, policy_loss.clip_cov_ub | tokens of
            large covariance are clipped | none, and all: which are drawn of several is random
        policy_loss.kl_cov_ratio, policy_loss.ppo_kl_coef | the penalty on tokens of large
            covariance | every token is chosen, or a quarter
        policy_loss.dro_beta | the quadratic penalty on the log-ratio
        entropy_coeff | the entropy bonus
        use_kl_loss, kl_loss_coef | the divergence in the loss
        kl_loss_type | the estimator of the divergence | all estimators are reduced by the same
            lines
        calculate_entropy, calculate_sum_pi_squared | what is computed besides the loss | no loss
            of ours uses it
        entropy_from_logits_with_chunking, entropy_from_logits_chunk_size, entropy_checkpointing,
            sum_pi_squared_checkpointing | how the entropy is computed | the default is run
        data.train_batch_size, ppo_mini_batch_size | several optimizer steps | several on
            `two_steps`, and rows of padding on `nine_samples`, `ten_samples` and `unequal_groups`
        actor_rollout_ref.rollout.n, rollout_n | samples of a prompt | more than 1 on cases whose
            prompts have equally many
        ppo_micro_batch_size_per_gpu, actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu,
            actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu | micro-batches | 1 and 2 of a
            rank
        ppo_micro_batch_size | micro-batches of all ranks | deprecated
        use_dynamic_bsz, ppo_max_token_len_per_gpu | micro-batches by tokens
        ppo_epochs | how often samples are trained | the second time is looked at
        shuffle, data_loader_seed | the order in which samples are trained | it would mix the
            samples of two steps
        strategy, trainer.use_v1 | the engine and the trainer
        fsdp_config.ulysses_sequence_parallel_size, ulysses_sequence_parallel_size | sequences split
            over ranks | the second is deprecated
        fsdp_config.fsdp_size | shards that are replicated
        megatron.context_parallel_size, megatron.tensor_model_parallel_size,
            megatron.pipeline_model_parallel_size, megatron.virtual_pipeline_model_parallel_size |
            Megatron's ways to share a sequence or a model
        megatron.use_distributed_optimizer | what of the optimizer is replicated | the default is
            on all others
        megatron.override_ddp_config.average_in_collective,
            megatron.override_ddp_config.overlap_grad_reduce | how Megatron reduces gradients
        megatron.override_transformer_config.calculate_per_token_loss | Megatron divides by tokens
        megatron.override_transformer_config.num_moe_experts,
            megatron.override_transformer_config.moe_router_topk,
            megatron.override_transformer_config.moe_router_pre_softmax,
            megatron.override_transformer_config.moe_router_load_balancing_type,
            megatron.override_transformer_config.moe_aux_loss_coeff,
            megatron.override_transformer_config.moe_z_loss_coeff,
            megatron.override_transformer_config.add_bias_linear |
            a mixture of experts and the losses of its router
        actor_rollout_ref.model.use_remove_padding, use_remove_padding | packed rows
        pad_to_length | packed rows are padded to few different lengths | the default is run
        actor_rollout_ref.model.use_fused_kernels, use_fused_kernels, use_prefix_grouper | kernels
            of their own for log-probabilities | the probe is in the plain functions
        use_torch_compile, freeze_vision_tower, load_weight | what is compiled, trained or loaded |
            no verdict depends on it
        grad_clip | the norm of the gradient | the gradient is read before it
        algorithm.adv_estimator | how advantages are computed | `grpo_vectorized` and
            `rloo_vectorized` are other code for `grpo` and `rloo`, which is not run.
            `reinforce_plus_plus_baseline` has no penalty on tokens, which the reference's has. The
            reference has no formula of `gpg`, `grpo_passk`, `opo`, `optimal_token_baseline` and
            `tir_optimal_token_baseline` yet. `gdpo` needs several rewards of a sample, `remax` a
            greedy sample of each prompt, and cases have neither. `gae` needs a critic, which is not
            driven before 0.8.0
        algorithm.norm_adv_by_std_in_grpo | the standard deviation of a group |
            `advantages.group_normalised` has the default
        algorithm.gamma, algorithm.lam | discounts | two different ones
        algorithm.use_kl_in_reward, algorithm.kl_penalty, algorithm.kl_ctrl.kl_coef | the divergence
            in the reward | with `kl`
        algorithm.kl_ctrl.type, algorithm.kl_ctrl.horizon, algorithm.kl_ctrl.target_kl | how its
            coefficient changes | it is fixed
        algorithm.use_pf_ppo, algorithm.pf_ppo.reweight_method, algorithm.pf_ppo.weight_pow |
            samples are drawn by their scores | which are drawn is random
        algorithm.filter_groups.enable, algorithm.filter_groups.metric,
            algorithm.filter_groups.max_num_gen_batches,
            algorithm.filter_groups.max_inflight_gen_batches | groups of equal rewards are left out
            | it comes before a step
        actor_rollout_ref.rollout.calculate_log_probs | the policy of the rollouts is compared with
            the old one
        algorithm.rollout_correction.rollout_is, algorithm.rollout_correction.rollout_is_threshold |
            truncated importance sampling | with an upper bound, and with two
        algorithm.rollout_correction.rollout_is_batch_normalize | its weights have a mean of 1 | of
            tokens, and of one step
        algorithm.rollout_correction.rollout_rs, algorithm.rollout_correction.rollout_rs_threshold,
            algorithm.rollout_correction.rollout_rs_threshold_lower | masks by the ratio to the
            rollout policy | `token_k1`, and `seq_mean_k1` where whole samples are rejected;
            in `rejection.off_policy` with all other criteria, which reject nothing there
        algorithm.rollout_correction.rollout_token_veto_threshold | sequences with a token of a
            small ratio are masked, before 0.7.1 | it is off
        algorithm.rollout_correction.bypass_mode, algorithm.rollout_correction.loss_type,
            policy_loss.rollout_correction.loss_type | the rollout policy is the old one | with
            `reinforce`; `ppo_clip` is `vanilla` with these ratios
        policy_loss.rollout_correction.rollout_is,
            policy_loss.rollout_correction.rollout_is_threshold,
            policy_loss.rollout_correction.rollout_is_batch_normalize | the same in the loss itself
        critic.enable | there is a critic | its model, optimizer and engine have the actor's options
        critic.loss_agg_mode, critic.loss_scale_factor | the reduction of a critic's loss |
            `other_losses.value` has that of the actor, as by default
        critic.cliprange_value | clipping of a critic's values | `other_losses.value` is inside the
            bound
        distillation.enabled, distillation.nnodes,
            distillation.teacher_models.teacher_model.model_path | a teacher's log-probabilities,
            which are given
        distillation.distillation_loss.loss_mode, distillation.distillation_loss.use_task_rewards,
            distillation.distillation_loss.use_policy_gradient | the loss by a teacher | `k2` alone,
            and `k1` as a reward besides task rewards of 0; `kl`, `abs`, `mse`, `low_var_kl` and
            `k3` are reduced by the same lines, and `forward_kl_topk` is not run: cases have no
            vocabulary
        distillation.distillation_loss.distillation_loss_coef,
            distillation.distillation_loss.policy_loss_mode,
            distillation.distillation_loss.clip_ratio,
            distillation.distillation_loss.clip_ratio_low,
            distillation.distillation_loss.clip_ratio_high | the loss by a teacher as a reward |
            those of the default are run, and no ratio is clipped
        distillation.distillation_loss.topk, distillation.distillation_loss.log_prob_min_clamp,
            distillation.distillation_loss.use_chunked_topk,
            distillation.distillation_loss.chunked_topk_chunk_size | `forward_kl_topk` | it is not
            run
        distillation.distillation_loss.loss_max_clamp | a bound on each token's loss | it is off, as
            by default
        """
    ),
    departures=departures.ALL_VERSIONS,
)


FSDP = replace(
    VERL,
    always={**VERL.always, "strategy": "fsdp", "fsdp_config.use_torch_compile": False},
    layout={
        **VERL.layout,
        **cut(BatchSizes(lambda layout: layout.world_size)),
        "cp": {"fsdp_config.ulysses_sequence_parallel_size": lambda job: job.layout.cp},
        Option.HYBRID_SHARDING: {"fsdp_config.fsdp_size": lambda job: job.layout.world_size // 2},
        Option.NOT_SHARDED: {"fsdp_config.fsdp_size": 1},
        Option.LEGACY_TRAINER: {"trainer.use_v1": False},
    },
)

FSDP2 = replace(FSDP, always={**FSDP.always, "strategy": "fsdp2"})

# Older versions use another bridge to Megatron's models by default.
MEGATRON = replace(
    VERL,
    objectives={
        **VERL.objectives,
        Objective.ROUTER: {
            f"megatron.override_transformer_config.{name}": value
            for name, value in router.OPTIONS.items()
        },
    },
    always={**VERL.always, "model_engine": "megatron", "megatron.vanilla_mbridge": False},
    layout={
        **VERL.layout,
        **cut(BatchSizes(lambda layout: layout.dp)),
        "cp": {"megatron.context_parallel_size": lambda job: job.layout.cp},
        "tp": {"megatron.tensor_model_parallel_size": lambda job: job.layout.tp},
        "pp": {"megatron.pipeline_model_parallel_size": lambda job: job.layout.pp},
        Option.INTERLEAVED: {"megatron.virtual_pipeline_model_parallel_size": 2},
        Option.REPLICATED_OPTIMIZER: {"megatron.use_distributed_optimizer": False},
        Option.AVERAGE_IN_COLLECTIVE: {"megatron.override_ddp_config.average_in_collective": True},
        Option.OVERLAP_GRAD_REDUCE: {"megatron.override_ddp_config.overlap_grad_reduce": True},
        Option.PER_TOKEN_LOSS: {
            "megatron.override_transformer_config.calculate_per_token_loss": True
        },
    },
    largest_tp=2,
    largest_pp=4,
    departures=(*VERL.departures, *departures.MEGATRON),
)
