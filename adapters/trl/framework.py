"""The records of TRL's generating trainers: fields of their configurations, and TRL's documents."""

from __future__ import annotations

from typing import TYPE_CHECKING

from adapters.contract.description import Assumed, Documented, documented
from adapters.contract.framework import Configurable, Framework, Settings
from adapters.contract.job import Setting, Unsupported
from adapters.contract.layout import Option
from adapters.contract.objective import (
    CONSTANTS,
    ENTROPY_COEFFICIENT,
    ROUTER_COEFFICIENT,
    Metric,
    Objective,
)
from adapters.contract.tables import read_departures, read_options
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

OF_ALL = (*read_departures("adapters.trl"), *grpo.OF_ALL, NOTHING_LEARNED, ZEROED)

OF_GENERATING = (*read_departures("adapters.trl", "generating"), *grpo.OF_GENERATING)

OF_GRPO = read_departures("adapters.trl", "grpo")

OF_RLOO = read_departures("adapters.trl", "rloo")

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
    options=(*read_options("adapters.trl"), *grpo.OPTIONS),
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
    options=read_options("adapters.trl", "rloo_options"),
    departures=(*OF_ALL, *OF_GENERATING, *OF_RLOO),
)
