"""The records of TRL's generating trainers: fields of their configurations, and TRL's documents."""

from __future__ import annotations

from typing import TYPE_CHECKING

from adapters.contract.description import Assumed, Documented, documented, parse_departures
from adapters.contract.framework import Configurable, Framework, Settings, parse_options
from adapters.contract.job import Setting, Unsupported
from adapters.contract.layout import Option
from adapters.contract.objective import (
    CONSTANTS,
    ENTROPY_COEFFICIENT,
    ROUTER_COEFFICIENT,
    Metric,
    Objective,
)
from adapters.engines import grpo
from adapters.engines.generations import generations_of_prompt, schedule_of
from adapters.engines.grpo import CLIPPED, PENALTY
from adapters.engines.shells import NOTHING_LEARNED, ZEROED
from adapters.engines.trainers import OF_RUNS
from adapters.toolkit.settings import whole_divisor
from reference.aggregation import (
    AdvantageUnit,
    AuxiliaryAggregation,
    DenominatorMask,
    Missing,
    Mode,
)

if TYPE_CHECKING:
    from adapters.contract import Job


FEWEST_GENERATIONS = 2
"""The fewest samples of a prompt that TRL accepts."""


def _divisor(job: Job) -> int | str:
    """The divisor as a configuration types it, else that of the mode; empty if there is none."""
    if job.configuration.divisor is not None:
        return job.configuration.divisor
    is_one = job.aggregation.divisor == 1  # luspo's, which has no option
    return "" if is_one else whole_divisor(job, "max_completion_length") or ""


def _per_generation(job: Job) -> int:
    return schedule_of(job).per_generation


def _generations_of_prompt(job: Job) -> int:
    schedule = schedule_of(job)
    if schedule.generation_size < FEWEST_GENERATIONS:
        raise Unsupported(f"a generation of {schedule.generation_size} sample: TRL needs 2")
    return generations_of_prompt(job, schedule)


def _steps(job: Job) -> int:
    return len(job.steps)


DIVISOR = {"max_completion_length": _divisor}
# From the second time on, the ratio is not 1.
OFF_POLICY = {**CLIPPED, "num_iterations": 2, "max_steps": lambda job: 2 * _steps(job)}
# TRL compares only vLLM's rollouts with the old policy.
LARGEST = {"vllm_importance_sampling_clip_max": CONSTANTS.truncation}
SMALLEST = {"vllm_importance_sampling_clip_min": CONSTANTS.kept_low}
COMPARED = {**CLIPPED, **LARGEST, "use_vllm": True}
MASKED = {**COMPARED, "vllm_importance_sampling_mode": "token_mask"}
BONUS = {"entropy_coef": ENTROPY_COEFFICIENT}

OF_GENERATIONS = {
    **OF_RUNS,
    "shuffle_dataset": False,
    "steps_per_generation": _per_generation,
    "num_iterations": 1,
    "num_generations": _generations_of_prompt,
    "mask_truncated_completions": False,
}
_CUT = grpo.micro_batches(schedule_of)["mb"]
ACCUMULATED = "gradient_accumulation_steps"
# By default a step is one micro-batch.
MICRO_BATCHES: dict[str, Settings] = {
    "mb": {name: size for name, size in _CUT.items() if name != ACCUMULATED},
    "accumulated": {ACCUMULATED: _CUT[ACCUMULATED]},
}
GENERATIONS: dict[str, Settings] = {
    **MICRO_BATCHES,
    Option.SHARED_GENERATION: {"steps_per_generation": _per_generation},
    Option.SPLIT_GENERATION: {"steps_per_generation": _per_generation},
    Option.MASKED_TRUNCATION: {"mask_truncated_completions": True},
    Option.PARTIAL_WINDOW: {ACCUMULATED: lambda job: schedule_of(job).micro_batches + 1},
}

CONFIG = "trl/trainer/grpo_config.py"

DEFAULT_DIVISOR = (
    f"{CONFIG} (dr_grpo in loss_type: the constant is max_completion_length, which defaults to 512)"
)

ESTIMATOR = f"{CONFIG}, use_bias_correction_kl"
"""TRL's documentation of the estimator: k3, times the ratio if the option is on."""

OF_ADVANTAGES = "docs/source/grpo_trainer.md, Computing the advantage"

