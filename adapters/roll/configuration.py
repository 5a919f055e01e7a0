"""ROLL's own configuration of its RLVR pipeline, for a job."""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING, Any

from adapters.contract import Option, Unsupported
from adapters.contract.objective import (
    ADVANTAGE_CONSTANTS,
    CONSTANTS,
    ENTROPY_COEFFICIENT,
    KL_COEFFICIENT,
    OF_GROUPS,
    OFF_POLICY,
    Objective,
)
from adapters.roll.importing import module
from adapters.toolkit.settings import (
    has_critic,
    has_kl_term,
    rollouts_per_prompt,
    samples_per_step,
    token_budget,
)
from reference.aggregation import Mode

if TYPE_CHECKING:
    from adapters.contract import Job

    Settings = dict[str, object]

LOSS_AGG_MODES = {
    Mode.SAMPLE_MEAN: "seq-mean-token-mean",
    Mode.TOKEN_MEAN: "token-mean",
    Mode.CONSTANT: "seq-mean-token-sum-norm",
}
MODE_OF_DIVISOR_1 = "seq-mean-token-sum"

DISCOUNTED: Settings = {
    "gamma": ADVANTAGE_CONSTANTS.discount,
    "lambd": ADVANTAGE_CONSTANTS.trace,
    "whiten_advantages": True,
}
PENALISED: Settings = {"add_token_level_kl": True, "init_kl_coef": ADVANTAGE_CONSTANTS.penalty}
CENTRED: Settings = {"adv_estimator": "reinforce", "norm_mean_type": "group"}

ESTIMATORS: dict[Objective, Settings] = {
    Objective.GROUP_NORMALISED: {"adv_estimator": "grpo"},
    Objective.GROUP_CENTRED: CENTRED,
    Objective.GROUP_WHITENED: {"adv_estimator": "grpo", "whiten_advantages": True},
    Objective.REINFORCE_PP: {"adv_estimator": "reinforce", **DISCOUNTED, **PENALISED},
    Objective.REINFORCE_PP_BASELINE: {**CENTRED, "whiten_advantages": True, **PENALISED},
    Objective.GAE: {"adv_estimator": "gae", **DISCOUNTED},
    Objective.PENALISED_GAE: {"adv_estimator": "gae", **DISCOUNTED, **PENALISED},
}
"""Settings of estimators of advantages."""

WHITENED = frozenset(
    objective for objective, settings in ESTIMATORS.items() if "whiten_advantages" in settings
)

GIVEN: Settings = {"adv_estimator": "reinforce", "gamma": 0.0}
"""With a discount of 0 a token's advantage is its own reward, which is given."""

REJECTED_TOKENS: Settings = {"agg_type": "token", "ratio_low": 0.0}
TRUNCATED: Settings = {"enabled": True, "upper_bound": CONSTANTS.truncation}

CORRECTED: dict[Objective, Settings] = {
    Objective.REJECTION: {
        "filters": [{"enabled": True, **REJECTED_TOKENS, "ratio_high": CONSTANTS.truncation}]
    },
    Objective.TIS_TOKEN: {"is_weight": {**TRUNCATED, "weight_type": "token"}},
    Objective.TIS_SEQUENCE: {"is_weight": {**TRUNCATED, "weight_type": "sequence"}},
}
"""Train-inference corrections, by the ratio of the old policy to that of the rollouts."""

POLICY_GRADIENT_WORKER = "roll.pipeline.rlvr.actor_pg_worker.ActorPGWorker"

VARIANTS: dict[Objective, Settings] = {
    Objective.GPG: {"pg_variant": "vanilla"},
    Objective.CISPO: {
        "pg_variant": "cispo",
        "cispo_epsilon_low": CONSTANTS.clip_low,
        "cispo_epsilon_high": CONSTANTS.clip_high,
    },
    Objective.DRO: {"pg_variant": "kimi15", "kimi15_tau": CONSTANTS.kl_penalty},
}
"""Settings of the worker of policy gradients. Those of a variant are documented, and read off the
worker's configuration; its dataclass has no fields for them."""

OF_DEFAULT_WORKER = {
    Objective.GSPO: "the worker of policy gradients has ratios of tokens alone",
    Objective.OFF_POLICY: (
        "the worker of policy gradients logs ratios out of bounds, and not whether they are clipped"
    ),
}
"""What the worker of policy gradients lacks."""


def has_rollout_policy(job: Job) -> bool:
    """Whether the policy of the rollouts is another than that which is trained."""
    return job.objective in CORRECTED


def width(job: Job, slices: int) -> int:
    """The length that sequences are padded to, by which `seq-mean-token-sum-norm` divides.

    It is cut into slices of equal length. Raises `Unsupported` if there is no such length for the
    job's divisor.
    """
    divisor = job.aggregation.divisor
    longest = max(int((step.prompt_lengths + step.response_lengths).max()) for step in job.steps)
    if divisor is None or divisor == 1:
        return _rounded_up(longest, slices)
    if divisor + 1 < longest or (divisor + 1) % slices:
        raise Unsupported(
            f"the divisor {divisor:g} is sequence_length - 1,"
            f" for {slices} slices of {longest} tokens"
        )
    return int(divisor) + 1


