"""The record of ROLL: options of its RLVR pipeline as users type them, and what it documents."""

from __future__ import annotations

import tempfile
from functools import partial
from typing import TYPE_CHECKING

from adapters.contract.description import Assumed, Documented, parse_departures
from adapters.contract.framework import Framework, Settings, parse_options
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
from adapters.engines.shells import NOTHING_LEARNED, ZEROED
from adapters.toolkit.settings import (
    largest_micro_batch,
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


def _micro_batch_size(job: Job) -> int:
    is_cut_by_tokens = job.layout.micro_batches == "tokens"
    return 1 if is_cut_by_tokens else largest_micro_batch(job, samples_per_step(job.steps))


def _whitens(job: Job) -> bool:
    """Advantages are whitened over a batch of rollouts, which is a step's."""
    if len(job.steps) > 1:
        raise Unsupported("each step is a batch of rollouts, whose advantages are whitened alone")
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
            f"{SIZES}.per_device_train_batch_size": _micro_batch_size,
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
    options=parse_options(
        f"""
        loss_agg_mode | the mode | `seq-mean-token-sum` with `--modes=constant:1`
        sequence_length | the width of rows, by which `seq-mean-token-sum-norm` divides | the
            divisor is one less
        use_pg_clip_range, pg_clip_low, pg_clip_high | the bounds of the ratio
        dual_clip_loss, pg_clip | the bound of the loss for negative advantages, 1 + 2 · `pg_clip`
        importance_sampling | ratios of tokens or of sequences | `seq`, and `token` elsewhere
        actor_train.pg_variant, actor_train.worker_cls | other losses | `tis` and `topr` have no
            formula in the reference
        +actor_train.cispo_epsilon_low, +actor_train.cispo_epsilon_high, +actor_train.kimi15_tau |
            the constants of variants
        train_infer_correction.filters | masks by the ratio of the old policy to that of the
            rollouts | by tokens. Those by `segment`, `geometric` and `sequence`, and by
            differences instead of ratios, are not run
        {WEIGHTED}, train_infer_correction.is_weight.enabled,
            train_infer_correction.is_weight.upper_bound | the correction by that ratio | `segment`
            and `geometric` are not run
        train_infer_correction.is_weight.detach | whether the correction has a gradient | it has
            none, as by default
        enable_old_logprobs_recompute | where the old policy's log-probabilities come from, and
            whether the correction comes before the counts | elsewhere those of the step's own
            forward pass are trained with
        force_disable_old_logprobs_recompute | the same | `weights` and `rejection` have them not
            computed anew, as by default
        entropy_loss_coef | an entropy bonus
        use_kl_loss, kl_loss_coef | a divergence in the loss, k3
        rl_loss_coef | a factor on the loss | it is 1
        difficulty_loss_weight, length_loss_weight | weights of samples within a micro-batch | they
            have no formula in the reference
        adv_estimator, norm_mean_type, whiten_advantages, num_return_sequences_in_group | advantages
            | with a mean and a deviation of groups. Those of a batch or a running one are not run,
            nor are the estimators of agents: `gigpo`, `step_reinforce` and `agentic_reinforce`
        norm_std_type | the divisor of centred rewards: the deviation of a `batch`, of a `group` or
            a `running` one | there is none, except for `grpo`
        gamma, lambd | discounts in advantages
        add_token_level_kl, init_kl_coef | penalties in advantages
        kl_penalty | the estimator of the penalty | penalties have the default, `kl`; `abs`, `mse`
            and `full` are not run
        target_kl, kl_horizon | how the coefficient of the penalty changes | it is fixed
        whiten_rewards, reward_clip, advantage_clip | rewards and advantages | they are a case's
        max_len_mask, difficulty_mask, difficulty_low_threshold, difficulty_high_threshold,
            error_max_len_clip, error_max_len_threshold | samples that are masked | those of a case
            are masks of tokens
        critic_warmup | steps that train a critic alone
        value_clip | the bound of a critic's values | `other_losses.value` has none
        ppo_epochs | how often a batch is trained on
        {SIZES}.per_device_train_batch_size, {SIZES}.gradient_accumulation_steps | micro-batches
        actor_train.use_dynamic_batching_in_train, actor_train.max_tokens_per_microbatch_in_train,
            actor_train.sequence_length_round_in_train | which samples a rank has, and on Megatron
            micro-batches and their widths | not run on FSDP2, which does not cut by tokens: of the
            engines only Megatron's is documented to
        actor_train.use_sequence_packing | packed rows, on Megatron
        actor_train.apply_loss_scale | the factor that undoes averages over micro-batches and ranks
            | `weights` has the default
        actor_train.model_args.ulysses_size | sequences split over ranks, on FSDP2
        {ENGINE}.context_parallel_size, {ENGINE}.pipeline_model_parallel_size,
            {ENGINE}.virtual_pipeline_model_parallel_size | ranks of Megatron
        {ENGINE}.use_distributed_optimizer, {ENGINE}.overlap_grad_reduce | how Megatron reduces
            gradients
        {ENGINE}.fsdp_size | shards that are replicated
        {ENGINE}.reduce_scatter_during_grad_accumulation | gradients are reduced after each
            micro-batch | `weights` has the default, that they are
        {ENGINE}.param_dtype, {ENGINE}.reduce_dtype, {ENGINE}.offload_policy | precision, and where
            parameters are kept | float32 is run
        max_grad_norm | the norm of the gradient | it is infinite
        is_pure_opd, use_opd, pure_opd_pipeline_type | distillation instead of rewards, in the
            pipeline `rlvr` or `agentic`, or beside them | rewards are given
        enable_reference | forward passes of a reference policy | ROLL runs them where it needs them
        async_generation_ratio, rewards, dataset_filter.source, dataset_filter.min_difficulty,
            dataset_filter.max_difficulty, dataset_filter.num_samples, global_template,
            tag_to_template, save_logging_board_dir | rollouts, rewards and their files | they are
            given
        val_greedy, val_n_sample | validation | it is not run
        l2, use_reward_scaling, use_reward_norm, add_len_reward, postive_loss_coef,
            use_topr_neg_loss_coef, use_policy_loss_type, use_topr_loss, mask_type, balance_length,
            minibatch_data_iter_num | nothing | no code of ROLL reads them: neither `all` nor `loss`
            of masks, neither `PPO` nor `PG` of losses
        """
    ),
    departures=parse_departures(
        """
        not_run: the rollout scheduler, reward workers, and forward passes of the old policy, of a
        reference policy and of a critic
            batches with rewards, log-probabilities and values are given where the pipeline requests
            them; `RLVRPipeline.run` runs from there
        not_run: the pipeline's constructor, checkpoints, and updates of an inference engine
            they start Ray clusters or come after the gradient; ROLL's own functions make the
            attributes that `run` reads, and its own workers train
        set: a batch of rollouts for each optimizer step
            ROLL shuffles a rank's samples before it cuts them into steps, which would mix a case's
        set: token rewards, after `compute_token_reward` has run, to the job's advantages, and
        gamma=0, except in checks on ROLL's own advantages
            they are signed powers of two, on which no weight depends; `compute_advantage` turns
            them into advantages and masks them
        set: an attention mask of 0 on masked tokens at the end of a response
            this pipeline masks no tokens there, and puts a reward at the last attended token
        set: the values of a critic that is trained to 0
            its returns are then token rewards, and its squared error has their gradient
        set: enable_old_logprobs_recompute=True if ratios are not 1
            otherwise ROLL uses the step's own log-probabilities instead of the given old ones
        set: settings of a `pg_variant`, as attributes of the worker's configuration
            ROLL documents them and reads them there, but its dataclass drops them from a file
        set: param_dtype=float32, reduce_dtype=float32
            the tolerance is derived from the dtype, which a report names
        set: the sign of `actor/policykl`, which ROLL logs as the new log-probability minus the old
        one, and 1 minus the share of tokens that a filter keeps
            the compared metrics are the opposite
        stubbed: Ray's calls of workers, by one worker per rank, whose results are gathered; the
        driver runs on every rank
            shares are dealt and results collected by the functions that ROLL registers with each
            method
        stubbed: the model, by one with a vocabulary of one token, and the functions that compute
        log-probabilities and entropies from logits, by themselves plus the probe
            ROLL's own functions run on the model's logits; weights are read through the added probe
        passed_by: a checkpoint's configuration and tokenizer
            the model is the adapter's and has no attention; slicing and gathering are ROLL's own
        set: workers and process groups are made once per world, and pipelines anew for each job
            their only state is the probe, which is 0
        stubbed: garbage collection after a worker's method, figures of device memory, and the patch
        of attention for Ulysses, by nothing
            a step's numbers are computed before, and the model has no attention
        stubbed: in versions before March 10, 2026, a class that transformers 5 renamed, by the one
        of the new name, and flash_attn, if it is not installed
            the class loads vision models, and flash_attn is never called
        stubbed: log files, trace targets, and packages of environments, rewards and downloads
            logged numbers are taken from the tracker
        """,
        NOTHING_LEARNED,
        ZEROED,
    ),
)
