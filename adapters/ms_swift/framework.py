"""The record of ms-swift: options of its command line, and its documents."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from adapters.contract.description import Assumed, Documented, parse_departures
from adapters.contract.framework import Framework, parse_options
from adapters.contract.job import Unsupported
from adapters.contract.layout import Option
from adapters.contract.objective import CONSTANTS, Metric, Objective
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

OF_ALL = parse_departures(
    """
    stubbed: the model, by one with a vocabulary of one token, and the functions that take
    log-probabilities and entropies of logits, by themselves plus an entry for every token
        ms-swift's own functions run on the logits; weights are read through the entry
    stubbed: the tokenizer, by one whose words are token ids
        texts are not used but as ids
    set: rollout importance sampling without vLLM, which ms-swift declines without its version
        a sample has log-probabilities of the rollout policy from any engine
    set: temperature=1.0
        logits are divided by it, and so would be every weight
    stubbed: the inference engine, by one that returns the case's samples with their loss masks
        generation comes before a step
    set: a subclass of the trainer that sets token advantages, except in checks on its own
        its loss takes one advantage of each token; they are signed powers of two, on which no
        weight depends
    """,
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
    options=parse_options(
        """
        loss_type | the mode, and the policy loss | `bnpo` is no mode, `cispo` has no formula in the
            reference: tests of the adapter hold them against ms-swift's documents. `real` and
            `fipo` never run in 4.6.0: with a teacher or without, it says that a teacher does not
            support them
        max_completion_length | the divisor of `dr_grpo` | in `constant`
        importance_sampling_level | ratios of tokens or of sequences | elsewhere for `token`;
            `sequence_token` is not looked at yet
        tau_pos, tau_neg | temperatures of SAPO
        fipo_decay_rate, fipo_clip_range, fipo_clip_high_only, fipo_safety_threshold, real_tau | the
            weight of FIPO and the temperature of REAL | not looked at: the losses never run
        micro_batch_size, global_batch_size, num_microbatches | micro-batches of `megatron`
        padding_free | packed rows
        sequence_parallel_size, context_parallel_size | ranks that share sequences | the latter by
            `megatron`, with packed rows
        steps_per_generation | the micro-batches of a generation | those of whole steps, as
            docs/source_en/Megatron-SWIFT/GRPO.md wants it
        num_iterations | how often a generation is trained on | log-probabilities of the old policy
            are given, and ratios other than 1 need no second time
        overlong_filter | samples that were cut off are masked
        kl_in_reward | the divergence in rewards instead | not looked at yet
        log_entropy | entropies in the log
        off_policy_sequence_mask_delta | sequences of negative advantages are masked | refused in
            4.6.0, as `fipo` is
        scale_rewards | the standard deviation of a group | those of a `batch` and `gdpo` are not
            run
        advantage_estimator | how rewards are compared | `grpo`, `rloo`; `reinforce_plus_plus`
            divides by a standard deviation of the batch, which has no formula in the reference
        advantage_reweight, rlsd_lambda, rlsd_reweight_clip_range, rlsd_lambda_warmup_steps,
            rlsd_lambda_decay_steps, rlsd_negative_only, teacher_kl_coef, teacher_tag_key,
            sdar_loss_coef, sdar_gate_beta | a teacher | `rlsd` and others have none
        rollout_importance_sampling_mode, rollout_importance_sampling_threshold | factors by the
            ratio to the rollout policy | `sequence_truncate` and `sequence_mask` take the geometric
            mean of a sequence's ratios, which has no formula in the reference
        log_rollout_offpolicy_metrics | the log of that ratio | not looked at
        dataset_shuffle, dynamic_sample, max_resample_times, multi_turn_scheduler, max_turns,
            completion_length_limit_scope, use_gym_env, gym_env, vllm_server_pass_dataset | prompts
            and conversations | they are given
        chord_sft_dataset, chord_sft_per_device_train_batch_size, chord_enable_phi_function,
            chord_mu_warmup_steps, chord_mu_decay_steps, chord_mu_peak, chord_mu_valley | another
            loss of fine-tuning samples | not looked at yet
        reward_model, reward_model_plugin, cosine_min_len_value_wrong, cosine_max_len_value_wrong,
            cosine_min_len_value_correct, cosine_max_len_value_correct, cosine_max_len,
            repetition_n_grams, repetition_max_penalty, soft_max_length, soft_cache_length | rewards
            | they are given
        temperature | what logits are divided by | it is 1
        """,
        *grpo.OPTIONS,
    ),
    departures=parse_departures(
        """
        not_run: the command line and its `RLHFArguments`, which make a `GRPOConfig` and a template
            they look a model up; the adapter sets the fields that they would set
        """,
        *OF_ALL,
    ),
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
    departures=parse_departures(
        """
        not_run: the command line, and what `MegatronRLHFArguments` derives of checkpoints and GPUs
            the adapter has all their defaults, and sets the fields that users set
        stubbed: mcore-bridge's models and Megatron's kernels for layers, which want Transformer
        Engine
            there are no layers; its own functions that slice rows over ranks run
        """,
        *OF_ALL,
        CPU_AS_CUDA,
        ONE_BY_ONE,
    ),
)