OF_ALL = parse_departures(
    """
    stubbed: the model, by one with a vocabulary of one token, and TRL's fused LM head, by itself
    plus an entry for every token
        TRL's own functions run on the model's states; weights are read through the entry
    set: TRITON_INTERPRET=1
        1.15 scores tokens with Triton kernels alone, which Triton's own interpreter runs on CPUs
    """,
    *grpo.OF_ALL,
    NOTHING_LEARNED,
    ZEROED,
)

OF_GENERATING = parse_departures(
    """
    set: a reward function that returns the case's rewards, and a tokenizer of two words; the last
    token of samples that are not truncated is its end of text
        the text is never used; each token id follows from the previous one
    set: the order of a generation's samples, if it has those of several optimizer steps
        TRL shuffles it, which would mix the samples of steps
    set: constant order of prompts
        it comes before rollouts
    """,
    *grpo.OF_GENERATING,
)

OF_GRPO = parse_departures(
    """
    set: a rollout function, which returns the case's samples with a mask of tokens that the policy
    has generated
        it is TRL's own extension point; generation comes before a step
    set: a subclass of the trainer that sets token advantages, except in checks on TRL's own
        TRL's loss supports such subclasses; they are signed powers of two, on which no weight
        depends
    set: num_iterations=2 for ratios other than 1; only the last iteration is observed
        TRL asks for log-probabilities of the old policy only if it may have changed
    set: use_vllm=True where rollout and old policy are compared; vLLM's engine is a stub
        it would generate, and receive weights
    """
)

OF_RLOO = parse_departures(
    """
    stubbed: tokenising prompts and generating completions, by the case's samples
        both come before a step, and TRL has no extension point for them; TRL pads and masks the
        results
    set: a subclass of the trainer that sets each sample's advantage, except in checks on TRL's own
        they are signed powers of two, on which no weight depends
    set: beta=0.0, no penalty on the divergence from a reference policy
        the penalty is part of the rewards, and has no gradient
    """
)

