"""The record of OpenRLHF: options of `openrlhf.cli.train_ppo_ray`, and what it documents."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from adapters.contract.batch.probed_batch import ProbedBatch, length_limit
from adapters.contract.description import Assumed, Documented
from adapters.contract.framework import Configurable, Framework
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
from adapters.contract.tables import read_departures, read_options
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
    options=read_options("adapters.openrlhf"),
    departures=(*read_departures("adapters.openrlhf"), PROBED, UNCOMPILED),
)
