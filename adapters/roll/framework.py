"""The record of ROLL: options of its RLVR pipeline as users type them, and what it documents."""

from __future__ import annotations

import tempfile
from functools import partial
from typing import TYPE_CHECKING

from adapters.contract.description import Assumed, Documented
from adapters.contract.framework import Framework, Settings
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
from adapters.engines.shells import NOTHING_LEARNED, ZEROED
from adapters.toolkit.settings import (
    largest_micro_batch,
    require_one_step,
    samples_of_prompt,
    samples_per_step,
    token_budget,
)
from reference import aggregation
from reference.aggregation import AuxiliaryAggregation, EstimatorConventions, LoggedMean, Mode

if TYPE_CHECKING:
    from collections.abc import Callable

    from adapters.contract import Job


def _width(job: Job, slices: int) -> int:
    """The length that rows are padded to, by which `seq-mean-token-sum-norm` divides.

    Rows are cut into slices of equal length, which `get_feature_on_cp_rank` asserts on FSDP2 and
    `get_batch_on_this_cp_rank` of mcore_adapter is documented to do. Raises `Unsupported` if there
    is no such length for the job's divisor.
    """
    divisor = job.aggregation.divisor
    longest = max(int((step.prompt_lengths + step.response_lengths).max()) for step in job.steps)
    if divisor is None or divisor == 1:
        return _rounded_up(longest, slices)
    width = divisor + 1
    if width < longest:
        raise Unsupported(f"the divisor plus 1 is sequence_length, {width:g}: not {longest} tokens")
    if width % slices:
        raise Unsupported(
            f"the divisor plus 1 is sequence_length, {width:g}, which ROLL cuts into {slices} equal"
            " slices"
        )
    return int(width)


def _rounded_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def micro_batches(job: Job) -> int:
    """The micro-batches of a rank in each step, or its samples if tokens cut them."""
    count = job.layout.micro_batches
    return count if isinstance(count, int) else samples_per_step(job.steps) // job.layout.dp


def _whitens(job: Job) -> bool:
    """Advantages are whitened over a batch of rollouts, which is a step's."""
    require_one_step(job, "each step is a batch of rollouts, whose advantages are whitened alone")
    return True


def _worker(job: Job) -> str:
    """The worker of policy gradients; raises `Unsupported` if it lacks what is looked at."""
    if job.objective in (Objective.OFF_POLICY, Objective.REJECTION_OFF_POLICY):
        raise Unsupported(
            "the worker of policy gradients logs ratios out of bounds, and not whether they are"
            " clipped"
        )
    return POLICY_GRADIENT_WORKER


def width_of_rows(slices: Callable[[Job], int]) -> Settings:
    """The width of rows, for an engine that cuts them into slices."""
    return {"sequence_length": lambda job: _width(job, slices(job))}


def dynamic_batching(slices: Callable[[Job], int]) -> Settings:
    """Micro-batches by tokens, for an engine that cuts rows into slices."""

    def budget(job: Job) -> int:
        return _rounded_up(token_budget(job.steps, job.layout.dp), slices(job))

    return {
        "actor_train.use_dynamic_batching_in_train": True,
        "actor_train.max_tokens_per_microbatch_in_train": budget,
        "actor_train.sequence_length_round_in_train": slices,
    }


POLICY_GRADIENT_WORKER = "roll.pipeline.rlvr.actor_pg_worker.ActorPGWorker"
ENGINE = "actor_train.strategy_args.strategy_config"
SIZES = "actor_train.training_args"

# Old log-probabilities are given, and not those of the step's own forward pass.
OFF_POLICY = {
    "enable_old_logprobs_recompute": True,
    "use_pg_clip_range": True,
    "pg_clip_low": CONSTANTS.clip_low,
    "pg_clip_high": CONSTANTS.clip_high,
}
OF_VARIANTS = {
    "enable_old_logprobs_recompute": True,
    "actor_train.worker_cls": POLICY_GRADIENT_WORKER,
}
TRUNCATED = {
    **OFF_POLICY,
    "train_infer_correction.is_weight.enabled": True,
    "train_infer_correction.is_weight.upper_bound": CONSTANTS.truncation,
}
OF_TOKENS = {
    "enabled": True,
    "agg_type": "token",
    "ratio_low": 0.0,
    "ratio_high": CONSTANTS.truncation,
}
FILTERED = {"train_infer_correction.filters": [OF_TOKENS]}
WEIGHTED = "train_infer_correction.is_weight.weight_type"