GRPO = Framework(
    title="TRL",
    scope="Fields of `GRPOConfig`.",
    # `bnpo`, a token mean of each micro-batch, is none of the modes.
    modes={
        **grpo.modes(DIVISOR),
        "cispo": (Mode.TOKEN_MEAN, {"loss_type": "cispo"}),
        "vespo": (Mode.TOKEN_MEAN, {"loss_type": "vespo"}),
        "sapo": (Mode.SAMPLE_MEAN, {"loss_type": "sapo"}),
        "luspo": ("constant:1", {"loss_type": "luspo"}),
    },
    objectives={
        **grpo.objectives(OFF_POLICY, ("sapo_temperature_pos", "sapo_temperature_neg")),
        Objective.TIS_TOKEN: {**COMPARED, "vllm_importance_sampling_mode": "token_truncate"},
        Objective.TIS_SEQUENCE: {**COMPARED, "vllm_importance_sampling_mode": "sequence_truncate"},
        Objective.REJECTION: MASKED,
        Objective.REJECTION_OFF_POLICY: MASKED,
        Objective.REJECTION_COMBINED: {**BONUS, **PENALTY, **MASKED},
        Objective.TIS_BOUNDED: {
            **COMPARED,
            **SMALLEST,
            "vllm_importance_sampling_mode": "token_truncate",
        },
        Objective.ICEPOP: {
            **COMPARED,
            **SMALLEST,
            "vllm_importance_sampling_mode": "token_mask",
        },
        Objective.SEQUENCE_ICEPOP: {
            **COMPARED,
            **SMALLEST,
            "vllm_importance_sampling_mode": "sequence_mask",
        },
        Objective.OPSM: {
            **OFF_POLICY,
            "off_policy_mask_threshold": CONSTANTS.sequence_divergence,
        },
        Objective.ENTROPY: BONUS,
        Objective.WITH_ENTROPY: BONUS,
        Objective.COMBINED: {**BONUS, **PENALTY},
        Objective.ROUTER: {"router_aux_loss_coef": ROUTER_COEFFICIENT},
        **grpo.SCALED,
        Objective.WEIGHTED: {"scale_rewards": "none", "reward_weights": [0.5, 2.0]},
    },
    only_modes={Objective.SAPO: Mode.SAMPLE_MEAN},
    layout=GENERATIONS,
    always={**OF_GENERATIONS, **DIVISOR},
    configurations={
        Setting.MODE: Configurable({"loss_type": ""}, ("loss_type",)),
        Setting.DIVISOR: Configurable(DIVISOR, ("max_completion_length",)),
        Setting.ENTROPY: Configurable(BONUS, ("entropy_coef",)),
        Setting.KL: Configurable(PENALTY, ("beta",)),
        Setting.CONFIG_FILE: Configurable({}),
    },
    rules={
        "default_mode": f"{CONFIG} (loss_type)",
        "divisor_by_default": DEFAULT_DIVISOR,
        "mode_in_file": "trl/scripts/utils.py (TrlParser)",
        "no_gradient.reference_log_probs": (
            "trl/trainer/grpo_trainer.py (_generate_and_score_completions), under torch.no_grad()"
        ),
    },
    permits={
        "divisor_missing": DEFAULT_DIVISOR,
        "divisor_missing_in_file": DEFAULT_DIVISOR,
        **dict.fromkeys(
            ("divisor_of_another_mode", "divisor_of_another_mode_in_file"),
            f"{CONFIG} (max_completion_length is the length to generate)",
        ),
    },
    deliberate={
        "mean_of_the_batch_counted": Documented(
            "every step of a generation is divided by the tokens that are expected of a step",
            "pull request 6024, which made it so (trl/trainer/grpo_trainer.py, _compute_loss)",
        ),
    },
    # The policy loss is logged apart only with an entropy bonus.
    metrics={
        Metric.POLICY_LOSS: "policy_loss",
        Metric.ENTROPY: "entropy",
        **grpo.METRICS,
    },
    # Ratios to vLLM's policy outside of the bounds are set to 0 and stay in the mean, and the
    # divergence is part of each token's loss. TRL's documents call the entropy bonus the mean
    # entropy of tokens, and logged entropies, divergences and clip ratios averages over completions
    # (docs/source/grpo_trainer.md); they do not say whether they are pooled over a step.
    missing_rewards=True,
    conventions={
        "missing_rewards": Assumed(Missing.EXCLUDED),
        "denominator_mask": Documented(
            DenominatorMask.ORIGINAL, f"{CONFIG}, vllm_importance_sampling_mode"
        ),
        "entropy": Assumed(AuxiliaryAggregation.MICRO_BATCH_TOKEN_MEAN),
        "kl": Documented(
            AuxiliaryAggregation.WITH_POLICY_LOSS, "docs/source/grpo_trainer.md, Computing the loss"
        ),
        "logged_entropy": Assumed(AuxiliaryAggregation.TOKEN_MEAN),
        **grpo.ASSUMED,
    },
    defaults=documented(
        f"{CONFIG} (docstring of GRPOConfig)",
        {
            "epsilon": 0.2,
            "sapo_temperature_pos": 1.0,
            "sapo_temperature_neg": 1.05,
            "vllm_importance_sampling_mode": "sequence_mask",
            "vllm_importance_sampling_clip_max": 3.0,
        },
    ),
    options=parse_options(
        """
        loss_type | the mode, and the policy loss | left out, `arguments`; `luspo` with
            `--modes=constant:1`. `bnpo` is no mode, `cispo` and `vespo` have no formula in the
            reference: tests of the adapter hold them against TRL's documents
        max_completion_length | the divisor of `dr_grpo` | in `constant`, and `arguments`
        importance_sampling_level | ratios of tokens or of sequences | elsewhere for `token`
        sapo_temperature_pos, sapo_temperature_neg | temperatures of SAPO
        vespo_k_pos, vespo_lambda_pos, vespo_k_neg, vespo_lambda_neg | constants of VESPO | the loss
            has no formula in the reference
        steps_per_generation | the micro-batches of a generation
        num_iterations, max_steps | how often a generation is trained on
        mask_truncated_completions | samples that were cut off are masked
        use_bias_correction_kl | the divergence times the ratio | `auxiliary.kl` and others have the
            default of the version
        entropy_coef | the entropy bonus
        use_adaptive_entropy, entropy_coef_min, entropy_coef_max, entropy_coef_delta,
            entropy_target | how the coefficient changes | it is fixed
        off_policy_mask_threshold | sequences of negative advantages are masked
        scale_rewards | the standard deviation of a group | that of a `batch` is not run
        reward_weights | several reward functions
        multi_objective_aggregation | what of several rewards is normalised | with
            `sum_then_normalize`, the default; `normalize_then_sum` is not looked at yet
        vllm_importance_sampling_mode, vllm_importance_sampling_clip_max,
            vllm_importance_sampling_clip_min, use_vllm | truncated importance sampling, and masks
            by the ratio to the rollout policy
        vllm_importance_sampling_cap, vllm_importance_sampling_correction | the older name of
            the upper bound, and whether there is a correction | it is on with `use_vllm`
        router_aux_loss_coef | a load-balancing loss
        max_grad_norm | the norm of the gradient | the gradient is read before it
        use_liger_kernel | the loss is Liger-Kernel's, in 1.9 to 1.13, or has no logits, in 1.14
            | `weights` and others by the engine `liger`; since 1.15 it changes layers of the model
            alone
        temperature | what logits are divided by | the probe is added after the division
        pad_to_multiple_of | padding of prompts and completions | not looked at yet
        model_init_kwargs, trust_remote_code, disable_dropout, cast_lm_head_to_fp32 | the model
            | it is the probe's
        top_p, top_k, min_p, repetition_penalty, generation_kwargs, cache_implementation,
            chat_template_kwargs, max_tool_calling_iterations, ds3_gather_for_generation,
            use_transformers_paged, use_transformers_continuous_batching,
            transformers_continuous_batching_config | generation | rollouts are given
        vllm_mode, vllm_model_impl, vllm_enable_sleep_mode, vllm_gpu_memory_utilization,
            vllm_max_model_length, vllm_tensor_parallel_size, vllm_structured_outputs_regex,
            vllm_group_port, vllm_server_base_url, vllm_server_host, vllm_server_port,
            vllm_server_timeout | vLLM's engine, `server` or `colocate` | it is a stub
        log_completions, log_completions_hub_repo, log_multimodal, log_unique_prompts,
            num_completions_to_print | the printed completions | no number depends on them
        """,
        *grpo.OPTIONS,
    ),
    departures=(*OF_ALL, *OF_GENERATING, *OF_GRPO),
)