def _rounded_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def pipeline_configuration(job: Job, engine: Settings, slices: int) -> Any:
    """The configuration of a pipeline by which a user would train the job, as validated.

    ``engine`` are settings of a role that is trained, by an engine that cuts rows into ``slices``.
    """
    from dacite import from_dict

    if job.objective in WHITENED and len(job.steps) > 1:
        raise Unsupported("each step is a batch of rollouts, whose advantages are whitened alone")
    world, variant = f"list(range({job.layout.world_size}))", _variant(job)
    trained = {
        "training_args": {"learning_rate": 0.0, "weight_decay": 0.0, **_sizes(job)},
        "device_mapping": world,
        **_dynamic_batching(job, slices),
        **engine,
    }
    groups = job.objective in OF_GROUPS
    settings: Settings = {
        "exp_name": "conformance",
        "logging_dir": tempfile.gettempdir(),
        "output_dir": tempfile.gettempdir(),
        "pretrain": "probe",
        "reward_pretrain": "probe",
        "prompt_length": 1,
        "sequence_length": width(job, slices),
        "rollout_batch_size": samples_per_step(job.steps),
        "num_return_sequences_in_group": rollouts_per_prompt(job.steps) if groups else 1,
        "max_steps": len(job.steps),
        "ppo_epochs": 2 if Option.TWO_EPOCHS in job.layout.options else 1,
        "max_grad_norm": float("inf"),
        "actor_train": trained | ({"worker_cls": POLICY_GRADIENT_WORKER} if variant else {}),
        "critic": trained if has_critic(job) else {},
        "actor_infer": {
            "generating_args": {},
            "strategy_args": {"strategy_name": "vllm", "strategy_config": {}},
            "device_mapping": world,
        },
        "rewards": {},
        **_loss(job),
        **_advantages(job),
    }
    config = from_dict(data_class=module("pipeline.rlvr.rlvr_config").RLVRConfig, data=settings)
    for name, value in variant.items():
        setattr(config.actor_train, name, value)
    return config


def _advantages(job: Job) -> Settings:
    """An estimator of advantages, or advantages that are the rewards of tokens."""
    settings: Settings = {"init_kl_coef": 0.0, **ESTIMATORS.get(job.objective, GIVEN)}
    if job.objective is Objective.VALUE:  # the actor waits for the critic
        settings |= {"adv_estimator": "gae", "critic_warmup": len(job.steps)}
    return settings


def _loss(job: Job) -> Settings:
    divisor_1 = job.aggregation.mode is Mode.CONSTANT and job.aggregation.divisor == 1
    mode = MODE_OF_DIVISOR_1 if divisor_1 else LOSS_AGG_MODES[job.aggregation.mode]
    settings: Settings = {
        **({"loss_agg_mode": mode} if job.configuration.says_mode else {}),
        "use_pg_clip_range": True,
        "pg_clip_low": CONSTANTS.clip_low,
        "pg_clip_high": CONSTANTS.clip_high,
        # Of a bound 1 + 2 · pg_clip.
        "pg_clip": (CONSTANTS.dual_clip - 1) / 2,
        "dual_clip_loss": job.objective is Objective.DUAL_CLIP,
        "importance_sampling": "seq" if job.objective is Objective.GSPO else "token",
        # Those of the old policy are given, and not those of the step's own forward pass.
        "enable_old_logprobs_recompute": job.objective in OFF_POLICY,
        "train_infer_correction": CORRECTED.get(job.objective, {}),
    }
    if has_kl_term(job):
        settings |= {"use_kl_loss": True, "kl_loss_coef": KL_COEFFICIENT}
    if job.objective in (Objective.ENTROPY, Objective.COMBINED) or job.configuration.entropy:
        settings["entropy_loss_coef"] = ENTROPY_COEFFICIENT
    return settings


def _variant(job: Job) -> Settings:
    """The settings of a worker of policy gradients; none if the default one trains.

    Raises `Unsupported` if the layout wants a worker that lacks what is looked at.
    """
    if Option.POLICY_GRADIENT_WORKER not in job.layout.options:
        return VARIANTS.get(job.objective, {})
    if job.objective in OF_DEFAULT_WORKER:
        raise Unsupported(OF_DEFAULT_WORKER[job.objective])
    return VARIANTS.get(job.objective, {"pg_variant": "ppo"})


def _sizes(job: Job) -> Settings:
    """The samples of a micro-batch and how many of them a rank trains on in a step."""
    samples, dp = samples_per_step(job.steps), job.layout.dp
    micro_batches = job.layout.micro_batches
    if samples % dp:
        raise Unsupported(f"a batch of {samples} samples is not dealt to {dp} ranks")
    count = samples // dp if micro_batches == "tokens" else micro_batches
    if not isinstance(count, int) or samples // dp % count:
        raise Unsupported(f"no {micro_batches} micro-batches of a rank's {samples // dp} samples")
    return {
        "per_device_train_batch_size": samples // dp // count,
        "gradient_accumulation_steps": count,
    }


def _dynamic_batching(job: Job, slices: int) -> Settings:
    if job.layout.micro_batches != "tokens":
        return {}
    return {
        "use_dynamic_batching_in_train": True,
        "max_tokens_per_microbatch_in_train": _rounded_up(
            token_budget(job.steps, job.layout.dp), slices
        ),
        "sequence_length_round_in_train": slices,
    }
