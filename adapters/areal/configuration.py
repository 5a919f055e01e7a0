"""AReaL's own configuration of an actor, for a job."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from adapters.areal.importing import module
from adapters.contract.objective import CONSTANTS, Objective
from adapters.toolkit.settings import token_budget

if TYPE_CHECKING:
    from adapters.contract import Job, Layout

REJECTIONS: dict[Objective, dict[str, object]] = {
    Objective.REJECTION: {"level": "token", "action": "mask", "upper": CONSTANTS.truncation},
    Objective.TIS_TOKEN: {"level": "token", "action": "clamp", "upper": CONSTANTS.truncation},
    # With the metric `ratio`, tokens would be corrected by the mean ratio of their sequence.
    Objective.SEQUENCE_MASKED: {
        "level": "sequence",
        "action": "mask",
        "metric": "kl_k1",
        "agg": "mean",
        "lower": math.log(CONSTANTS.kept_low),
        "upper": math.log(CONSTANTS.kept_high),
    },
}
"""Rejection sampling by the ratio of the proximal policy to that of the rollouts."""

LOSSES: dict[Objective, dict[str, object]] = {
    Objective.DUAL_CLIP: {"c_clip": CONSTANTS.dual_clip},
    Objective.GSPO: {"importance_sampling_level": "sequence"},
    Objective.SAPO: {
        "use_sapo_loss": True,
        "sapo_tau_pos": CONSTANTS.positive_temperature,
        "sapo_tau_neg": CONSTANTS.negative_temperature,
    },
}
"""Settings of policy losses other than PPO's."""


NORMALISATIONS: dict[Objective, dict[str, object]] = {
    Objective.GROUP_NORMALISED: {"mean_level": "group", "std_level": "group"},
    Objective.GROUP_CENTRED: {"mean_level": "group", "std_level": None},
    Objective.LEAVE_ONE_OUT: {"mean_level": "group", "mean_leave1out": True, "std_level": None},
}
"""Normalisation of rewards within a prompt, which all tokens of a response have as advantage."""


def rejects() -> bool:
    """Whether this version has rejection sampling of its own; before 1.0.4 there was a cap."""
    return hasattr(module("api.cli_args"), "RejectionSamplingConfig")


def has_proximal_policy(job: Job) -> bool:
    """Whether the policy that ratios are taken to is another than that of the rollouts."""
    return job.objective in REJECTIONS


def has_critic(job: Job) -> bool:
    """Whether a critic is trained, and not an actor."""
    return job.objective is Objective.VALUE


def engine_configuration(job: Job, **engine: object) -> Any:
    """The configuration of the engine that trains the job: a critic's, or an actor's.

    ``engine`` are settings of one engine alone.
    """
    if not has_critic(job):
        return actor_configuration(job, **engine)
    critic = module("api.cli_args").PPOCriticConfig
    return critic(**_of_engine(job), **engine, is_critic=True, ppo_n_minibatches=1)


def actor_configuration(job: Job, **engine: object) -> Any:
    """The configuration of an actor by which a user would train the job."""
    return module("api.cli_args").PPOActorConfig(
        **_of_engine(job),
        **engine,
        ppo_n_minibatches=1,
        eps_clip=CONSTANTS.clip_low,
        eps_clip_higher=CONSTANTS.clip_high,
        kl_ctl=0.0,
        reward_norm=_normalisation(job),
        **_of_loss(job),
    )


def _of_engine(job: Job) -> dict[str, Any]:
    arguments = module("api.cli_args")
    return {
        "experiment_name": "conformance",
        "trial_name": "conformance",
        "path": "probe",
        "dtype": "float32",
        "optimizer": arguments.OptimizerConfig(
            lr=0.0, weight_decay=0.0, gradient_clipping=math.inf
        ),
        "mb_spec": arguments.MicroBatchSpec(**_micro_batches(job)),
    }


def _micro_batches(job: Job) -> dict[str, int]:
    """How many micro-batches a rank cuts, or how many tokens they may have."""
    layout: Layout = job.layout
    if layout.micro_batches == "tokens":
        return {"max_tokens_per_mb": token_budget(job.steps, layout.dp)}
    assert isinstance(layout.micro_batches, int)
    return {"n_mbs": layout.micro_batches}


def least_micro_batches(layout: Layout) -> int:
    """How many micro-batches a rank cuts at least: AReaL fills a pipeline with two per stage."""
    asked = layout.micro_batches if isinstance(layout.micro_batches, int) else 1
    return max(asked, 2 * layout.pp) if layout.pp > 1 else asked


def _normalisation(job: Job) -> Any:
    """How rewards are normalised, if advantages are made of them; None if they are given."""
    if job.objective not in NORMALISATIONS:
        return None
    size = max(np.unique(step.groups, return_counts=True)[1].max() for step in job.steps)
    return module("api.cli_args").NormConfig(**NORMALISATIONS[job.objective], group_size=int(size))


def _of_loss(job: Job) -> dict[str, Any]:
    if not has_proximal_policy(job):
        return LOSSES.get(job.objective, {})
    rejection = module("api.cli_args").RejectionSamplingConfig(**REJECTIONS[job.objective])
    return {"use_decoupled_loss": True, "rejection_sampling": rejection}