# The loss belongs to a whole sequence and is averaged over samples. With a ratio of 1, each token
# weighs 1/N times the advantage of its sample, which is `constant` with L = 1. Logged entropies are
# averages over completions; the page does not say whether they are pooled.
PAGE = "docs/source/rloo_trainer.md"

RLOO = Framework(
    title="TRL",
    scope="Fields of `RLOOConfig`, of the engine `rloo`, all of it with `--modes=constant:1`. Those"
    " that `GRPOConfig` has too are covered in the same way, unless they are here.",
    modes={"RLOOTrainer": ("constant:1", {})},
    objectives={Objective.POLICY: {}, Objective.LEAVE_ONE_OUT: {}},
    layout=GENERATIONS,
    always={**OF_GENERATIONS, **CLIPPED, "beta": 0.0},
    metrics={
        Metric.POLICY_LOSS: "loss",
        Metric.ENTROPY: "entropy",
        Metric.REWARD: "reward",
        Metric.DIVERGENCE: "kl",
    },
    missing_rewards=True,
    conventions={
        "missing_rewards": Assumed(Missing.EXCLUDED),
        "advantage_unit": Documented(AdvantageUnit.SAMPLE, f"{PAGE}, Computing the advantage"),
        "logged_policy_loss": Documented(
            AuxiliaryAggregation.SAMPLE_MEAN, f"{PAGE}, Computing the loss"
        ),
        "logged_entropy": Assumed(AuxiliaryAggregation.TOKEN_MEAN),
    },
    options=parse_options(
        """
        epsilon, epsilon_high | clipping bounds of a sequence's ratio | a test holds it against
            TRL's documents
        num_iterations | how often a generation is trained on | log-probabilities of the old policy
            are given, and ratios other than 1 need no second time
        beta | the divergence that is subtracted from a reward | a test looks at it
        normalize_advantages | advantages are normalised over a generation | a test looks at it
        reward_clip_range, reward_weights | rewards | they come before a step
        mask_truncated_completions | samples that were cut off are masked
        steps_per_generation | the micro-batches of a generation
        gradient_accumulation_steps, per_device_train_batch_size | micro-batches
        """
    ),
    departures=(*OF_ALL, *OF_GENERATING, *OF_RLOO),
)
