"""The record of ms-swift: options of its command line, and its documents."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from adapters.contract.description import Assumed, Documented
from adapters.contract.framework import Framework
from adapters.contract.job import Unsupported
from adapters.contract.layout import Option
from adapters.contract.objective import CONSTANTS, Metric, Objective
from adapters.contract.tables import read_departures, read_options
from adapters.engines import grpo
from adapters.engines.generations import generations_of_prompt, schedule_of
from adapters.engines.grpo import CLIPPED
from adapters.engines.shells import CPU_AS_CUDA, NOTHING_LEARNED, ONE_BY_ONE, ZEROED
from adapters.engines.trainers import OF_RUNS
from adapters.toolkit.settings import gives_advantages, samples_per_step, whole_divisor
from reference.aggregation import AuxiliaryAggregation, DenominatorMask, DivergenceEstimator, Mode

if TYPE_CHECKING:
    from adapters.contract import Job
    from adapters.engines.generations import Schedule

DOCS = "docs/source_en/Instruction"
OPTIONS = f"{DOCS}/Command-line-parameters.md, GRPO Arguments"
PAGE = f"{DOCS}/GRPO/GetStarted/GRPO.md"
NOT_TRAINED = "swift/rlhf_trainers/grpo_trainer.py (_prepare_batch_inputs), under torch.no_grad()"
MISMATCH = f"{DOCS}/GRPO/AdvancedResearch/training_inference_mismatch.md"


def generating(job: Job) -> Schedule:
    """The schedule by which ranks generate, which sequence-parallel ranks do separately.

    ms-swift multiplies the micro-batches that a user asks for by the number of these ranks.
    """
    layout = job.layout
    if not isinstance(layout.micro_batches, int) or layout.micro_batches % layout.cp:
        raise Unsupported(
            f"no {layout.micro_batches} micro-batches on {layout.cp} of Ulysses' ranks"
        )
    ranks, parts = layout.dp * layout.cp, layout.micro_batches // layout.cp
    separate = replace(layout, dp=ranks, cp=1, micro_batches=parts)
    return schedule_of(replace(job, layout=separate))


PER_GENERATION = {"steps_per_generation": lambda job: generating(job).per_generation}
CORRECTED = {**CLIPPED, "rollout_importance_sampling_threshold": CONSTANTS.truncation}
MASKED = {**CORRECTED, "rollout_importance_sampling_mode": "token_mask"}
DIVERGED = {"off_policy_sequence_mask_delta": CONSTANTS.sequence_divergence}
DIVISOR = {"max_completion_length": lambda job: whole_divisor(job, "max_completion_length") or ""}
OF_BOTH: dict[str, Any] = {
    "temperature": 1.0,
    "beta": 0.0,
    "kl_in_reward": False,
    "log_entropy": True,
    "scale_rewards": "group",
    "check_model": False,
    "dataloader_num_workers": 0,
}
"""Settings of jobs of both trainers."""

OF_MACHINE: dict[str, Any] = {
    **dict.fromkeys(("use_vllm", "bf16", "is_multimodal", "dataloader_pin_memory"), False),
    **dict.fromkeys(("lr", "weight_decay", "clip_grad"), 0.0),
    **dict.fromkeys(("logging_steps", "data_seed"), 1),
    "task_type": "causal_lm",
    "callbacks": ["default_flow"],
    "seq_length": 4096,
}
"""Settings of the trainer on Megatron-Core on which no weight depends."""

OF_ALL = (
    *read_departures("adapters.ms_swift"),
    *grpo.OF_ALL,
    *grpo.OF_GENERATING,
    NOTHING_LEARNED,
    ZEROED,
)

MS_SWIFT = Framework(
    title="ms-swift",
    scope="Fields of `RLHFArguments` with `rlhf_type=grpo`, and of `MegatronRLHFArguments`.",
    # `bnpo`, a token mean of each micro-batch of a process, is none of the modes; `real` and `fipo`
    # never run in 4.6.0.
    modes={
        **grpo.modes(DIVISOR),
        "cispo": (Mode.TOKEN_MEAN, {"loss_type": "cispo"}),
        "sapo": (Mode.SAMPLE_MEAN, {"loss_type": "sapo"}),
    },
    objectives={
        **grpo.objectives(CLIPPED, ("tau_pos", "tau_neg")),
        Objective.TIS_TOKEN: {**CORRECTED, "rollout_importance_sampling_mode": "token_truncate"},
        Objective.REJECTION: MASKED,
        Objective.REJECTION_OFF_POLICY: MASKED,
        Objective.OPSM: {**CLIPPED, **DIVERGED},
        **grpo.SCALED,
        Objective.LEAVE_ONE_OUT: {"advantage_estimator": "rloo", "scale_rewards": "none"},
    },
    only_modes={Objective.SAPO: Mode.SAMPLE_MEAN},
    layout={
        **grpo.micro_batches(generating),
        "thd": {"padding_free": True},
        "cp": {"sequence_parallel_size": lambda job: job.layout.cp},
        Option.SHARED_GENERATION: PER_GENERATION,
        Option.MASKED_TRUNCATION: {"overlong_filter": True},
    },
    always={
        **OF_RUNS,
        **OF_BOTH,
        "padding_free": False,
        "sequence_parallel_size": 1,
        **PER_GENERATION,
        "num_generations": lambda job: generations_of_prompt(job, generating(job)),
    },
    rules={"default_mode": OPTIONS, "no_gradient.reference_log_probs": NOT_TRAINED},
    metrics={Metric.POLICY_LOSS: "loss", Metric.ENTROPY: "entropy/mean", **grpo.METRICS},
    # The documents call the logged divergence and clip ratio averages over completions; they do not
    # say whether they are pooled over a step.
    conventions={
        "denominator_mask": Documented(
            DenominatorMask.ORIGINAL, f"{MISMATCH}, Stability Control: Truncate vs. Mask"
        ),
        "kl": Documented(AuxiliaryAggregation.WITH_POLICY_LOSS, f"{PAGE}, Algorithm Overview"),
        "kl_estimator": Assumed(DivergenceEstimator.K3),
        "logged_entropy": Documented(AuxiliaryAggregation.SAMPLE_MEAN, f"{PAGE}, logged metrics"),
        **grpo.ASSUMED,
    },
    options=(*read_options("adapters.ms_swift"), *grpo.OPTIONS),
    departures=(*read_departures("adapters.ms_swift", "on_accelerate"), *OF_ALL),
)


def _micro_batch(job: Job) -> int:
    if job.layout.cp > 1 and job.layout.format == "bshd":
        raise Unsupported("context_parallel_size with padding_free=False is not driven")
    return schedule_of(job).micro_batch_size


def _samples_of_prompt(job: Job) -> int:
    """The samples of a prompt; data-parallel ranks have whole micro-batches of prompts."""
    schedule = schedule_of(job)
    size = 1 if gives_advantages(job) else generations_of_prompt(job, schedule)
    if schedule.per_generation % size:
        raise Unsupported(
            "prompts of a data-parallel rank that are no multiple of micro_batch_size"
        )
    return size


MEGATRON = replace(
    MS_SWIFT,
    modes={**MS_SWIFT.modes, "bnpo": (Mode.TOKEN_MEAN, {"loss_type": "bnpo"})},
    layout={
        "mb": {
            "micro_batch_size": _micro_batch,
            "num_microbatches": lambda job: schedule_of(job).micro_batches,
        },
        "bshd": {"padding_free": False},
        "cp": {"context_parallel_size": lambda job: job.layout.cp},
        Option.SHARED_GENERATION: {"steps_per_generation": lambda job: len(job.steps)},
        Option.MASKED_TRUNCATION: {"overlong_filter": True},
    },
    always={
        **OF_BOTH,
        "rlhf_type": "grpo",
        "padding_free": True,
        "global_batch_size": lambda job: samples_per_step(job.steps),
        "steps_per_generation": 1,
        "num_generations": _samples_of_prompt,
        "train_iters": lambda job: len(job.steps),
        **OF_MACHINE,
    },
    metrics={**MS_SWIFT.metrics, Metric.ENTROPY: "entropy/entropy_mean"},
    departures=(
        *read_departures("adapters.ms_swift", "on_megatron"),
        *OF_ALL,
        CPU_AS_CUDA,
        ONE_BY_ONE,
    ),
)
