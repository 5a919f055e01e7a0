"""The record of SkyRL: its options as users type them, and what it documents.

Options without a section `trainer` or `generator` are below `trainer.algorithm`.
"""

from __future__ import annotations

from dataclasses import replace

from adapters.contract.description import Assumed, Documented, documented
from adapters.contract.framework import Framework, Substitute
from adapters.contract.job import FaultInjection, Setting
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
from adapters.engines.shells import CPU_AS_CUDA, ONE_BY_ONE, PIPELINE_STAGES
from adapters.skyrl import corrections, sizes
from adapters.skyrl.corrections import CLIPPED, MASKED
from adapters.toolkit.settings import token_budget
from reference.aggregation import (
    AuxiliaryAggregation,
    Compared,
    ComparedTokens,
    DenominatorMask,
    EstimatorConventions,
    LoggedMean,
    Lone,
    MicroBatchWeight,
    Mode,
    Rejected,
    TokenSet,
)

GRPO = {"advantage_estimator": "grpo"}
ENTROPY = {"use_entropy_loss": True, "entropy_loss_coef": ENTROPY_COEFFICIENT}
KL = {"use_kl_loss": True, "kl_estimator_type": "k1", "kl_loss_coef": KL_COEFFICIENT}
PENALISED = {
    "use_kl_in_reward": True,
    "kl_estimator_type": "k1",
    "kl_loss_coef": ADVANTAGE_CONSTANTS.penalty,
}
DISCOUNTED = {"gamma": ADVANTAGE_CONSTANTS.discount, "lambd": ADVANTAGE_CONSTANTS.trace}
CRITIC = {
    "trainer.critic.model.path": Substitute("critic"),
    "trainer.critic_mini_batch_size": sizes.critic_mini_batch_size,
}
GAE = {**CRITIC, **DISCOUNTED, "advantage_estimator": "gae"}
AT_THE_LAST_TOKEN = EstimatorConventions(rewarded=TokenSet.RESPONSE, whitened=TokenSet.RESPONSE)

GROUPS = ("group", "prompt", "n_samples_per_prompt")

CONFIGURATIONS: dict[Setting | FaultInjection, tuple[str, ...]] = {
    Setting.MODE: ("loss_reduction",),
    Setting.DIVISOR: ("max_seq_len",),
    Setting.ENTROPY: ("entropy",),
    Setting.KL: ("kl",),
    Setting.BATCH_SIZE: ("batch", *GROUPS),
    Setting.CORRECTION: ("tis", "correction"),
    FaultInjection.GROUP_INCOMPLETE: GROUPS,
}
"""The settings of SkyRL's configuration and of its users' generators, with SkyRL's names. Group
boundaries are missing because only `compute_prompt_boundaries` sets them."""

PERMITTED = {
    "divisor_of_another_mode": "docs/content/docs/harbor and examples/train_integrations/harbor,"
    " which tell users to set max_seq_len in every mode"
}
"""Rules of other frameworks whose opposite SkyRL states."""

CONFIG_PAGE = "docs/content/docs/configuration/config.mdx, Algorithm Configuration"

