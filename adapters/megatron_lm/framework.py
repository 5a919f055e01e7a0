"""The record of Megatron-LM: options of `train_rl.py` as users type them, and its documents."""

from __future__ import annotations

from typing import TYPE_CHECKING

from adapters.contract.description import Assumed, Documented
from adapters.contract.framework import Configurable, Framework, Settings
from adapters.contract.job import Setting, Unsupported
from adapters.contract.layout import Option
from adapters.contract.objective import CONSTANTS, KL_COEFFICIENT, Metric, Objective
from adapters.contract.tables import read_departures, read_options
from adapters.engines import router
from adapters.engines.experts import SHARED
from adapters.engines.shells import (
    CPU_AS_CUDA,
    IN_PARALLEL,
    NOTHING_LEARNED,
    ONE_BY_ONE,
    PIPELINE_STAGES,
    ZEROED,
)
from adapters.toolkit.settings import (
    gives_advantages,
    largest_micro_batch,
    prompts_per_step,
    require_one_step,
    require_prompts_together,
    rollouts_asked_for,
    samples_per_step,
    token_budget,
)
from reference.aggregation import (
    AdvantageUnit,
    AuxiliaryAggregation,
    Deviation,
    DivergenceEstimator,
    EstimatorConventions,
    Lone,
    Mode,
)

if TYPE_CHECKING:
    from adapters.contract import Job

PER_TOKEN = "--calculate-per-token-loss"
OF_SEQUENCES = "--rl-per-sequence-loss-norm"
PACKED = "--rl-use-sequence-packing"
LOSS = "megatron/rl/rl_utils.py (calculate_grpo_loss)"
ADVANTAGES = "megatron/rl/rl_utils.py (calculate_grpo_advantages)"
RECIPE = "examples/rl/README.md, Experiment command"


def micro_batch_size(job: Job) -> int:
    """The rows of a micro-batch: one if tokens cut them, which is a bin if they are packed."""
    return largest_micro_batch(job, _rows_asked_for(job))


def _one_sample(job: Job) -> int:
    """One row to a micro-batch; raises `Unsupported` if it has several samples."""
    if job.layout.format == "thd" or micro_batch_size(job) > 1:
        raise Unsupported(
            f"without {PER_TOKEN}, micro-batches of several samples have the mean of their tokens,"
            " which is none of the modes"
        )
    return 1


def _rows_asked_for(job: Job) -> int:
    if gives_advantages(job):
        return samples_per_step(job.steps)
    return _prompts(job) * rollouts_asked_for(job)


def _prompts(job: Job) -> int:
    require_prompts_together(job, "--grpo-group-size repeats each prompt")
    return prompts_per_step(job.steps)


