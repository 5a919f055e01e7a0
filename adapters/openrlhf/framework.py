"""The record of OpenRLHF: options of `openrlhf.cli.train_ppo_ray`, and what it documents."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from adapters.contract.batch.probed_batch import ProbedBatch, length_limit
from adapters.contract.description import Assumed, Documented, parse_departures
from adapters.contract.framework import Configurable, Framework, parse_options
from adapters.contract.job import Setting, Unsupported
from adapters.contract.layout import Option
from adapters.contract.objective import (
    ADVANTAGE_CONSTANTS,
    CONSTANTS,
    ENTROPY_COEFFICIENT,
    FROM_REWARDS,
    KL_COEFFICIENT,
    OF_CRITIC,
    ROUTER_COEFFICIENT,
    Metric,
    Objective,
)
from adapters.engines.shells import DEFAULT_STAGE, PROBED, STAGES, UNCOMPILED
from adapters.toolkit.settings import (
    largest_micro_batch,
    rollouts_per_prompt,
    samples_of_prompt,
    samples_per_step,
    token_budget,
)
from reference.aggregation import (
    AuxiliaryAggregation,
    DenominatorMask,
    EmptyUnits,
    EstimatorConventions,
    Mode,
    Penalties,
    Rejected,
    TokenSet,
)

if TYPE_CHECKING:
    from adapters.contract import Job


def _train_batch(job: Job) -> int:
    """The samples of an optimizer step."""
    size, ranks = job.configuration.batch_size or samples_per_step(job.steps), job.layout.dp
    if size % ranks and len(job.steps) > 1:
        raise Unsupported(
            f"OpenRLHF cuts each rank's share of a batch into steps: {size} samples a step over"
            f" {ranks} ranks would mix the samples of several steps"
        )
    return size


def _train_batch_of_one_step(job: Job) -> int:
    """The same, where a batch comes before that fills no optimizer step."""
    if len(job.steps) > 1 or job.objective in FROM_REWARDS:
        raise Unsupported(
            "a short batch is looked at before one step, of advantages that are given"
        )
    return _train_batch(job)


def _micro_batch_size(job: Job) -> int:
    return largest_micro_batch(job, _train_batch(job))


def _samples(job: Job) -> int:
    """The samples of a batch of rollouts."""
    return sum(step.size for step in job.steps)


def _budget(job: Job) -> int:
    """The tokens of a micro-batch on each of the ranks that share a sequence."""
    return -(-token_budget(job.steps, job.layout.dp) // job.layout.cp)


def _world_size(job: Job) -> int:
    return job.layout.world_size


LOSS_AGG_MODE = "--actor.loss_agg_mode"
ESTIMATOR = "--algo.advantage.estimator"
KL_COEF = "--algo.kl.init_coef"
LEVEL = "--algo.advantage.is_correction_level"
KIND = "--algo.advantage.is_correction_mode"
THRESHOLD = "--algo.advantage.is_correction_threshold"

CLIPPED = {"--actor.eps_clip_low_high": (CONSTANTS.clip_low, CONSTANTS.clip_high)}
# The default bounds.
MASKED_TOKENS = {LEVEL: "token", KIND: "mask", THRESHOLD: (0.5, 5.0)}
BOUNDS = (CONSTANTS.kept_low, CONSTANTS.truncation)
ENTROPY = {"--actor.entropy_coef": ENTROPY_COEFFICIENT}
KL = {"--algo.kl.use_loss": True, "--algo.kl.estimator": "k1", KL_COEF: KL_COEFFICIENT}

SAMPLES_OF_PROMPT = "--rollout.n_samples_per_prompt"
GROUPS = {
    SAMPLES_OF_PROMPT: partial(samples_of_prompt, option=SAMPLES_OF_PROMPT),
    "--rollout.batch_size": lambda job: _samples(job) // rollouts_per_prompt(job.steps),
}
DISCOUNTED = {
    "--algo.advantage.gamma": ADVANTAGE_CONSTANTS.discount,
    "--algo.advantage.lambd": ADVANTAGE_CONSTANTS.trace,
}
PENALISED = {KL_COEF: ADVANTAGE_CONSTANTS.penalty}

MASKED = EstimatorConventions(
    valued=TokenSet.ACTIVE,
    lost_degrees_of_freedom=0,
    std_epsilon=1e-9,
    penalties=Penalties.LATER_TOKENS,
)

OPENRLHF = Framework(
    title="OpenRLHF",
    modes={
        "token-mean": (Mode.TOKEN_MEAN, {LOSS_AGG_MODE: "token-mean"}),
        "seq-mean-token-mean": (Mode.SAMPLE_MEAN, {LOSS_AGG_MODE: "seq-mean-token-mean"}),
    },
    objectives={
        Objective.POLICY: {},
        Objective.OFF_POLICY: CLIPPED,
        Objective.DUAL_CLIP: {**CLIPPED, "--actor.dual_clip": CONSTANTS.dual_clip},
        Objective.GSPO: {**CLIPPED, "--actor.policy_loss_type": "gspo"},
        Objective.REJECTION: MASKED_TOKENS,
        Objective.REJECTION_OFF_POLICY: {**CLIPPED, **MASKED_TOKENS},
        Objective.REJECTION_COMBINED: {**ENTROPY, **KL, **MASKED_TOKENS},
        Objective.TIS_TOKEN: {
            **CLIPPED,
            LEVEL: "token",
            KIND: "clip",
            THRESHOLD: (0.0, CONSTANTS.truncation),
        },
        Objective.TIS_BOUNDED: {**CLIPPED, LEVEL: "token", KIND: "clip", THRESHOLD: BOUNDS},
        Objective.ICEPOP: {**CLIPPED, LEVEL: "token", KIND: "mask", THRESHOLD: BOUNDS},
        Objective.SEQUENCE_MASKED: {
            **CLIPPED,
            LEVEL: "seq",
            KIND: "mask",
            THRESHOLD: (CONSTANTS.kept_low, CONSTANTS.kept_high),
        },
        Objective.ENTROPY: ENTROPY,
        Objective.KL: KL,
        Objective.WITH_ENTROPY: ENTROPY,
        Objective.COMBINED: {**ENTROPY, **KL},
        Objective.ADAPTIVE_KL: {
            **KL,
            "--algo.kl.target": lambda job: ProbedBatch.of(job).adaptive_coefficient.target,
            "--algo.kl.horizon": _samples,
        },
        Objective.ROUTER: {"--actor.aux_loss_coef": ROUTER_COEFFICIENT},
        Objective.GROUP_NORMALISED: {ESTIMATOR: "group_norm", **GROUPS},
        Objective.GROUP_CENTRED: {ESTIMATOR: "dr_grpo", **GROUPS},
        Objective.OVERLONG: {
            ESTIMATOR: "dr_grpo",
            **GROUPS,
            "--reward.overlong_buffer_len": ADVANTAGE_CONSTANTS.buffer,
            "--reward.overlong_penalty_factor": ADVANTAGE_CONSTANTS.overlong,
            "--rollout.max_new_tokens": lambda job: length_limit(job.steps),
        },
        Objective.LEAVE_ONE_OUT: {ESTIMATOR: "rloo", **GROUPS},
        Objective.REINFORCE_PP: {ESTIMATOR: "reinforce", **DISCOUNTED, **PENALISED},
        Objective.REINFORCE_PP_BASELINE: {
            ESTIMATOR: "reinforce_baseline",
            **GROUPS,
            **PENALISED,
        },
        Objective.GAE: {ESTIMATOR: "gae", **DISCOUNTED},
        Objective.PENALISED_GAE: {ESTIMATOR: "gae", **DISCOUNTED, **PENALISED},
        Objective.VALUE: {ESTIMATOR: "gae"},
        Objective.VALUE_CLIPPED: {ESTIMATOR: "gae", "--critic.value_clip": CONSTANTS.value_clip},
    },
    # GSPO's loss is a mean over samples, and a critic's one over tokens, whatever is set.
    only_modes={
        Objective.GSPO: Mode.SAMPLE_MEAN,
        **dict.fromkeys(OF_CRITIC, Mode.TOKEN_MEAN),
    },
    configurations={
        Setting.MODE: Configurable({LOSS_AGG_MODE: ""}, ("loss_agg_mode",)),
        Setting.ENTROPY: Configurable(ENTROPY, ("entropy_coef",)),
        Setting.KL: Configurable(KL, ("kl",)),
        Setting.BATCH_SIZE: Configurable({}, ("batch",)),
    },
    rules={"default_mode": f"openrlhf/cli/train_ppo_ray.py ({LOSS_AGG_MODE})"},
    layout={
        "mb": {"--train.micro_batch_size": _micro_batch_size},
        "mbtokens": {"--train.dynamic_batch_enable": True, "--train.max_tokens_per_gpu": _budget},
        "thd": {"--ds.packing_samples": True},
        "cp": {"--ds.ring_attn_size": lambda job: job.layout.cp},
        **{option: {"--ds.zero_stage": stage} for option, stage in STAGES.items()},
        Option.OVERLAP_GRAD_REDUCE: {"--ds.overlap_comm": True},
        Option.SHORT_BATCH: {"--train.batch_size": _train_batch_of_one_step},
        Option.TWO_EPOCHS: {"--train.max_epochs": 2},
    },
    # The estimator is not read where advantages are given.
    always={
        "--train.batch_size": _train_batch,
        "--rollout.batch_size": _samples,
        "--rollout.n_samples_per_prompt": 1,
        "--actor.model_name_or_path": "probe",
        "--reward.remote_url": "given",
        "--vllm.num_engines": 1,
        "--vllm.sync_backend": "gloo",
        "--actor.num_gpus_per_node": _world_size,
        "--critic.num_gpus_per_node": _world_size,
        "--ref.num_gpus_per_node": _world_size,
        "--ds.zero_stage": DEFAULT_STAGE,
        "--actor.adam.lr": 0.0,
        "--critic.adam.lr": 0.0,
        "--actor.max_norm": 0.0,
        "--critic.max_norm": 0.0,
        "--actor.lr_scheduler": "constant",
        "--critic.lr_scheduler": "constant",
        ESTIMATOR: "reinforce",
        KL_COEF: 0.0,
    },
    # Of a batch of rollouts that is trained on, and of rollouts. The divergence is logged by one
    # name, of the loss or of the rewards.
    metrics={
        Metric.POLICY_LOSS: "policy_loss",
        Metric.CLIP_FRACTION: "ppo_clip_ratio",
        Metric.POLICY_KL: "ppo_kl",
        Metric.ENTROPY: "entropy_loss",
        Metric.KL: "kl",
        Metric.REJECTED: "is_filter_ratio",
        Metric.KL_COEFFICIENT: "kl_ctl",  # of the trainer, which does not log it
        # The returns that are given are twice the job's, and OpenRLHF trains half of the error.
        Metric.VALUE_LOSS: "1/2 critic_loss",
        Metric.REWARD: "rollout/reward_mean",
        Metric.DIVERGENCE: "kl",
    },
    # Assumptions were read off the code: terms of the loss and a critic's loss are means over
    # tokens, whatever the mode of the policy loss (`trainer/ray/ppo_actor.py`, `models/loss.py`),
    # and metrics of micro-batches are weighted by tokens. Returns and GAE go through all positions,
    # rewards are at the last active token, values of other tokens are masked, and advantages are
    # whitened by the variance of active tokens; estimators with a baseline add up rewards of later
    # tokens, without discount (`trainer/ppo_utils/experience_maker.py`).
    conventions={
        "empty_units": Documented(
            EmptyUnits.EXCLUDED,
            "tests/test_loss_aggregation.py, test_loss_batch_info_excludes_fully_masked_sequences",
        ),
        "denominator_mask": Assumed(DenominatorMask.ORIGINAL),
        "entropy": Assumed(AuxiliaryAggregation.TOKEN_MEAN),
        "kl": Assumed(AuxiliaryAggregation.TOKEN_MEAN),
        "diagnostics": Assumed(AuxiliaryAggregation.TOKEN_MEAN),
        "value_loss": Assumed(AuxiliaryAggregation.TOKEN_MEAN),
        "of_groups": Assumed(MASKED),
        "rejected_rewards": Assumed(Rejected.COUNTED),
        "of_returns": Assumed(MASKED),
        "of_values": Assumed(MASKED),
    },
    options=parse_options(
        """
        --actor.loss_agg_mode | the mode | left out, `arguments`
        --actor.policy_loss_type | the policy loss | `ppo`, unless a check needs another
        --actor.eps_clip_low_high | clipping bounds
        --actor.eps_clip | one bound for both | `--actor.eps_clip_low_high` is set
        --actor.dual_clip | the bound of dual clip
        --actor.entropy_coef | the entropy bonus
        --actor.aux_loss_coef | the loss of a model's router
        --algo.kl.use_loss, --algo.kl.init_coef | the divergence in the loss, or in the reward
        --algo.kl.estimator | the estimator of the divergence | `k1`; the same lines reduce `k2` and
            `k3`
        --algo.kl.unbiased_gradient | the divergence times the ratio | not looked at yet
        --algo.kl.target, --algo.kl.horizon | how its coefficient changes | elsewhere it is fixed
        --algo.advantage.is_correction_level | what the ratio to the rollout policy corrects | `off`
            by default
        --algo.advantage.is_correction_mode | whether ratios out of bounds are clipped or dropped
        --algo.advantage.is_correction_threshold | the bounds | with both, but an upper one alone
            for `off_policy.tis_token`
        --algo.advantage.is_correction_gating | what bounds are of | they are of the `ratio`, as by
            default. `binary_kl` and `tv` compare probabilities, which the probe's model has none of
            between 0 and 1
        --algo.advantage.is_correction_enable, --algo.advantage.is_correction_type | what came
            before `--algo.advantage.is_correction_level`, until 0.11.1 | `tis`, `icepop` and
            `seq-mask-tis`; later versions do not have them
        --algo.advantage.estimator | how advantages are computed | `flash_reinforce` has no formula
            in the reference yet
        --algo.advantage.gamma, --algo.advantage.lambd | discounts | two different ones are set
        --algo.advantage.no_std_norm | whether advantages are divided by their deviation | not
            looked at yet
        --algo.dynamic_filtering_enable, --algo.dynamic_filtering_range | groups of rewards out of a
            range are left out | it comes before a step
        --reward.overlong_buffer_len, --reward.overlong_penalty_factor, --rollout.max_new_tokens |
            long responses have smaller rewards
        --reward.clip_range, --reward.stop_properly_penalty_coef | rewards | they are given
        --critic.value_clip | clipping of a critic's values | those of `other_losses.value` are
            within the bound
        --critic.freezing_steps | when the actor is trained | it is
        --train.batch_size | several optimizer steps, and rows that fill none | `weights` on
            `two_steps`; `arguments`
        --train.micro_batch_size | micro-batches
        --train.dynamic_batch_enable, --train.max_tokens_per_gpu | micro-batches by tokens
        --train.max_epochs | how often samples are trained
        --rollout.n_samples_per_prompt, --rollout.batch_size | samples of a prompt, and prompts
        --ds.packing_samples | packed rows
        --ds.ring_attn_size | sequences split over ranks
        --ds.zero_stage | what ranks share of a model | stage 2 on all others
        --ds.overlap_comm | gradients are reduced during the backward pass
        --ds.zpg | shards within a node | ZeRO++ is not run
        --ds.tensor_parallel_size | a layer's weights split over ranks | bf16 on GPUs alone
        --ds.grad_accum_dtype, --ds.param_dtype | precision | float32 is run, neither `bf16` nor
            `fp16`
        --ds.attn_implementation, --ds.ring_attn_head_stride, --ds.experts_implementation,
            --ds.use_liger_kernel, --ds.load_in_4bit, --ds.lora.rank, --ds.lora.alpha,
            --ds.lora.target_modules, --ds.lora.dropout, --actor.freeze_visual_encoder,
            --actor.gradient_checkpointing_enable, --actor.gradient_checkpointing_reentrant,
            --ds.deepcompile, --ds.value_head_prefix | layers of the model | the probe's model has
            none, and no experts for `eager`, `batched_mm`, `grouped_mm` or `deepgemm`
        --actor.max_norm, --critic.max_norm | the norm of the gradient | the gradient is read before
            it
        --actor.optim, --critic.optim, --actor.lr_warmup_ratio, --critic.lr_warmup_ratio,
            --actor.min_lr_ratio, --critic.min_lr_ratio, --ds.adam_offload | the optimizer, and
            where it is kept | the gradient is read before it, of `adam` as of `muon`
        --train.async_enable, --train.async_queue_size, --train.partial_rollout_enable,
            --train.num_episodes, --train.agent_func_path | when and how samples are generated |
            they are given
        --train.colocate_actor_ref, --train.colocate_critic_reward, --train.colocate_all,
            --actor.num_nodes, --critic.num_nodes, --ds.enable_sleep | which models share a GPU |
            Ray is not run
        --train.enable_ema, --train.ema_beta, --critic.save_value_network,
            --critic.model_name_or_path, --ds.use_universal_ckpt | checkpoints, and averages of a
            model | they come after a step
        --train.seed, --train.full_determinism_enable | random numbers | a step draws none
        """
    ),
    departures=parse_departures(
        """
        not_run: the command line's `train`, which starts Ray's processes, and the trainer's loop
        over prompts, evaluation, checkpoints and updates of rollout engines
            arguments come from OpenRLHF's parser and validation; `BasePPOTrainer.train_step` is
            entered, which takes one batch of rollouts to its last optimizer step and its log
        stubbed: Ray's processes: every rank runs the trainer and calls its own actor
            OpenRLHF's `RayActorGroup` cuts a batch and calls each rank's handle; the handles of
            other ranks do nothing, and arguments are copied as if sent
        stubbed: rollout engines and vllm: OpenRLHF's generator makes experiences from given samples
            they come before a step
        stubbed: forward passes of the reference policy, of the old policy and of a critic on
        rollouts
            outputs are the case's, 0 at inactive tokens, as OpenRLHF's models return them; training
            reads them as it would a model's
        set: advantages, except in checks on OpenRLHF's own, and a critic's returns
            they are signed powers of two, without OpenRLHF's sums over later tokens: token weights
            do not depend on advantages
        set: no shuffling of a rank's rows; if a batch has several steps, no balancing either, and
        each rank has its part of every step
            shuffling and balancing would mix the samples of the steps; no weight depends on which
            step and rank has which sample
        set: if a batch has several steps, each is trained on once more, for the log
            OpenRLHF logs one mean over all steps of a batch
        set: with the layout option short_batch, a batch of one micro-batch per rank first
            it can be the last batch of an epoch; what it leaves behind is OpenRLHF's own
        set: with the layout option two_epochs, two epochs; only the second is observed
            at a learning rate of 0 the model does not change
        set: ZeRO 3's counts of modules and parameters, and OpenRLHF's ring-attention group, to
        those of a new process
            the adapter's processes have run other engines before, a user's have not
        set: clipping bounds, coefficients, kl.estimator=k1, bounds of corrections, discounts
            a user may choose these values; the reference uses the same ones
        set: learning rate 0, a constant schedule, no gradient clipping
            they act after the gradient is read
        set: ds.param_dtype=fp32, after validation
            OpenRLHF's parser allows only two 16-bit dtypes; its DeepSpeed configuration allows
            float32
        set: DeepSpeed's optimizer to torch's AdamW (torch_adam), and no shared memory for its
        collectives
            DeepSpeed would compile C++ for both; the reductions before the optimizer are its own
        passed_by: `Actor.from_pretrained` and `get_llm_for_sequence_regression`: actor and critic
        are OpenRLHF's classes around the adapter's model
            they load a checkpoint
        set: a critic's value head to ones that are not trained
            its values are then the probe's entries
        stubbed: flash_attn's functions that pack rows, if it is not installed, by transformers'
        functions of the same names, and its all_gather by torch's, with the sum of the ranks'
        gradients
            they move rows, and the collective does what flash_attn's does in both directions
        stubbed: ring_flash_attn, which replaces the attention of transformers
            the model has no attention; slicing and gathering of sequences are OpenRLHF's own
        stubbed: on a machine without a GPU, torch's CUDA device, by the CPU; device meshes are made
        once per world
            the same operations in the same order, in float32
        """,
        PROBED,
        UNCOMPILED,
    ),
)