SKYRL = Framework(
    title="SkyRL",
    scope="Below `trainer.algorithm` unless a row begins with another section.",
    modes={
        "token_mean": (Mode.TOKEN_MEAN, {"loss_reduction": "token_mean"}),
        "sequence_mean": (Mode.SAMPLE_MEAN, {"loss_reduction": "sequence_mean"}),
        "prompt_mean": (Mode.PROMPT_MEAN, {"loss_reduction": "prompt_mean"}),
        "seq_mean_token_sum_norm": (Mode.CONSTANT, {"loss_reduction": "seq_mean_token_sum_norm"}),
    },
    objectives={
        Objective.POLICY: {},
        Objective.OFF_POLICY: {**CLIPPED, "policy_loss_type": "regular"},
        Objective.REJECTION: MASKED,
        Objective.REJECTION_OFF_POLICY: {**CLIPPED, "policy_loss_type": "regular", **MASKED},
        Objective.REJECTION_COMBINED: {**ENTROPY, **KL, **MASKED},
        Objective.ENTROPY: ENTROPY,
        Objective.KL: KL,
        Objective.WITH_ENTROPY: ENTROPY,
        Objective.COMBINED: {**ENTROPY, **KL},
        Objective.DUAL_CLIP: {
            **CLIPPED,
            "policy_loss_type": "dual_clip",
            "clip_ratio_c": CONSTANTS.dual_clip,
        },
        Objective.GSPO: {**CLIPPED, "policy_loss_type": "gspo"},
        Objective.CISPO: {
            "policy_loss_type": "cispo",
            "cispo.cispo_eps_clip_low": CONSTANTS.clip_low,
            "cispo.cispo_eps_clip_high": CONSTANTS.clip_high,
        },
        Objective.SAPO: {
            "policy_loss_type": "sapo",
            "sapo.tau_pos": CONSTANTS.positive_temperature,
            "sapo.tau_neg": CONSTANTS.negative_temperature,
        },
        Objective.CLIP_COV: {**CLIPPED, "policy_loss_type": "clip_cov"},
        Objective.KL_COV: {
            "policy_loss_type": "kl_cov",
            "kl_cov.kl_cov_frac": 1.0,
            "kl_cov.ppo_kl_coef": CONSTANTS.kl_penalty,
        },
        **corrections.OBJECTIVES,
        Objective.GROUP_NORMALISED: GRPO,
        Objective.GROUP_CENTRED: {**GRPO, "grpo_norm_by_std": False},
        Objective.LEAVE_ONE_OUT: {"advantage_estimator": "rloo"},
        Objective.MEAN_NORMALISED: {"advantage_estimator": "maxrl"},
        Objective.GROUP_WHITENED: {**GRPO, "advantage_batch_normalize": True},
        Objective.REINFORCE_PP: {
            **DISCOUNTED,
            **PENALISED,
            "advantage_estimator": "reinforce++",
        },
    },
    layout={
        "mb": {"trainer.micro_train_batch_size_per_gpu": sizes.micro_batch_size},
        "mbtokens": {
            "trainer.micro_train_batch_size_per_gpu": sizes.rollouts_of_rank,
            "trainer.max_tokens_per_microbatch": lambda job: token_budget(job.steps, job.layout.dp),
        },
        "thd": {"trainer.remove_microbatch_padding": True},
        "bshd": {"trainer.remove_microbatch_padding": False},
    },
    always={
        "trainer.logger": "console",
        "trainer.placement.colocate_all": False,
        **{
            f"trainer.placement.{model}_num_gpus_per_node": lambda job: job.layout.world_size
            for model in ("policy", "ref", "critic")
        },
        "trainer.train_batch_size": lambda job: sizes.prompts(job) * len(job.steps),
        "trainer.policy_mini_batch_size": sizes.mini_batch_size,
        "generator.n_samples_per_prompt": sizes.rollouts,
        "generator.step_wise_trajectories": sizes.is_step_wise,
        "use_kl_loss": False,
        "max_seq_len": sizes.max_seq_len,
    },
    metrics={
        Metric.POLICY_LOSS: "policy_loss",
        Metric.LOSS: "final_loss",
        Metric.CLIP_FRACTION: "loss_metrics/clip_ratio",
        Metric.ENTROPY: "policy_entropy",
        Metric.KL: "policy_kl",
        Metric.REJECTED: "loss_metrics/token_mask_ratio",
        Metric.REWARD: "reward/avg_raw_reward",
        Metric.ADVANTAGE: "loss/avg_raw_advantages",
        Metric.DIVERGENCE: "loss/avg_kl",
    },
    # Masking a token by a correction does not change other tokens. The assumed ones come from the
    # workers, which add a micro-batch's mean entropy over tokens and mean divergence over sequences
    # to its loss and average them over data-parallel ranks and over the micro-batches that have
    # samples; from `reduce_metrics`, which averages other metrics over micro-batches; from the
    # losses with covariances, which are given one micro-batch; and from
    # `compute_advantages_and_returns`.
    conventions={
        "denominator_mask": Documented(
            DenominatorMask.ORIGINAL,
            "docs/content/docs/algorithms/off_policy_correction.mdx, Token Masking",
        ),
        "entropy": Assumed(AuxiliaryAggregation.MICRO_BATCH_TOKEN_MEAN),
        "entropy_mask": Assumed(DenominatorMask.ORIGINAL),
        "kl_mask": Assumed(DenominatorMask.ORIGINAL),
        "kl": Assumed(AuxiliaryAggregation.MICRO_BATCH_SAMPLE_MEAN),
        "diagnostics": Assumed(AuxiliaryAggregation.MICRO_BATCH_TOKEN_MEAN),
        "selected": Assumed(ComparedTokens.MICRO_BATCH),
        "of_groups": Assumed(
            EstimatorConventions(whitened=TokenSet.RESPONSE, lost_degrees_of_freedom=0)
        ),
        "compared": Documented(
            Compared.LAST_SAMPLES, "docs/content/docs/tutorials/step-wise-training.mdx"
        ),
        "rejected_rewards": Assumed(Rejected.COUNTED),
        "lone_reward": Assumed(Lone.REWARD),
        "of_returns": Assumed(AT_THE_LAST_TOKEN),
        "of_values": Assumed(AT_THE_LAST_TOKEN),
        "logged_advantages": Assumed(LoggedMean(mode=Mode.TOKEN_MEAN, tokens=TokenSet.RESPONSE)),
    },
    defaults={
        **documented(
            CONFIG_PAGE,
            {
                "eps_clip_low": 0.2,
                "eps_clip_high": 0.2,
                "clip_ratio_c": 3.0,
                "value_clip": 0.2,
                "sapo.tau_pos": 1.0,
                "sapo.tau_neg": 1.05,
                "kl_cov.kl_cov_frac": 0.2,
                "kl_cov.ppo_kl_coef": 1.0,
                "off_policy_correction.token_tis_ratio_clip_high": 2.0,
                "off_policy_correction.sequence_tis_ratio_clip_high": 5.0,
                "off_policy_correction.geo_mask_low": 0.99,
                "off_policy_correction.geo_mask_high": 1.01,
                "off_policy_correction.product_mask_low": 0.5,
                "off_policy_correction.product_mask_high": 2.0,
            },
        ),
        **documented(
            "skyrl/train/config/config.py (CISPOConfig: bounds of 0 and 5, which are 1 - low and"
            " 1 + high)",
            {"cispo.cispo_eps_clip_low": 1.0, "cispo.cispo_eps_clip_high": 4.0},
        ),
    },
    options=read_options("adapters.skyrl"),
    departures=(*read_departures("adapters.skyrl"), CPU_AS_CUDA),
)