def global_batch_size(job: Job) -> int:
    """The rows of an optimizer step: those of failed episodes fill the last micro-batches up.

    Raises `Unsupported` if they would have to fill up another step than the last.
    """
    rows, of_all_ranks = _rows_asked_for(job), micro_batch_size(job) * job.layout.dp
    filled = -(-rows // of_all_ranks) * of_all_ranks
    if filled > rows and (len(job.steps) > 1 or not gives_advantages(job)):
        raise Unsupported(f"--global-batch-size {rows} is no multiple of {of_all_ranks}")
    return filled


def _group_size(job: Job) -> int:
    return 1 if gives_advantages(job) else rollouts_asked_for(job)


def _prompts_of_collection(job: Job) -> int:
    return len(job.steps) * global_batch_size(job) // _group_size(job)


def _longest(job: Job) -> int:
    """The longest sequence, in slices of one length for context-parallel ranks."""
    lengths = (step.prompt_lengths + step.response_lengths for step in job.steps)
    return _sliced(job, max(int(one.max()) for one in lengths))


def _sliced(job: Job, length: int) -> int:
    """A length that context-parallel ranks can share, and 2 tokens at least."""
    slices = 2 * job.layout.cp
    return -(-length // slices) * slices


def _bin(job: Job) -> int:
    """The tokens of a bin, which holds at least the longest sequence."""
    require_one_step(job, "bins, and not samples, are dealt to the optimizer steps of a collection")
    return max(_longest(job), _sliced(job, token_budget(job.steps, job.layout.dp)))


def _averages(job: Job) -> bool:
    """Whether the collective averages; raises `Unsupported` with a loss per token."""
    if job.aggregation.mode is Mode.TOKEN_MEAN:
        raise Unsupported("Cannot average in collective when calculating per-token loss!")
    return True


CLIPPED = {
    "--grpo-clamp-eps-lower": CONSTANTS.clip_low,
    "--grpo-clamp-eps-upper": CONSTANTS.clip_high,
}
PENALTY = {"--grpo-kl-beta": KL_COEFFICIENT}
CORRECTED = {
    "--rl-inference-logprobs-is-correction": True,
    "--rl-importance-sampling-truncation-coef": CONSTANTS.truncation,
}

PER_SEQUENCE: dict[str, tuple[str, Settings]] = {
    "rl_per_sequence_loss_norm": (Mode.SAMPLE_MEAN, {PER_TOKEN: True, OF_SEQUENCES: True})
}
"""A mode of pull request 6113, which is not merged."""

MEGATRON_LM = Framework(
    title="Megatron-LM",
    scope="Options of `train_rl.py`.",
    modes={
        "micro_batch_size=1": (Mode.SAMPLE_MEAN, {"--micro-batch-size": _one_sample}),
        "calculate_per_token_loss": (Mode.TOKEN_MEAN, {PER_TOKEN: True}),
    },
    objectives={
        Objective.POLICY: {},
        Objective.OFF_POLICY: CLIPPED,
        Objective.TIS_TOKEN: {**CLIPPED, **CORRECTED},
        Objective.KL: PENALTY,
        Objective.GROUP_NORMALISED: {},
        Objective.ROUTER: router.TYPED,
    },
    layout={
        "mb": {"--seq-length": _longest},
        "mbtokens-bshd": {"--seq-length": _longest},
        "mbtokens-thd": {PACKED: True, "--seq-length": _bin},
        **IN_PARALLEL,
        Option.AVERAGE_IN_COLLECTIVE: {"--ddp-average-in-collective": _averages},
        Option.DISTRIBUTED_OPTIMIZER: {"--use-distributed-optimizer": True},
        Option.EXPERT_PARALLEL: {"--expert-model-parallel-size": SHARED, "--num-experts": SHARED},
        Option.OVERLAP_GRAD_REDUCE: {"--overlap-grad-reduce": True},
        Option.TWO_EPOCHS: {
            "--grpo-iterations": 2,
            "--train-iters": lambda job: 2 * len(job.steps),
        },
    },
    always={
        "--perform-rl-step": True,
        "--micro-batch-size": micro_batch_size,
        "--global-batch-size": global_batch_size,
        "--grpo-prompts-per-step": _prompts_of_collection,
        "--grpo-group-size": _group_size,
        "--grpo-iterations": 1,
        "--grpo-kl-beta": 0.0,
        "--train-iters": lambda job: len(job.steps),
        "--lr": 0.0,
        "--weight-decay": 0.0,
        "--clip-grad": 0.0,
        "--num-layers": lambda job: job.layout.pp,
        "--hidden-size": 8,
        "--num-attention-heads": 2,
        "--max-position-embeddings": 4096,
        "--transformer-impl": "local",
        "--tensorboard-dir": ".",
    },
    configurations={
        Setting.KL: Configurable(PENALTY, ("kl",)),
    },
    metrics={
        Metric.POLICY_LOSS: "lm loss",
        Metric.RATIO: "rl/pi_over_pi_old",
        Metric.KL: "rl/kl_term",
    },
    conventions={
        "kl": Documented(AuxiliaryAggregation.WITH_POLICY_LOSS, LOSS),
        "kl_estimator": Assumed(DivergenceEstimator.K3),
        "logged_kl": Assumed(AuxiliaryAggregation.TOKEN_MEAN),
        "diagnostics": Assumed(AuxiliaryAggregation.TOKEN_MEAN),
        "logged_policy_loss": Assumed(AuxiliaryAggregation.TOKEN_MEAN),
        "advantage_unit": Documented(AdvantageUnit.SAMPLE, ADVANTAGES),
        "of_groups": Documented(EstimatorConventions(std_epsilon=1e-4), ADVANTAGES),
        "deviation": Documented(Deviation.BIASED, ADVANTAGES),
        "lone_reward": Assumed(Lone.ZERO),
    },
    # `prepare_data_for_update` says that the rows it pads with contribute nothing to the loss. That
    # is true of their tokens.
    deliberate={
        "filling_rows_counted": Assumed(
            "rows of padding are micro-batches of their own, and the mean is over all of these"
        ),
    },
    options=read_options("adapters.megatron_lm"),
    departures=(
        *read_departures("adapters.megatron_lm"),
        NOTHING_LEARNED,
        ZEROED,
        CPU_AS_CUDA,
        PIPELINE_STAGES,
        ONE_BY_ONE,
    ),
    largest_tp=2,
    largest_pp=4,
)