SAMPLES_OF_PROMPT = "num_return_sequences_in_group"
GROUPS = {SAMPLES_OF_PROMPT: partial(samples_of_prompt, option=SAMPLES_OF_PROMPT), "gamma": 1.0}
GRPO = {"adv_estimator": "grpo", **GROUPS}
CENTRED = {"adv_estimator": "reinforce", "norm_mean_type": "group", **GROUPS}
DISCOUNTED = {
    "gamma": ADVANTAGE_CONSTANTS.discount,
    "lambd": ADVANTAGE_CONSTANTS.trace,
    "whiten_advantages": _whitens,
}
PENALISED = {"add_token_level_kl": True, "init_kl_coef": ADVANTAGE_CONSTANTS.penalty}
# The actor waits for the critic.
CRITIC_ALONE = {"adv_estimator": "gae", "critic_warmup": lambda job: len(job.steps)}
ENTROPY = {"entropy_loss_coef": ENTROPY_COEFFICIENT}
KL = {"use_kl_loss": True, "kl_loss_coef": KL_COEFFICIENT}

GUIDE = "docs_roll/docs/Development/Developer Guide/custom_loss_func.md"

ROLL = Framework(
    title="ROLL",
    scope="Of the RLVR pipeline. A `+` is before options that no class of ROLL declares.",
    modes={
        name: (mode, {"loss_agg_mode": name})
        for name, mode in {
            "seq-mean-token-mean": Mode.SAMPLE_MEAN,
            "token-mean": Mode.TOKEN_MEAN,
            "seq-mean-token-sum-norm": Mode.CONSTANT,
            "seq-mean-token-sum": "constant:1",
        }.items()
    },
    objectives={
        Objective.POLICY: {},
        Objective.OFF_POLICY: OFF_POLICY,
        # The bound is 1 + 2 · pg_clip.
        Objective.DUAL_CLIP: {
            **OFF_POLICY,
            "dual_clip_loss": True,
            "pg_clip": (CONSTANTS.dual_clip - 1) / 2,
        },
        Objective.GSPO: {**OFF_POLICY, "importance_sampling": "seq"},
        Objective.GPG: {**OF_VARIANTS, "actor_train.pg_variant": "vanilla"},
        Objective.CISPO: {
            **OF_VARIANTS,
            "actor_train.pg_variant": "cispo",
            "+actor_train.cispo_epsilon_low": CONSTANTS.clip_low,
            "+actor_train.cispo_epsilon_high": CONSTANTS.clip_high,
        },
        Objective.DRO: {
            **OF_VARIANTS,
            "actor_train.pg_variant": "kimi15",
            "+actor_train.kimi15_tau": CONSTANTS.kl_penalty,
        },
        Objective.REJECTION: FILTERED,
        Objective.REJECTION_OFF_POLICY: {**OFF_POLICY, **FILTERED},
        Objective.REJECTION_COMBINED: {**ENTROPY, **KL, **FILTERED},
        Objective.TIS_TOKEN: {**TRUNCATED, WEIGHTED: "token"},
        Objective.TIS_SEQUENCE: {**TRUNCATED, WEIGHTED: "sequence"},
        Objective.ENTROPY: ENTROPY,
        Objective.KL: KL,
        Objective.WITH_ENTROPY: ENTROPY,
        Objective.COMBINED: {**ENTROPY, **KL},
        Objective.GROUP_NORMALISED: GRPO,
        Objective.GROUP_CENTRED: CENTRED,
        Objective.GROUP_WHITENED: {**GRPO, "whiten_advantages": _whitens},
        Objective.REINFORCE_PP: {"adv_estimator": "reinforce", **DISCOUNTED, **PENALISED},
        Objective.REINFORCE_PP_BASELINE: {**CENTRED, "whiten_advantages": _whitens, **PENALISED},
        Objective.GAE: {"adv_estimator": "gae", **DISCOUNTED},
        Objective.PENALISED_GAE: {"adv_estimator": "gae", **DISCOUNTED, **PENALISED},
        Objective.VALUE: CRITIC_ALONE,
        Objective.VALUE_CLIPPED: {**CRITIC_ALONE, "value_clip": CONSTANTS.value_clip},
    },
    layout={
        "mb": {
            f"{SIZES}.per_device_train_batch_size": largest_micro_batch,
            f"{SIZES}.gradient_accumulation_steps": micro_batches,
        },
        Option.TWO_EPOCHS: {"ppo_epochs": 2},
        Option.POLICY_GRADIENT_WORKER: {
            "actor_train.worker_cls": _worker,
            "actor_train.pg_variant": "ppo",
        },
    },
    # With a discount of 0, a token's advantage is its own reward, which is given.
    always={
        "exp_name": "conformance",
        "logging_dir": tempfile.gettempdir(),
        "output_dir": tempfile.gettempdir(),
        "pretrain": "probe",
        "reward_pretrain": "probe",
        "prompt_length": 1,
        "rollout_batch_size": lambda job: samples_per_step(job.steps),
        "num_return_sequences_in_group": 1,
        "max_steps": lambda job: len(job.steps),
        "max_grad_norm": float("inf"),
        "adv_estimator": "reinforce",
        "gamma": 0.0,
        "init_kl_coef": 0.0,
        "actor_train.device_mapping": lambda job: f"list(range({job.layout.world_size}))",
        f"{SIZES}.learning_rate": 0.0,
        f"{SIZES}.weight_decay": 0.0,
        "actor_train.model_args.dtype": "fp32",
        "actor_infer.device_mapping": lambda job: f"list(range({job.layout.world_size}))",
        "actor_infer.generating_args": {},
        "actor_infer.strategy_args.strategy_name": "vllm",
    },
    # ROLL logs the new log-probability minus the old one, and the share of tokens that it keeps.
    metrics={
        Metric.POLICY_LOSS: "actor/pg_loss",
        Metric.LOSS: "actor/total_loss",
        Metric.CLIP_FRACTION: "actor/clipfrac",
        Metric.POLICY_KL: "-actor/policykl",
        Metric.KL: "actor/kl_loss",
        Metric.REJECTED: "1 - actor/train_infer_final_mask_mean",
        Metric.REWARD: "critic/score/mean",
        Metric.ADVANTAGE: "critic/advantages/mean",
        Metric.VALUE: "critic/values/mean",
    },
    # A mean over sequences is over those with an active token, and denominators count the mask that
    # a loss is computed with. A metric whose name says nothing else is averaged over workers, as
    # that of filters is. Assumptions were read off `ActorWorker.loss_func`,
    # `CriticWorker.loss_func` and `compute_reinforce_return`, by which a return has the penalties
    # of later tokens too.
    conventions={
        "empty_units": Documented(aggregation.EmptyUnits.EXCLUDED, f"{GUIDE}, 6.1"),
        "denominator_mask": Documented(aggregation.DenominatorMask.MODIFIED, f"{GUIDE}, 6.1"),
        "entropy": Assumed(AuxiliaryAggregation.WITH_POLICY_LOSS),
        "kl": Documented(AuxiliaryAggregation.WITH_POLICY_LOSS, f"{GUIDE}, 8.2"),
        "diagnostics": Assumed(AuxiliaryAggregation.WITH_POLICY_LOSS),
        "rejected": Documented(AuxiliaryAggregation.MICRO_BATCH_TOKEN_MEAN, f"{GUIDE}, 7"),
        "value_loss": Assumed(AuxiliaryAggregation.SAMPLE_MEAN),
        "kl_estimator": Documented(aggregation.DivergenceEstimator.K3, f"{GUIDE}, 8.1"),
        "rejected_rewards": Assumed(aggregation.Rejected.COUNTED),
        "of_groups": Assumed(EstimatorConventions(penalties=aggregation.Penalties.LATER_TOKENS)),
        "logged_advantages": Assumed(LoggedMean(mode=Mode.TOKEN_MEAN)),
        "logged_values": Assumed(LoggedMean(mode=Mode.TOKEN_MEAN)),
    },
    options=read_options("adapters.roll"),
    departures=(*read_departures("adapters.roll"), NOTHING_LEARNED, ZEROED),
)
