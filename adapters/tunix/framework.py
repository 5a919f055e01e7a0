"""The record of tunix: fields of its configurations, and its documents."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from adapters.contract.description import Assumed, Documented
from adapters.contract.framework import Configurable, Framework
from adapters.contract.job import Setting, Unsupported
from adapters.contract.objective import CONSTANTS, Metric, Objective
from adapters.contract.tables import read_departures, read_options
from adapters.engines.generations import generations_of_prompt, schedule_of
from adapters.engines.grpo import CLIPPED, OF_VALUES, PENALTY
from adapters.toolkit.settings import samples_per_step, whole_divisor
from reference.aggregation import AuxiliaryAggregation, DivergenceEstimator, EmptyUnits, Mode

if TYPE_CHECKING:
    from adapters.contract import Job

TESTS = "tests/rl/common_test.py (test_aggregate_loss_values)"
CONFIG = "tunix/rl/grpo/grpo_learner.py (GRPOConfig)"


def samples_of_prompt(job: Job) -> int:
    """The samples of a prompt: 2 or all of a micro-batch, or those of the case's prompts.

    The case's are taken where advantages are compared within a prompt. Raises `Unsupported` if a
    micro-batch would not have whole prompts.
    """
    size = generations_of_prompt(job, replace(schedule_of(job), per_generation=1))
    if size < 2:
        raise Unsupported("no num_generations of 1")
    return size


def _prompts(samples: int, job: Job) -> int:
    return samples // samples_of_prompt(job)


def _micro_batch(job: Job) -> int:
    schedule = schedule_of(job)
    return _prompts(schedule.micro_batch_size * schedule.ranks, job)


def _width(job: Job) -> int:
    """The longest response that is generated, which is the divisor of `constant`."""
    longest = max(int(step.response_lengths.max()) for step in job.steps)
    width = whole_divisor(job, "max_tokens_to_generate") or longest
    if width < longest and width > 1:
        raise Unsupported(f"no response of {longest} tokens with max_tokens_to_generate={width}")
    return max(width, longest)


TUNIX = Framework(
    title="tunix",
    scope="Fields of `GRPOConfig`, `RLTrainingConfig` and `RolloutConfig`.",
    modes={
        "sequence-mean-token-mean": (
            Mode.SAMPLE_MEAN,
            {"loss_agg_mode": "sequence-mean-token-mean"},
        ),
        "token-mean": (Mode.TOKEN_MEAN, {"loss_agg_mode": "token-mean"}),
        "sequence-mean-token-scale": (
            Mode.CONSTANT,
            {"loss_agg_mode": "sequence-mean-token-scale", "max_tokens_to_generate": _width},
        ),
        "seq-mean-token-sum": ("constant:1", {"loss_agg_mode": "seq-mean-token-sum"}),
        "sequence-mean-token-sum-norm": (
            "constant:1",
            {"loss_agg_mode": "sequence-mean-token-sum-norm"},
        ),
    },
    objectives={
        Objective.POLICY: {},
        Objective.OFF_POLICY: CLIPPED,
        Objective.TIS_TOKEN: {
            **CLIPPED,
            "sampler_is": "token",
            "sampler_is_threshold": CONSTANTS.truncation,
        },
        Objective.GSPO: {**CLIPPED, "loss_algo": "gspo-token"},
        Objective.KL: PENALTY,
        Objective.GROUP_NORMALISED: {"advantage_estimator": "grpo"},
        Objective.GROUP_CENTRED: {"advantage_estimator": "drgrpo"},
        Objective.LEAVE_ONE_OUT: {"advantage_estimator": "rloo"},
    },
    layout={
        "dp": {"mesh.shape": lambda job: (job.layout.dp,)},
        "accumulated": {"train_micro_batch_size": _micro_batch},
    },
    always={
        "beta": 0.0,
        "temperature": 1.0,
        "num_generations": samples_of_prompt,
        "mini_batch_size": lambda job: _prompts(samples_per_step(job.steps), job),
        "max_tokens_to_generate": _width,
        "max_steps": lambda job: len(job.steps),
        "eval_every_n_steps": lambda job: len(job.steps) + 1,
    },
    configurations={
        Setting.MODE: Configurable({"loss_agg_mode": ""}, ("loss_agg_mode",)),
        Setting.KL: Configurable(PENALTY, ("beta",)),
    },
    rules={"default_mode": CONFIG},
    metrics={
        Metric.POLICY_LOSS: "loss",
        Metric.LOSS: "loss",
        Metric.CLIP_FRACTION: "pg_clipfrac",
        Metric.KL: "kl",
    },
    # The documents name the logged numbers (docs/metrics.md) and do not say what they are means of.
    conventions={
        "empty_units": Documented(EmptyUnits.EXCLUDED, TESTS),
        "kl": Assumed(AuxiliaryAggregation.WITH_POLICY_LOSS),
        "kl_estimator": Documented(
            DivergenceEstimator.K1, "tunix/rl/common.py (compute_kl_divergence)"
        ),
        "logged_kl": Assumed(AuxiliaryAggregation.TOKEN_MEAN),
        "diagnostics": Assumed(AuxiliaryAggregation.TOKEN_MEAN),
    },
    options=read_options("adapters.tunix"),
    departures=(*read_departures("adapters.tunix"), OF_VALUES),
)
