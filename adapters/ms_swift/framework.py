"""The record of ms-swift: options of its command line, and its documents."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from adapters.contract.description import Assumed, Documented, parse_departures
from adapters.contract.framework import Framework, Settings, parse_options
from adapters.contract.job import Unsupported
from adapters.contract.layout import Option
from adapters.contract.objective import CONSTANTS, KL_COEFFICIENT, Metric, Objective
from adapters.engines.generations import generations_of_prompt, schedule_of
from adapters.engines.shells import NOTHING_LEARNED, ZEROED
from adapters.toolkit.settings import whole_divisor
from reference.aggregation import (
    AuxiliaryAggregation,
    DenominatorMask,
    DivergenceEstimator,
    EstimatorConventions,
    Mode,
)

if TYPE_CHECKING:
    from adapters.contract import Job
    from adapters.engines.generations import Schedule

DOCS = "docs/source_en/Instruction"
LOSSES = f"{DOCS}/GRPO/DeveloperGuide/loss_types.md"
OPTIONS = f"{DOCS}/Command-line-parameters.md, GRPO Arguments"
LOGGED = f"{DOCS}/GRPO/GetStarted/GRPO.md, logged metrics"
MISMATCH = f"{DOCS}/GRPO/AdvancedResearch/training_inference_mismatch.md"


def generating(job: Job) -> Schedule:
    """The schedule by which ranks generate, which sequence-parallel ranks do separately.

    ms-swift multiplies the micro-batches that a user asks for by the number of these ranks.
    """
    layout = job.layout
    if not isinstance(layout.micro_batches, int) or layout.micro_batches % layout.cp:
        raise Unsupported(f"no {layout.micro_batches} micro-batches on {layout.cp} of Ulysses' ranks")
    ranks, parts = layout.dp * layout.cp, layout.micro_batches // layout.cp
    separate = replace(layout, dp=ranks, cp=1, micro_batches=parts)
    return schedule_of(replace(job, layout=separate))


def _per_generation(job: Job) -> int:
    return generating(job).per_generation


CLIPPED = {"epsilon": CONSTANTS.clip_low, "epsilon_high": CONSTANTS.clip_high}
CORRECTED = {**CLIPPED, "rollout_importance_sampling_threshold": CONSTANTS.truncation}
MASKED = {**CORRECTED, "rollout_importance_sampling_mode": "token_mask"}
DIVISOR = {"max_completion_length": lambda job: whole_divisor(job, "max_completion_length") or ""}
OF_LAYOUT: dict[str, Settings] = {
    "mb": {
        "per_device_train_batch_size": lambda job: generating(job).micro_batch_size,
        "gradient_accumulation_steps": lambda job: generating(job).micro_batches,
    },
    "thd": {"padding_free": True},
    "cp": {"sequence_parallel_size": lambda job: job.layout.cp},
    Option.SHARED_GENERATION: {"steps_per_generation": _per_generation},
    Option.SPLIT_GENERATION: {"steps_per_generation": _per_generation},
    Option.MASKED_TRUNCATION: {"overlong_filter": True},
}

OF_ALL = parse_departures(
    """
    stubbed: the model, by one whose logits are the probe's, and the tokenizer, by one whose words
    are token ids
        ms-swift's own functions run on the logits; weights are read through them
    set: clipping bounds and coefficients of terms
        a user may choose these values; the reference uses the same ones
    set: no gradient checkpointing, no saving, no reports to services, no look-up in a hub
        there are no layers to recompute, and the others compute nothing
    set: bf16=False
        the tolerance is derived from the dtype, which a report names
    set: temperature=1.0
        logits are divided by it, and so would be every weight
    stubbed: the inference engine, by one that returns the case's samples with their loss masks
        generation comes before a step
    set: a subclass of the trainer that sets token advantages, except in checks on its own
        its loss takes one advantage of each token; they are signed powers of two, on which no
        weight depends
    set: num_generations: 2 samples of a prompt or all of a generation, except in checks on its own
    advantages
        given advantages are not compared within a prompt
    stubbed: log-probabilities of the old policy and of the reference policy, as their models'
    outputs
        they are the case's; one step has no other way to ratios other than 1
    """,
    NOTHING_LEARNED,
    ZEROED,
)

OF_ACCELERATE = parse_departures(
    """
    not_run: the command line and its `RLHFArguments`, which make a `GRPOConfig` and a template
        they look a model up; the adapter sets the fields that they would set
    set: dataset_shuffle=False
        it comes before rollouts
    set: rollout importance sampling without vLLM, which ms-swift declines without its version
        a sample has log-probabilities of the rollout policy from any engine
    stubbed: entropies of logits, by themselves plus the case's entropies
        they are logged, and have no gradient
    """
)

MS_SWIFT = Framework(
    title="ms-swift",
    scope="Fields of `RLHFArguments` with `rlhf_type=grpo`.",
    # `bnpo`, a token mean of each micro-batch of a process, and `real` are none of the modes.
    modes={
        "grpo": (Mode.SAMPLE_MEAN, {"loss_type": "grpo"}),
        "dapo": (Mode.TOKEN_MEAN, {"loss_type": "dapo"}),
        "dr_grpo": (Mode.CONSTANT, {"loss_type": "dr_grpo", **DIVISOR}),
        "cispo": (Mode.TOKEN_MEAN, {"loss_type": "cispo"}),
        "fipo": (Mode.TOKEN_MEAN, {"loss_type": "fipo"}),
        "sapo": (Mode.SAMPLE_MEAN, {"loss_type": "sapo"}),
    },
    objectives={
        Objective.POLICY: {},
        Objective.OFF_POLICY: CLIPPED,
        Objective.DUAL_CLIP: {**CLIPPED, "delta": CONSTANTS.dual_clip},
        Objective.GSPO: {**CLIPPED, "importance_sampling_level": "sequence"},
        Objective.SAPO: {
            "loss_type": "sapo",
            "tau_pos": CONSTANTS.positive_temperature,
            "tau_neg": CONSTANTS.negative_temperature,
        },
        Objective.TIS_TOKEN: {**CORRECTED, "rollout_importance_sampling_mode": "token_truncate"},
        Objective.REJECTION: MASKED,
        Objective.REJECTION_OFF_POLICY: MASKED,
        Objective.OPSM: {
            **CLIPPED,
            "off_policy_sequence_mask_delta": CONSTANTS.sequence_divergence,
        },
        Objective.KL: {"beta": KL_COEFFICIENT},
        Objective.GROUP_NORMALISED: {"scale_rewards": "group"},
        Objective.GROUP_CENTRED: {"scale_rewards": "none"},
        Objective.LEAVE_ONE_OUT: {"advantage_estimator": "rloo", "scale_rewards": "none"},
    },
    only_modes={Objective.SAPO: Mode.SAMPLE_MEAN},
    layout=OF_LAYOUT,
    always={
        "use_cpu": True,
        "bf16": False,
        "optim": "adamw_torch",
        "learning_rate": 0.0,
        "weight_decay": 0.0,
        "max_grad_norm": 0.0,
        "logging_steps": 1,
        "report_to": [],
        "save_strategy": "no",
        "disable_tqdm": True,
        "gradient_checkpointing": False,
        "check_model": False,
        "dataloader_num_workers": 0,
        "dataset_shuffle": False,
        "remove_unused_columns": False,
        "max_steps": lambda job: len(job.steps),
        "padding_free": False,
        "sequence_parallel_size": 1,
        "steps_per_generation": _per_generation,
        "num_generations": lambda job: generations_of_prompt(job, generating(job)),
        "num_iterations": 1,
        "overlong_filter": False,
        "temperature": 1.0,
        "beta": 0.0,
        "kl_in_reward": False,
        "scale_rewards": "group",
        "log_entropy": True,
        **DIVISOR,
    },
    rules={
        "default_mode": OPTIONS,
        "no_gradient.reference_log_probs": (
            "swift/rlhf_trainers/grpo_trainer.py (_prepare_batch_inputs), under torch.no_grad()"
        ),
    },
    metrics={
        Metric.LOSS: "loss",
        Metric.CLIP_FRACTION: "clip_ratio/region_mean",
        Metric.ENTROPY: "entropy/mean",
        Metric.KL: "kl",
        Metric.REWARD: "reward",
    },
    # The documents call the logged divergence and clip ratio averages over completions; they do not
    # say whether they are pooled over a step.
    conventions={
        "denominator_mask": Documented(
            DenominatorMask.ORIGINAL, f"{MISMATCH}, Stability Control: Truncate vs. Mask"
        ),
        "kl": Documented(
            AuxiliaryAggregation.WITH_POLICY_LOSS,
            f"{DOCS}/GRPO/GetStarted/GRPO.md, Algorithm Overview",
        ),
        "kl_estimator": Assumed(DivergenceEstimator.K3),
        "diagnostics": Assumed(AuxiliaryAggregation.TOKEN_MEAN),
        "of_groups": Assumed(EstimatorConventions(std_epsilon=1e-4)),
        "logged_entropy": Documented(AuxiliaryAggregation.SAMPLE_MEAN, LOGGED),
        "logged_kl": Assumed(AuxiliaryAggregation.TOKEN_MEAN),
    },
    options=parse_options(
        """
        loss_type | the mode, and the policy loss | `bnpo` and `real` are no modes, `cispo` and
            `fipo` have no formula in the reference: tests of the adapter hold them against
            ms-swift's documents
        """
    ),
    departures=(*OF_ALL, *OF_ACCELERATE),
)
