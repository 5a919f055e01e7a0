"""The record of RLinf: options of reasoning as users type them, and RLinf's documents."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from adapters.contract.description import Assumed, Documented
from adapters.contract.framework import Framework
from adapters.contract.job import Unsupported
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
from adapters.engines.shells import NOTHING_LEARNED, PROBED, ZEROED
from adapters.toolkit.settings import (
    largest_micro_batch,
    longest,
    prompts_per_step,
    require_one_step,
    samples_of_prompt,
    token_budget,
)
from reference.aggregation import (
    AuxiliaryAggregation,
    DivergenceEstimator,
    EstimatorConventions,
    LoggedMean,
    Mode,
    Penalties,
)

if TYPE_CHECKING:
    from adapters.contract import Job


def row_width(job: Job) -> int:
    """The width of a row: a prompt padded on the left and a response padded on the right."""
    return sum(longest(job))


def _packed_tokens(job: Job) -> int:
    """The token budget of a micro-batch that allows the largest number of rows."""
    return largest_micro_batch(job) * row_width(job)


def _budget(job: Job) -> int:
    """The token budget of a micro-batch, which in RLinf must hold at least one padded row."""
    return max(token_budget(job.steps, job.layout.dp), row_width(job))


def _prompts(job: Job) -> int:
    """The number of prompts of a batch, the same on each data-parallel rank.

    Raises `Unsupported` for several steps, whose advantages would be normalised together.
    """
    require_one_step(
        job, "a batch is normalised as a whole, and steps are cut out of it afterwards"
    )
    prompts = prompts_per_step(job.steps)
    if prompts % job.layout.dp:
        raise Unsupported(
            f"{prompts} prompts cannot be split evenly over {job.layout.dp} ranks: each takes whole"
            " groups until it has its share of the samples"
        )
    return prompts


def _balanced(job: Job) -> bool:
    """True; raises `Unsupported` for several steps, whose samples balancing would mix."""
    require_one_step(job, "samples of a batch are dealt to ranks before steps are cut out of it")
    return True


def _actions(job: Job) -> int:
    """The number of rows of an embodied policy's step: each row is one action, or padding."""
    require_one_step(job, "rows of a batch are shuffled before steps are cut out of it")
    if job.layout.format != "bshd" or job.layout.options:
        raise Unsupported("no rows of several actions, and no balancing of them")
    return sum(step.size for step in job.steps) * longest(job)[1]


def _actions_of_micro_batch(job: Job) -> int:
    """The number of rows of a micro-batch; RLinf refuses a number that does not divide a step's."""
    return largest_micro_batch(job, _actions(job))


LOSS_AGG_FUNC = "algorithm.loss_agg_func"
GROUP_SIZE = "algorithm.group_size"

CLIPPED = {
    "algorithm.clip_ratio_low": CONSTANTS.clip_low,
    "algorithm.clip_ratio_high": CONSTANTS.clip_high,
}
ENTROPY = {"algorithm.calculate_entropy": True, "algorithm.entropy_bonus": ENTROPY_COEFFICIENT}
KL = {"algorithm.kl_beta": KL_COEFFICIENT, "algorithm.kl_penalty_type": "low_var_kl"}
GROUPS = {
    "data.rollout_batch_size": _prompts,
    GROUP_SIZE: partial(samples_of_prompt, option=GROUP_SIZE),
}
WITH_VALUE = {
    **CLIPPED,
    "algorithm.loss_type": "actor_critic",
    "algorithm.adv_type": "gae",
    "algorithm.reward_type": "action_level",
    "algorithm.logprob_type": "action_level",
    "algorithm.value_clip": CONSTANTS.value_clip,
    "algorithm.huber_delta": 10.0,
    "runner.task_type": lambda _: "embodied",
    "actor.global_batch_size": _actions,
    "actor.micro_batch_size": _actions_of_micro_batch,
    "actor.model.model_type": lambda _: "mlp_policy",
    "actor.model.add_value_head": lambda _: True,
}
GRPO = {"algorithm.adv_type": "grpo", **GROUPS}

DOCUMENTS = "docs/source-en/rst_source/reference"

