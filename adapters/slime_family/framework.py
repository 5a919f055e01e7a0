"""The record that those of slime and miles extend: options as users type them, and departures.

The two frameworks are of one lineage and share most of their command line.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from adapters.contract.description import Assumed, parse_departures
from adapters.contract.framework import Configurable, Framework, Substitute, parse_options
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
from adapters.engines.shells import CPU_AS_CUDA, ONE_BY_ONE, PIPELINE_STAGES
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
        "cp": {"--context-parallel-size": lambda job: job.layout.cp},
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
    options=parse_options(
        """
        --calculate-per-token-loss | `token_mean`
        --loss-aggregation, --loss-aggregation-divisor | the mode and the divisor of `constant`, in
            slime's pull request 2090 and miles' 1350 and 1498
        --pg-loss-divisor | the divisor of `constant`, in miles' pull request 1328 | no later
            version has it
        --loss-type | the loss | `policy_loss` elsewhere, and the critic's loss by its actor's role.
            `custom_loss` is the user's code
        --custom-pg-loss-reducer-function-path | a user's reducer
        --custom-loss-function-path, --custom-advantage-function-path | a function of the user's |
            it is the user's code
        --advantage-estimator | advantages, and the loss of `gspo` and `cispo` | `ppo` on Megatron,
            which alone has a critic
        --disable-compute-advantages-and-returns | advantages, which the user's code makes | those
            of the framework are looked at
        --eps-clip, --eps-clip-high | clipping bounds | with two different ones
        --eps-clip-c | the bound of dual clip
        --use-tis, --tis-clip, --custom-tis-function-path | truncated importance sampling of tokens,
            or the correction of a function, which may mask tokens
        --tis-clip-low | its lower bound | there is none, as by default, and one
        --get-mismatch-metrics | logs of the mismatch between policies | they are no part of the
            loss
        --use-opsm, --opsm-delta | sequences of negative advantages are masked
        --use-rollout-logprobs, --skip-actor-forward-only | whose log-probabilities are the old ones
            | old log-probabilities are given
        --entropy-coef | the entropy bonus
        --use-rollout-entropy | entropies of the old policy are computed | they are no part of the
            loss
        --observe-training-entropy | miles computes entropies that are not trained on, to log them |
            it does in all runs
        --use-kl-loss, --kl-loss-coef | the divergence in the loss
        --kl-loss-type | the estimator of the divergence | with `k1`; `k2`, `k3` and `low_var_kl`
            are reduced by the same lines
        --use-unbiased-kl | the divergence times the ratio | the reference has no formula yet
        --kl-coef | the divergence in the reward | with `k1`
        --ref-ckpt-step, --ref-load, --ref-update-interval | the reference policy | its
            log-probabilities are given
        --gamma, --lambd | discounts | with two different ones
        --normalize-advantages | advantages are whitened
        --disable-grpo-std-normalization | the standard deviation of a group
        --disable-rewards-normalization | rewards are not compared | nothing is computed
        --use-opd, --opd-type, --opd-kl-coef | distillation in the advantages | `no_gradient`, with
            given scores of the teacher
        --value-clip | clipping of a critic's values | `other_losses.value` is inside the bound
        --num-critic-only-steps | steps in which a critic is trained alone | so is the only one
        --critic-load, --critic-save, --critic-lr, --critic-lr-warmup-iters | a critic's checkpoint
            and its schedule | weights do not change
        --micro-batch-size | micro-batches
        --use-dynamic-batch-size, --max-tokens-per-gpu | micro-batches by tokens
        --qkv-format | rows that are packed or padded | slime has had packed ones alone since 0.3
        --global-batch-size | several optimizer steps | `weights` on `two_steps`
        --n-samples-per-prompt, --rollout-batch-size | groups and their number | `weights` on
            `odd_groups` and others
        --balance-data | how samples are distributed | `sharding` too
        --allgather-cp | how sequences are distributed
        --context-parallel-size, --tensor-model-parallel-size, --pipeline-model-parallel-size,
            --num-virtual-stages-per-pipeline-rank | context- and tensor-parallel ranks, pipeline
            stages, and the chunks of the model on each
        --ddp-average-in-collective, --overlap-grad-reduce, --use-distributed-optimizer | how
            Megatron reduces gradients, and whether ranks share the optimizer
        --mask-offpolicy-in-partial-rollout | masks of partial rollouts | masks are given
        --use-routing-replay, --use-rollout-routing-replay, --use-indexer-replay,
            --use-rollout-indexer-replay | the experts of a token, and what it attends to | the
            probe's model has none
        --train-backend, --megatron-config-path | the engine, and its options by role | the engines
            are looked at one by one, with the options of the command line
        --clip-grad | the norm of the gradient | the gradient is read before it
        --reset-optimizer-states, --use-stateless-adam | the optimizer | nothing is learned
        --save-hf, --save-trigger-sentinel, --custom-megatron-post-save-hook-path | checkpoints |
            no checkpoint is saved
        """
    ),
    departures=parse_departures(
        """
        not_run: the trainer's loop around the actor's train: rollouts, evaluation, saving, weight
        updates
            samples are given as the rollout side hands them over, and weights do not change
        not_run: the actor's init: process groups, model, optimizer, checkpoints
            the adapter makes each of them; the actor's own code uses them
        not_run: a forward pass of a reference policy
            its log-probabilities are given, as are all quantities that a weight is read from
        not_run: a critic's forward pass, where advantages come from its values
            they are given; the same pass runs when the critic is trained
        set: no rollout log-probabilities, unless tokens are rejected or corrected, or advantages
        come from rewards
            nothing else is computed from them
        stubbed: the model, by the probe, one parameter for each token of the batch, without
        attention
            a weight is the derivative with respect to a token's log-probability, wherever logits
            come from
        stubbed: calculate_log_probs_and_entropy: runs on a vocabulary of one; then the probe is
        added
            values are then known, and the derivative with respect to each of them can be read
        stubbed: compute_advantages_and_returns: writes the adapter's advantages and returns, except
        in checks on those from rewards
            a user chooses the estimator, and no aggregation depends on it
        stubbed: the tracker that metrics are logged to: the numbers are recorded
            they are what the framework logs
        stubbed: the object store between rollouts and training: objects are passed directly
            it changes no values
        stubbed: the heartbeat, the weight updater, the copies of weights on the CPU, and an actor's
        sleep between rollouts, by nothing
            weights do not change, no process waits for a heartbeat, and memory suffices
        passed_by: options of inference servers and their validation
            no train step reads them
        """,
        CPU_AS_CUDA,
    ),
)

ON_MEGATRON = replace(
    FAMILY,
    objectives={**FAMILY.objectives, Objective.ROUTER: {}},
    layout={
        **FAMILY.layout,
        "tp": {"--tensor-model-parallel-size": lambda job: job.layout.tp},
        "pp": {"--pipeline-model-parallel-size": lambda job: job.layout.pp},
        Option.ALLGATHER_CP: {"--allgather-cp": True},
        Option.AVERAGE_IN_COLLECTIVE: {"--ddp-average-in-collective": True},
        Option.DISTRIBUTED_OPTIMIZER: {"--use-distributed-optimizer": True},
        Option.INTERLEAVED: {"--num-virtual-stages-per-pipeline-rank": 2},
        Option.OVERLAP_GRAD_REDUCE: {"--overlap-grad-reduce": True},
    },
    largest_tp=2,
    largest_pp=4,
    departures=(
        *FAMILY.departures,
        *parse_departures(
            """
            set: --debug-train-only
                no inference servers are started; the train step does not read it
            set: --num-critic-only-steps=1 for a critic, if the option exists
                the critic trains alone in the first rollout, and its loss is the same
            set: --ref-load to a folder that is not read, if a KL term is trained
                validation requires one; log-probabilities of the reference policy are given
            set: sizes of a small model
                they only estimate workload when ranks are balanced, where the lengths of samples
                decide
            stubbed: Megatron's argument parser: those of its options that are read, with its
            defaults
                no distribution of Megatron-Core contains megatron.training
            passed_by: validation of Megatron's own options, and the framework's additions to it
                options run as they are switched on; slime, for example, allows allgather_cp only
                for some models
            set: Megatron's DistributedDataParallel with gradients reduced in float32
                frameworks of this lineage use it in the same way; the layout's options are passed
                on
            stubbed: the optimizer and the learning-rate schedule: the gradient is read, nothing is
            stepped
                gradients are final when an optimizer sees them
            stubbed: get_args and finalize_model_grads of the framework's training module
                one returns the parsed arguments, the other is Megatron's own except at depths below
                step
            stubbed: the loss function's token count, converted to a tensor
                Megatron-Core versions newer than the framework's expect one; the number is the same
            """,
            PIPELINE_STAGES,
            ONE_BY_ONE,
        ),
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