FSDP = replace(
    SKYRL,
    # Older versions weigh micro-batches equally.
    conventions={
        **SKYRL.conventions,
        "micro_batch_weight": Assumed(MicroBatchWeight.BY_SAMPLES),
    },
    objectives={
        **SKYRL.objectives,
        Objective.GAE: GAE,
        Objective.PENALISED_GAE: {**GAE, **PENALISED},
        Objective.VALUE: CRITIC,
        Objective.VALUE_CLIPPED: {**CRITIC, "value_clip": CONSTANTS.value_clip},
    },
    layout={
        **SKYRL.layout,
        "cp": {
            f"trainer.{model}.sequence_parallel_size": lambda job: job.layout.cp
            for model in ("policy", "ref", "critic")
        },
    },
    always={
        **SKYRL.always,
        **{
            f"trainer.{model}.{option}": value
            for model in ("policy", "critic")
            for option, value in {
                "fsdp_config.mixed_precision.reduce_dtype": "fp32",
                "fsdp_config.mixed_precision.buffer_dtype": "fp32",
                "optimizer_config.lr": 0.0,
                "optimizer_config.max_grad_norm": 0.0,
            }.items()
        },
    },
    departures=(
        *SKYRL.departures,
        *read_departures("adapters.skyrl", "fsdp"),
    ),
)

DDP = "trainer.policy.megatron_config.ddp_config"


def _parallel(kind: str, part: str) -> dict[str, object]:
    """The size of a kind of Megatron's parallelism, that of the layout's part."""
    return {
        f"trainer.{model}.megatron_config.{kind}_parallel_size": lambda job: getattr(
            job.layout, part
        )
        for model in ("policy", "ref")
    }


# SkyRL trains no critic on Megatron.
MEGATRON = replace(
    SKYRL,
    objectives={**SKYRL.objectives, Objective.ROUTER: {}},
    layout={
        **SKYRL.layout,
        "cp": _parallel("context", "cp"),
        "tp": _parallel("tensor_model", "tp"),
        "pp": _parallel("pipeline_model", "pp"),
        Option.AVERAGE_IN_COLLECTIVE: {f"{DDP}.average_in_collective": True},
        Option.OVERLAP_GRAD_REDUCE: {f"{DDP}.overlap_grad_reduce": True},
    },
    always={**SKYRL.always, "trainer.strategy": "megatron", "trainer.flash_attn": False},
    largest_tp=2,
    largest_pp=4,
    departures=(
        *SKYRL.departures,
        *read_departures("adapters.skyrl", "megatron"),
        PIPELINE_STAGES,
        ONE_BY_ONE,
    ),
)