RLINF = Framework(
    title="RLinf",
    scope="Of training a language model (`reasoning`) with FSDP.",
    modes={
        "token-mean": (Mode.TOKEN_MEAN, {LOSS_AGG_FUNC: "token-mean"}),
        "seq-mean-token-mean": (Mode.SAMPLE_MEAN, {LOSS_AGG_FUNC: "seq-mean-token-mean"}),
        "seq-mean-token-sum": ("constant:1", {LOSS_AGG_FUNC: "seq-mean-token-sum"}),
    },
    objectives={
        Objective.POLICY: {},
        Objective.OFF_POLICY: CLIPPED,
        Objective.DUAL_CLIP: {**CLIPPED, "algorithm.clip_ratio_c": CONSTANTS.dual_clip},
        Objective.TIS_TOKEN: {
            **CLIPPED,
            "algorithm.importance_sampling_fix": True,
            "algorithm.importance_sampling_clip": CONSTANTS.truncation,
        },
        Objective.ENTROPY: ENTROPY,
        Objective.KL: KL,
        Objective.WITH_ENTROPY: ENTROPY,
        Objective.COMBINED: {**ENTROPY, **KL},
        Objective.WITH_VALUE: WITH_VALUE,
        Objective.GROUP_NORMALISED: GRPO,
        Objective.GROUP_WHITENED: {**GRPO, "algorithm.normalize_advantages": True},
        Objective.REINFORCE_PP_BASELINE: {
            **GROUPS,
            "algorithm.adv_type": "reinpp",
            "algorithm.use_reinpp_baseline": True,
            "algorithm.reinpp_kl_beta": ADVANTAGE_CONSTANTS.penalty,
            "algorithm.kl_penalty_type": "kl",
        },
    },
    only_modes={Objective.WITH_VALUE: Mode.SAMPLE_MEAN},
    layout={
        "mb": {"runner.enable_dynamic_batch_size": False},
        "mbtokens": {
            "runner.enable_dynamic_batch_size": True,
            "runner.max_tokens_per_mbs": _budget,
        },
        "thd": {"actor.model.variable_seq_lengths": True},
        "mb-thd": {"runner.max_tokens_per_mbs": _packed_tokens},
        Option.BALANCE_DATA: {"actor.enable_dp_load_balance": _balanced},
    },
    # RLinf does not read the estimator if advantages are given.
    always={
        "cluster.num_nodes": lambda job: job.layout.world_size,
        "runner.task_type": "reasoning",
        "runner.seq_length": row_width,
        "data.max_prompt_length": lambda job: longest(job)[0],
        "data.rollout_batch_size": lambda job: sum(step.size for step in job.steps),
        GROUP_SIZE: 1,
        "algorithm.n_minibatches": lambda job: len(job.steps),
        "algorithm.training_batch_size_per_gpu": largest_micro_batch,
        "algorithm.recompute_logprobs": True,
        "algorithm.shuffle_rollout": False,
        "algorithm.loss_type": "actor",
        "algorithm.adv_type": "reinpp",
        "algorithm.normalize_advantages": False,
        "algorithm.ratio_clip_eps": CONSTANTS.clip_low,
        "algorithm.clip_ratio_low": None,
        "algorithm.clip_ratio_high": None,
        "algorithm.clip_ratio_c": None,
        "algorithm.calculate_entropy": False,
        "algorithm.entropy_bonus": 0.0,
        "algorithm.kl_beta": 0.0,
        "algorithm.kl_penalty_type": "low_var_kl",
        "algorithm.entropy_op_type": "torch",
        "algorithm.sampling_params.temperature": 1.0,
        "rollout.group_name": "rollout",
        "rollout.return_logprobs": False,
        "rollout.model_arch": "qwen2.5",
        "rollout.model_dir": "probe",
        "rollout.model.model_path": "probe",
        "rollout.model.model_type": "qwen2.5",
        "rollout.sglang": {},
        "rollout.vllm": {},
        "critic.use_critic_model": False,
        "actor.training_backend": "fsdp",
        "actor.seed": 0,
        "actor.combine_reference_model": False,
        "actor.model.model_path": "probe",
        "actor.model.model_type": "qwen2.5",
        "actor.model.precision": "fp32",
        "actor.model.is_lora": False,
        "actor.model.encoder_seq_length": row_width,
        "actor.optim.lr": 0.0,
        "actor.optim.weight_decay": 0.0,
        "actor.optim.adam_beta1": 0.9,
        "actor.optim.adam_beta2": 0.95,
        "actor.optim.clip_grad": float("inf"),
        "actor.fsdp_config.strategy": "fsdp",
        "actor.fsdp_config.enable_gradient_accumulation": True,
        **{
            f"actor.fsdp_config.mixed_precision.{name}_dtype": "fp32"
            for name in ("param", "reduce", "buffer")
        },
        # The following options are read only for embodied policies.
        "rollout.pipeline_stage_num": 1,
        "actor.model.action_dim": 1,
        "actor.model.num_action_chunks": 1,
        "env.group_name": "env",
        "env.train.env_type": "libero",
        "env.train.total_num_envs": lambda job: sum(step.size for step in job.steps),
        "env.train.group_size": 1,
        "env.train.auto_reset": False,
        "env.train.ignore_terminations": False,
        "env.train.max_episode_steps": lambda job: longest(job)[1],
        "env.train.max_steps_per_rollout_epoch": lambda job: longest(job)[1],
    },
    metrics={
        Metric.POLICY_LOSS: "actor/policy_loss",
        Metric.LOSS: "actor/final_loss",
        Metric.CLIP_FRACTION: "actor/clip_fraction",
        Metric.POLICY_KL: "actor/approx_kl",
        Metric.RATIO: "actor/ratio",
        Metric.ENTROPY: "actor/entropy_loss",
        Metric.KL: "actor/kl_loss",
        Metric.REWARD: "reward_scores",
        Metric.RESPONSE_LENGTH: "response_length",
        Metric.ADVANTAGE: "advantages_mean",
    },
    # Assumed conventions were found in the code of `FSDPActor.training_step`,
    # `compute_ppo_actor_loss` and `compute_rollout_metrics`.
    conventions={
        "entropy": Assumed(AuxiliaryAggregation.WITH_POLICY_LOSS),
        "kl": Assumed(AuxiliaryAggregation.WITH_POLICY_LOSS),
        "diagnostics": Assumed(AuxiliaryAggregation.TOKEN_MEAN),
        "kl_estimator": Documented(
            DivergenceEstimator.K3, f"{DOCUMENTS}/algorithms/reinforce.rst, 4"
        ),
        "of_groups": Assumed(
            EstimatorConventions(
                lost_degrees_of_freedom=0,
                penalties=Penalties.LATER_TOKENS,
            )
        ),
        "logged_advantages": Documented(
            LoggedMean(mode=Mode.TOKEN_MEAN), f"{DOCUMENTS}/metrics.rst, advantages_mean"
        ),
    },
    options=read_options("adapters.rlinf"),
    departures=(*read_departures("adapters.rlinf"), NOTHING_LEARNED, ZEROED, PROBED),
)

FSDP2 = replace(RLINF, always={**RLINF.always, "actor.fsdp_config.strategy": "fsdp2"})
