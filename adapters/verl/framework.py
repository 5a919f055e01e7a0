"""The record of verl: its options as users type them, and what it documents."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from adapters.contract.description import Assumed, Documented, FixedMode, documented
from adapters.contract.framework import Configurable, Framework, Settings
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
from adapters.contract.tables import read_departures, read_options
from adapters.engines import router
from adapters.engines.shells import CPU_AS_CUDA, ONE_BY_ONE, PIPELINE_STAGES, ZEROED
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

DEFAULT_TRAINER = read_departures("adapters.verl", "default_trainer")
"""Departures of versions with the default trainer."""

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
    options=read_options("adapters.verl"),
    departures=(*DEFAULT_TRAINER, *read_departures("adapters.verl")),
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
    departures=(
        *VERL.departures,
        *read_departures("adapters.verl", "megatron"),
        ZEROED,
        CPU_AS_CUDA,
        PIPELINE_STAGES,
        ONE_BY_ONE,
    ),
)


def legacy_record(record: Framework) -> Framework:
    """An engine's record in versions before 0.9.0, whose only trainer is now the legacy one."""
    of_trainer = [one for one in record.departures if one not in DEFAULT_TRAINER]
    of_layout = record.layout.items()
    return replace(
        record,
        layout={part: chosen for part, chosen in of_layout if part != Option.LEGACY_TRAINER},
        departures=(*of_trainer, *read_departures("adapters.verl", "older_versions")),
    )
