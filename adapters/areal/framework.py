"""The record of AReaL: its options as users type them below `actor`, and what it documents."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from adapters.areal.estimators import OF_ACTIVE_TOKENS, OF_REWARDS, group_size
from adapters.contract.description import Assumed, Documented, documented
from adapters.contract.framework import Configurable, Framework
from adapters.contract.job import Setting
from adapters.contract.layout import Option
from adapters.contract.objective import CONSTANTS, OF_CRITIC, Metric, Objective
from adapters.contract.tables import read_departures, read_options
from adapters.engines.shells import CPU_AS_CUDA, NOTHING_LEARNED, PIPELINE_STAGES, ZEROED
from adapters.toolkit.settings import token_budget
from reference.aggregation import (
    AuxiliaryAggregation,
    Compared,
    ComparedTokens,
    DenominatorMask,
    EmptyUnits,
    EstimatorConventions,
    Lone,
    Mode,
    Rejected,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from adapters.contract import Job
    from adapters.contract.description import Convention
    from adapters.contract.framework import Settings
    from reference.step import Step


def _budget(job: Job) -> int:
    """A token budget of micro-batches, which hold whole prompts in `prompt_mean`."""
    budget = token_budget(job.steps, job.layout.dp)
    if job.aggregation.mode is not Mode.PROMPT_MEAN:
        return budget
    longest = max(int(_tokens_of_prompts(step).max()) for step in job.steps)
    return max(budget, longest * 5 // 4)


def _tokens_of_prompts(step: Step) -> NDArray[np.int64]:
    """The tokens of all samples of each prompt."""
    prompts, prompt = np.unique(step.groups, return_inverse=True)
    tokens = np.zeros(len(prompts), np.int64)
    np.add.at(tokens, prompt, step.prompt_lengths + step.response_lengths)
    return tokens


MODE, DIVISOR = "loss_aggregation", "loss_aggregation_divisor"
VALIDATION = "areal/api/cli_args.py (PPOActorConfig.__post_init__)"
METRICS = "docs/en/reference/metrics_tracking.md, Batch Metrics"
CLIPPED = {"eps_clip": CONSTANTS.clip_low, "eps_clip_higher": CONSTANTS.clip_high}
OF_TOKENS = {
    "use_decoupled_loss": True,
    "rejection_sampling.level": "token",
    "rejection_sampling.upper": CONSTANTS.truncation,
}
MASKED = {**OF_TOKENS, "rejection_sampling.action": "mask"}
AREAL = Framework(
    title="AReaL",
    scope="Of the actor unless a row begins with another section.",
    modes={
        "token_mean": (Mode.TOKEN_MEAN, {MODE: "token_mean"}),
        "default": (Mode.TOKEN_MEAN, {}),  # the only one of versions without the option
        "seq_mean": (Mode.SAMPLE_MEAN, {MODE: "seq_mean"}),
        "prompt_mean": (
            Mode.PROMPT_MEAN,
            {MODE: "prompt_mean", "gconfig.n_samples": group_size},
        ),
        "constant": (
            Mode.CONSTANT,
            {MODE: "constant", DIVISOR: lambda job: job.aggregation.divisor},
        ),
    },
    objectives={
        Objective.POLICY: {},
        Objective.OFF_POLICY: CLIPPED,
        Objective.DUAL_CLIP: {**CLIPPED, "c_clip": CONSTANTS.dual_clip},
        Objective.GSPO: {**CLIPPED, "importance_sampling_level": "sequence"},
        Objective.CISPO: {**CLIPPED, "use_cispo_loss": True},
        Objective.SAPO: {
            "use_sapo_loss": True,
            "sapo_tau_pos": CONSTANTS.positive_temperature,
            "sapo_tau_neg": CONSTANTS.negative_temperature,
        },
        Objective.REJECTION: MASKED,
        Objective.REJECTION_OFF_POLICY: {**CLIPPED, **MASKED},
        Objective.TIS_TOKEN: {**CLIPPED, **OF_TOKENS, "rejection_sampling.action": "clamp"},
        Objective.TIS_BOUNDED: {
            **CLIPPED,
            **OF_TOKENS,
            "rejection_sampling.action": "clamp",
            "rejection_sampling.lower": CONSTANTS.kept_low,
        },
        Objective.ICEPOP: {
            **CLIPPED,
            **OF_TOKENS,
            "rejection_sampling.action": "mask",
            "rejection_sampling.lower": CONSTANTS.kept_low,
        },
        Objective.M2PO: {"use_decoupled_loss": True, "m2_threshold": CONSTANTS.second_moment},
        # With the metric `ratio`, tokens would be corrected by the mean ratio of their sequence.
        Objective.SEQUENCE_MASKED: {
            **CLIPPED,
            "use_decoupled_loss": True,
            "rejection_sampling.level": "sequence",
            "rejection_sampling.action": "mask",
            "rejection_sampling.metric": "kl_k1",
            "rejection_sampling.agg": "mean",
            "rejection_sampling.lower": math.log(CONSTANTS.kept_low),
            "rejection_sampling.upper": math.log(CONSTANTS.kept_high),
        },
        Objective.VALUE: {"is_critic": True},
        Objective.VALUE_CLIPPED: {"is_critic": True, "eps_clip": CONSTANTS.value_clip},
        **OF_REWARDS,
    },
    only_modes=dict.fromkeys(OF_CRITIC, Mode.TOKEN_MEAN),
    configurations={
        Setting.MODE: Configurable({MODE: ""}, (MODE,)),
        Setting.DIVISOR: Configurable(
            {DIVISOR: lambda job: job.configuration.divisor}, ("divisor",)
        ),
    },
    rules={
        "default_mode": "docs/en/cli_reference.md, PPOActor Configuration",
        **dict.fromkeys(
            (
                "divisor_missing",
                "divisor_by_default",
                "divisor_zero",
                "divisor_negative",
                "divisor_nan",
                "divisor_infinite",
                "divisor_of_another_mode",
            ),
            VALIDATION,
        ),
        **dict.fromkeys(("divisor_bool", "divisor_text"), f"the type of {DIVISOR}"),
    },
    layout={
        "mb": {"mb_spec.n_mbs": lambda job: job.layout.micro_batches},
        "mbtokens": {"mb_spec.max_tokens_per_mb": _budget},
    },
    always={
        "experiment_name": "conformance",
        "trial_name": "conformance",
        "path": "probe",
        "dtype": "float32",
        "ppo_n_minibatches": 1,
        "kl_ctl": 0.0,
        "optimizer.lr": 0.0,
        "optimizer.weight_decay": 0.0,
        "optimizer.gradient_clipping": math.inf,
    },
    metrics={
        Metric.POLICY_LOSS: "ppo_actor/update/actor_loss/avg",
        Metric.CLIP_FRACTION: "ppo_actor/update/clip_ratio/avg",
        Metric.POLICY_KL: "-ppo_actor/update/approx_kl/avg",
        Metric.RATIO: "ppo_actor/update/importance_weight/avg",
        # The returns that are given are twice the job's, and AReaL trains half of the error.
        Metric.VALUE_LOSS: "1/2 ppo_critic/critic_loss/avg",
        Metric.REJECTED: "ppo_actor/update/rs_filtered_fraction",
    },
    # Metrics of batches are averages over the tokens of a mask, of all data-parallel ranks. No page
    # says how the fraction of rejected tokens is averaged. That returns and GAE skip masked tokens,
    # and that a sample's reward is at its last token, was read off `PPOActor._compute_advantages`.
    # That a loss is divided by the tokens of the mask before rejection sampling was read off
    # `ppo_actor_loss_fn`, and that M2PO compares the tokens of a micro-batch off `grpo_loss_fn`.
    # Statistics go over rejected tokens too since pull request 1572.
    conventions={
        "denominator_mask": Assumed(DenominatorMask.ORIGINAL),
        "diagnostics_mask": Assumed(DenominatorMask.ORIGINAL),
        "selected": Assumed(ComparedTokens.MICRO_BATCH),
        "diagnostics": Documented(AuxiliaryAggregation.TOKEN_MEAN, METRICS),
        "logged_policy_loss": Documented(AuxiliaryAggregation.TOKEN_MEAN, METRICS),
        "rejected": Assumed(AuxiliaryAggregation.TOKEN_MEAN),
        "of_groups": Documented(
            EstimatorConventions(std_epsilon=1e-5), "docs/en/cli_reference.md, NormConfig"
        ),
        "of_returns": Assumed(OF_ACTIVE_TOKENS),
        "of_values": Assumed(OF_ACTIVE_TOKENS),
        "compared": Assumed(Compared.SAMPLES),
        "rejected_rewards": Assumed(Rejected.COUNTED),
        "lone_reward": Assumed(Lone.ZERO),
    },
    defaults=documented(
        "docs/en/cli_reference.md, PPOActor Configuration",
        {
            "eps_clip": 0.2,
            "sapo_tau_pos": 1.0,
            "sapo_tau_neg": 1.05,
            "discount": 1.0,
            "gae_lambda": 1.0,
            "kl_ctl": 0.1,
        },
    ),
    options=read_options("adapters.areal"),
    departures=(*read_departures("adapters.areal"), NOTHING_LEARNED, ZEROED),
)

TESTS = "tests/test_prompt_mean_loss.py"
OF_FIXED_GROUPS: dict[str, Convention] = {
    "denominator_mask": Documented(
        DenominatorMask.ORIGINAL, f"{TESTS}, test_denom_mask_uses_pre_rejection_count"
    ),
    "empty_units": Documented(EmptyUnits.COUNTED, "the table in pull request 1417's description"),
}
"""Conventions of versions whose prompts all have ``group_size`` samples (pull request 1417)."""
OF_ANY_GROUPS: dict[str, Convention] = {
    "denominator_mask": Documented(
        DenominatorMask.ORIGINAL, f"{TESTS}, test_denominator_mask_keeps_filtered_units_in_mean"
    ),
    "empty_units": Documented(
        EmptyUnits.EXCLUDED, f"{TESTS}, test_normalizer_counts_only_active_units"
    ),
}
"""Conventions of versions that know the samples of each prompt (pull requests 1443 and 1546)."""


def version_record(record: Framework, offers: Callable[[Settings], bool]) -> Framework:
    """Returns the record of a version: what it offers, and the conventions of its modes."""
    version = record.narrowed(offers)
    if not offers({MODE: "seq_mean"}):
        return version
    of_modes = OF_FIXED_GROUPS if offers({"group_size": 1}) else OF_ANY_GROUPS
    return replace(version, conventions={**version.conventions, **of_modes})


FSDP2 = replace(
    AREAL,
    layout={
        **AREAL.layout,
        "dp cp": {"backend": lambda job: f"fsdp:d{job.layout.dp}c{job.layout.cp}"},
    },
)


def _grid(job: Job) -> str:
    """The sizes of Megatron's parallelism."""
    layout = job.layout
    return f"megatron:d{layout.dp}p{layout.pp}t{layout.tp}c{layout.cp}"


# AReaL's checkpoints, without which no engine is made, need the distributed optimizer.
MEGATRON = replace(
    AREAL,
    objectives={**AREAL.objectives, Objective.ROUTER: {}},
    layout={
        **AREAL.layout,
        "dp cp tp pp": {"backend": _grid},
        Option.AVERAGE_IN_COLLECTIVE: {"megatron.ddp.average_in_collective": True},
        Option.OVERLAP_GRAD_REDUCE: {"megatron.ddp.overlap_grad_reduce": True},
        Option.INTERLEAVED: {"megatron.virtual_pipeline_parallel_size": 2},
    },
    largest_tp=2,
    largest_pp=4,
    departures=(
        *AREAL.departures,
        *read_departures("adapters.areal", "megatron"),
        PIPELINE_STAGES,
        CPU_AS_CUDA,
    ),
)
