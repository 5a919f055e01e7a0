"""The record that those of slime and miles extend: options as users type them, and departures.

The two frameworks are of one lineage and share most of their command line.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from adapters.contract.description import Assumed
from adapters.contract.framework import Configurable, Framework, Substitute
from adapters.contract.job import FaultInjection, Setting, Unsupported
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
from adapters.engines.experts import SHARED
from adapters.engines.shells import CPU_AS_CUDA, IN_PARALLEL, ONE_BY_ONE, PIPELINE_STAGES
from adapters.slime_family import user_code
from adapters.toolkit.settings import rollouts_asked_for, rollouts_per_step, token_budget
from reference.aggregation import Lone, Mode, Rejected

if TYPE_CHECKING:
    from collections.abc import Callable

    from adapters.contract import Job
    from adapters.contract.description import Convention
    from adapters.contract.framework import Settings

MODE = "--loss-aggregation"
DIVISOR = "--loss-aggregation-divisor"
OLDER_DIVISOR = "--pg-loss-divisor"
PER_TOKEN = "--calculate-per-token-loss"
REDUCER = "--custom-pg-loss-reducer-function-path"
CORRECTION = "--custom-tis-function-path"
CONVERSION = "--custom-convert-samples-to-train-data-path"
CONFIG_FILE = "--custom-config-path"
BATCH_SIZE = "--global-batch-size"
REFERENCE = "--ref-load"
ESTIMATOR = "--advantage-estimator"
WHITENED = "--normalize-advantages"
CRITIC_ALONE = "--num-critic-only-steps"
OBSERVED_ENTROPY = "--observe-training-entropy"

OPTIONAL = (CRITIC_ALONE, OBSERVED_ENTROPY)
"""Options that some versions lack because they always do what these ask for."""

IN_FILE_TOO_LATE = (REFERENCE,)
"""Options that are validated before a configuration file is read."""


def _rollout_batch_size(job: Job) -> int:
    """The prompts of all steps."""
    return sum(len(np.unique(step.groups)) for step in job.steps)


def _micro_batch_size(job: Job) -> int:
    """The size that cuts every step into so many micro-batches on every rank."""
    assert isinstance(job.layout.micro_batches, int)
    wanted = job.layout.dp * job.layout.micro_batches
    for size in range(1, max(step.size for step in job.steps) + 1):
        if all(-(-step.size // size) == wanted for step in job.steps):
            return size
    raise Unsupported(f"no micro-batch size that cuts the samples of every step into {wanted}")


def _token_budget(job: Job) -> int:
    """The tokens of a rank; ranks that share a micro-batch's sequences add up their budgets."""
    return -(-token_budget(job.steps, job.layout.dp) // job.layout.cp)


def _mixture_size(number: Callable[[Job], int]) -> Callable[[Job], int | str]:
    """A number of a model whose routing is replayed, or nothing."""
    return lambda job: number(job) if Option.ROUTING_REPLAY in job.layout.options else ""


def _layers(job: Job) -> int:
    """The layers of a model that has one in each chunk."""
    return job.layout.pp * (2 if Option.INTERLEAVED in job.layout.options else 1)


def _divisor(job: Job) -> float | str:
    """The divisor of the mode, or nothing."""
    return job.aggregation.divisor or ""


def _typed_divisor(job: Job) -> str | None:
    """The divisor of the configuration, as typed."""
    return job.configuration.divisor


def _older_divisor(job: Job) -> str | None:
    """The same; raises `Unsupported` if it would choose another mode than the job's."""
    divisor, mode = job.configuration.divisor, job.aggregation.mode
    if bool(divisor) != (mode is Mode.CONSTANT) and mode is not Mode.TOKEN_MEAN:
        raise Unsupported(f"no option {MODE}: a divisor alone makes a mode constant")
    return divisor


EXPERTS = 4096
"""The experts of a mixture that replays their choice: as many as a batch has tokens, or more."""

REJECTED = {"--use-tis": True, CORRECTION: user_code.path(user_code.reject)}
CLIPPED = {"--eps-clip": CONSTANTS.clip_low, "--eps-clip-high": CONSTANTS.clip_high}
TRUNCATED = {**CLIPPED, "--use-tis": True, "--tis-clip": CONSTANTS.truncation}
BOUNDED = {**TRUNCATED, "--tis-clip-low": CONSTANTS.kept_low}
ENTROPY = {"--entropy-coef": ENTROPY_COEFFICIENT}
# The reference policy's folder must exist, and is not read.
K1 = {"--kl-loss-type": "k1", REFERENCE: Substitute(".")}
KL = {"--use-kl-loss": True, "--kl-loss-coef": KL_COEFFICIENT, **K1}
PENALISED = {"--kl-coef": ADVANTAGE_CONSTANTS.penalty, **K1}
DISCOUNTED = {WHITENED: True, "--gamma": ADVANTAGE_CONSTANTS.discount}
CENTRED = {ESTIMATOR: "grpo", "--disable-grpo-std-normalization": True}
DISTILLED = {"--use-opd": True, "--opd-type": "sglang", "--opd-kl-coef": KL_COEFFICIENT}
GAE = {ESTIMATOR: "ppo", **DISCOUNTED, "--lambd": ADVANTAGE_CONSTANTS.trace}
TOGETHER = "rollout functions return list[list[Sample]]"
"""Why the samples of a prompt are adjacent."""

COMPARING: dict[str, Convention] = {
    "rejected_rewards": Assumed(Rejected.COUNTED),
    "lone_reward": Assumed(Lone.ZERO),
}
"""Conventions of comparing rewards, which no version documents."""

GROUPS = ("group", "prompt", "n_samples_per_prompt", "boundar")

FAMILY = Framework(
    title="slime and miles",
    modes={
        "sample_mean": (Mode.SAMPLE_MEAN, {MODE: "sample_mean"}),
        "prompt_mean": (Mode.PROMPT_MEAN, {MODE: "prompt_mean"}),
        "token_mean": (Mode.TOKEN_MEAN, {MODE: "token_mean"}),
        "constant": (Mode.CONSTANT, {MODE: "constant", DIVISOR: _divisor}),
        "calculate_per_token_loss": (Mode.TOKEN_MEAN, {PER_TOKEN: True}),
    },
    objectives={
        Objective.POLICY: {},
        Objective.OFF_POLICY: CLIPPED,
        Objective.DUAL_CLIP: {**CLIPPED, "--eps-clip-c": CONSTANTS.dual_clip},
        Objective.TIS_TOKEN: TRUNCATED,
        Objective.TIS_BOUNDED: BOUNDED,
        Objective.OPSM: {
            **CLIPPED,
            "--use-opsm": True,
            "--opsm-delta": CONSTANTS.sequence_divergence,
        },
        Objective.GSPO: {**CLIPPED, ESTIMATOR: "gspo"},
        Objective.CISPO: {**CLIPPED, ESTIMATOR: "cispo"},
        Objective.REJECTION: REJECTED,
        Objective.REJECTION_OFF_POLICY: {**CLIPPED, **REJECTED},
        Objective.REJECTION_COMBINED: {**ENTROPY, **KL, **REJECTED},
        Objective.ENTROPY: ENTROPY,
        Objective.KL: KL,
        Objective.WITH_ENTROPY: ENTROPY,
        Objective.COMBINED: {**ENTROPY, **KL},
        Objective.GROUP_NORMALISED: {ESTIMATOR: "grpo"},
        Objective.GROUP_CENTRED: CENTRED,
        Objective.DISTILLED: {**CENTRED, **DISTILLED},
        Objective.GROUP_WHITENED: {ESTIMATOR: "grpo", WHITENED: True},
        Objective.REINFORCE_PP: {ESTIMATOR: "reinforce_plus_plus", **DISCOUNTED, **PENALISED},
        Objective.REINFORCE_PP_BASELINE: {
            ESTIMATOR: "reinforce_plus_plus_baseline",
            WHITENED: True,
            **PENALISED,
        },
        Objective.GAE: GAE,
        Objective.PENALISED_GAE: {**GAE, **PENALISED},
        Objective.SFT: {"--loss-type": "sft_loss"},
        # The actor's role chooses the loss. In older versions a critic waits for its actor's
        # log-probabilities after so many steps.
        Objective.VALUE: {CRITIC_ALONE: 1},
        Objective.VALUE_CLIPPED: {CRITIC_ALONE: 1, "--value-clip": CONSTANTS.value_clip},
    },
    layout={
        "mb": {"--micro-batch-size": _micro_batch_size},
        "mbtokens": {"--use-dynamic-batch-size": True, "--max-tokens-per-gpu": _token_budget},
        "cp": IN_PARALLEL["cp"],
        "bshd": {"--qkv-format": "bshd"},
        Option.BALANCE_DATA: {"--balance-data": True},
    },
    always={
        "--num-rollout": 1,
        "--rollout-batch-size": _rollout_batch_size,
        "--n-samples-per-prompt": rollouts_asked_for,
        BATCH_SIZE: lambda job: rollouts_per_step(job.steps),
    },
    configurations={
        Setting.MODE: Configurable({MODE: ""}, ("aggregation",)),
        Setting.DIVISOR: Configurable({DIVISOR: _typed_divisor}, ("divisor",)),
        Setting.PER_TOKEN: Configurable(
            {PER_TOKEN: True}, ("per-token", "per_token", "aggregation")
        ),
        Setting.ENTROPY: Configurable(ENTROPY, ("entropy",)),
        Setting.KL: Configurable(KL, ("kl",)),
        Setting.BATCH_SIZE: Configurable(
            {BATCH_SIZE: lambda job: job.configuration.batch_size}, ("batch", *GROUPS)
        ),
        Setting.CORRECTION: Configurable(
            {"--use-tis": True, CORRECTION: user_code.path(user_code.correct)},
            ("tis", "correction"),
        ),
        Setting.DISTILLATION: Configurable(DISTILLED),
        Setting.REDUCER: Configurable({REDUCER: user_code.path(user_code.reducer)}, ("reducer",)),
        Setting.CONFIG_FILE: Configurable({CONFIG_FILE: ""}),
        FaultInjection.GROUPS_MISSING: Configurable({}, GROUPS),
        FaultInjection.GROUP_INCOMPLETE: Configurable({}, GROUPS),
        **{
            fault: Configurable({CONVERSION: user_code.path(user_code.conversion)}, GROUPS)
            for fault in user_code.FAULTS
        },
    },
    metrics={
        Metric.LOSS: "train/loss",
        Metric.POLICY_LOSS: "train/pg_loss",
        Metric.CLIP_FRACTION: "train/pg_clipfrac",
        Metric.POLICY_KL: "train/ppo_kl",
        Metric.ENTROPY: "train/entropy_loss",
        Metric.KL: "train/kl_loss",
        Metric.VALUE_LOSS: "train/value_loss",
        Metric.REJECTED: "train/rejected",  # of `user_code.reject`
        Metric.REWARD: "rollout/raw_reward",
        Metric.RESPONSE_LENGTH: "rollout/response_lengths",
        Metric.ADVANTAGE: "rollout/advantages",
        Metric.VALUE: "rollout/values",
        Metric.REFERENCE_LOG_PROB: "rollout/ref_log_probs",
    },
    options=read_options("adapters.slime_family"),
    departures=(*read_departures("adapters.slime_family"), CPU_AS_CUDA),
)

ON_MEGATRON = replace(
    FAMILY,
    objectives={**FAMILY.objectives, Objective.ROUTER: {}},
    layout={
        **FAMILY.layout,
        **IN_PARALLEL,
        Option.ALLGATHER_CP: {"--allgather-cp": True},
        Option.AVERAGE_IN_COLLECTIVE: {"--ddp-average-in-collective": True},
        Option.DISTRIBUTED_OPTIMIZER: {"--use-distributed-optimizer": True},
        Option.EXPERT_PARALLEL: {"--expert-model-parallel-size": SHARED},
        Option.INTERLEAVED: {"--num-virtual-stages-per-pipeline-rank": 2},
        Option.ROUTING_REPLAY: {"--use-rollout-routing-replay": True},
        Option.OVERLAP_GRAD_REDUCE: {"--overlap-grad-reduce": True},
    },
    always={
        **FAMILY.always,
        "--num-experts": _mixture_size(lambda _: EXPERTS),
        "--moe-router-topk": _mixture_size(lambda _: 1),
        "--num-layers": _mixture_size(_layers),
    },
    largest_tp=2,
    largest_pp=4,
    departures=(
        *FAMILY.departures,
        *read_departures("adapters.slime_family", "megatron"),
        PIPELINE_STAGES,
        ONE_BY_ONE,
    ),
)


def version_record(record: Framework, has: Callable[[Settings], bool]) -> Framework:
    """The record of a version, given whether it has options and values.

    Versions without an option for the four modes have a flag for `token_mean`; some have a divisor,
    which alone makes the mode `constant`.
    """
    if not has({MODE: ""}):
        record = replace(
            record,
            modes={
                "sample_mean": (Mode.SAMPLE_MEAN, {}),
                "calculate_per_token_loss": (Mode.TOKEN_MEAN, {PER_TOKEN: True}),
                "constant": (Mode.CONSTANT, {OLDER_DIVISOR: _divisor}),
            },
            configurations={
                **record.configurations,
                Setting.MODE: Configurable({PER_TOKEN: ""}, ("aggregation",)),
                Setting.DIVISOR: Configurable({OLDER_DIVISOR: _older_divisor}, ("divisor",)),
            },
        )
    return record.narrowed(has)
