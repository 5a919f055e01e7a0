"""A job as SkyRL's configuration, for every engine."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from adapters.contract import Job, Unsupported
from adapters.contract.objective import (
    ADVANTAGE_CONSTANTS,
    CONSTANTS,
    CORRECTIONS,
    ENTROPY_COEFFICIENT,
    FROM_REWARDS,
    KL_COEFFICIENT,
    OF_VALUES,
    POLICY_LOSSES,
    Objective,
)
from adapters.skyrl.importing import module, ppo_utils
from adapters.toolkit.calls import call_supported, refusals
from adapters.toolkit.settings import (
    has_critic,
    has_kl_term,
    has_reference,
    prompts_per_step,
    rollouts_per_prompt,
    token_budget,
    whole_divisor,
    yaml,
)
from reference.aggregation import Mode

if TYPE_CHECKING:
    from collections.abc import Mapping

    Settings = dict[str, object]
    """Values on the command line by their path in SkyRL's configuration."""

LOSS_REDUCTIONS = {
    Mode.SAMPLE_MEAN: "sequence_mean",
    Mode.PROMPT_MEAN: "prompt_mean",
    Mode.TOKEN_MEAN: "token_mean",
    Mode.CONSTANT: "seq_mean_token_sum_norm",
}

# Names of the option to pack samples into one row, latest version first.
PACKING = ("remove_microbatch_padding", "use_sample_packing")
# SkyRL's function that reduces by scaling advantages.
SCALING = "apply_loss_reduction_to_advantages_minibatch"
ALGORITHM = "trainer.algorithm"
CORRECTION = f"{ALGORITHM}.off_policy_correction"
# Bounds on a token's ratio of old policy to rollout policy, outside which it is masked.
REJECTING = {"token_mask_is_threshold_low": 0.5, "token_mask_is_threshold_high": 2.0}
# Options of SkyRL's algorithm that enable a term.
OPTIONAL = {Objective.ENTROPY: "use_entropy_loss", Objective.KL: "use_kl_loss"}
TIS = f"{CORRECTION}.tis_ratio_type"
ESTIMATOR = f"{ALGORITHM}.advantage_estimator"
GAE: Settings = {
    ESTIMATOR: "gae",
    f"{ALGORITHM}.gamma": ADVANTAGE_CONSTANTS.discount,
    f"{ALGORITHM}.lambd": ADVANTAGE_CONSTANTS.trace,
}
PENALISED: Settings = {
    f"{ALGORITHM}.use_kl_in_reward": True,
    f"{ALGORITHM}.kl_estimator_type": "k1",
    f"{ALGORITHM}.kl_loss_coef": ADVANTAGE_CONSTANTS.penalty,
}
OF_OBJECTIVES: dict[Objective, Settings] = {
    Objective.DUAL_CLIP: {f"{ALGORITHM}.clip_ratio_c": CONSTANTS.dual_clip},
    Objective.CISPO: {
        f"{ALGORITHM}.cispo.cispo_eps_clip_low": CONSTANTS.clip_low,
        f"{ALGORITHM}.cispo.cispo_eps_clip_high": CONSTANTS.clip_high,
    },
    Objective.SAPO: {
        f"{ALGORITHM}.sapo.tau_pos": CONSTANTS.positive_temperature,
        f"{ALGORITHM}.sapo.tau_neg": CONSTANTS.negative_temperature,
    },
    Objective.KL_COV: {
        f"{ALGORITHM}.kl_cov.kl_cov_frac": 1.0,
        f"{ALGORITHM}.kl_cov.ppo_kl_coef": CONSTANTS.kl_penalty,
    },
    Objective.TIS_TOKEN: {
        TIS: "token",
        f"{CORRECTION}.token_tis_ratio_clip_high": CONSTANTS.truncation,
    },
    Objective.TIS_SEQUENCE: {
        TIS: "sequence",
        f"{CORRECTION}.sequence_tis_ratio_clip_high": CONSTANTS.truncation,
    },
    Objective.GROUP_NORMALISED: {ESTIMATOR: "grpo"},
    Objective.GROUP_CENTRED: {ESTIMATOR: "grpo", f"{ALGORITHM}.grpo_norm_by_std": False},
    Objective.LEAVE_ONE_OUT: {ESTIMATOR: "rloo"},
    Objective.GROUP_WHITENED: {ESTIMATOR: "grpo", f"{ALGORITHM}.advantage_batch_normalize": True},
    Objective.REINFORCE_PP: {**GAE, ESTIMATOR: "reinforce++", **PENALISED},
    Objective.GAE: GAE,
    Objective.PENALISED_GAE: {**GAE, **PENALISED},
}
"""The settings of each objective, by path: constants of policy losses and advantage estimators."""

OF_TOKENS = (Objective.REINFORCE_PP, *OF_VALUES)
"""Estimators that, as SkyRL documents, do not support step-wise trajectories."""


def modes() -> frozenset[Mode]:
    """The modes that SkyRL's reduction knows."""
    return frozenset(mode for mode in Mode if _reduces(LOSS_REDUCTIONS[mode]))


def default_mode() -> Mode:
    """The mode of the default configuration."""
    default = module("train.config").AlgorithmConfig().loss_reduction
    return next(mode for mode, name in LOSS_REDUCTIONS.items() if name == default)


def objectives() -> frozenset[Objective]:
    """The policy's objectives, given the existing options and the registered losses."""
    known = _names(module("train.config").AlgorithmConfig)
    terms = {objective for objective, option in OPTIONAL.items() if option in known}
    registered = ppo_utils().PolicyLossRegistry.list_available()
    losses = {objective for objective in POLICY_LOSSES if objective.value in registered}
    found = {Objective.POLICY, Objective.OFF_POLICY, *terms, *losses}
    if terms == set(OPTIONAL):
        found.add(Objective.COMBINED)
    # Values need a critic, which not all engines have.
    found |= (OF_OBJECTIVES.keys() & {*FROM_REWARDS}) - {*OF_VALUES}
    correction = getattr(module("train.config.config"), "OffPolicyCorrectionConfig", None)
    known_corrections = set() if correction is None else _names(correction)
    if set(REJECTING) <= known_corrections:
        found.add(Objective.REJECTION)
    if "tis_ratio_type" in known_corrections:
        found |= {*CORRECTIONS}
    return frozenset(found)


def scales_advantages() -> bool:
    """Whether SkyRL's trainer reduces by scaling advantages before the loss."""
    return hasattr(ppo_utils(), SCALING)


def models(job: Job) -> list[str]:
    """The models that SkyRL has for a job, by their names in its configuration."""
    critic = ["critic"] if has_critic(job) else []
    reference = ["ref"] if has_reference(job) else []
    return ["policy", *critic, *reference]


def configure(job: Job, of_engine: Mapping[str, object]) -> Any:
    """SkyRL's validated configuration for a job; raises `Unsupported` or `Refused`."""
    settings = _sizes(job) | _micro_batches(job) | _algorithm(job) | _critic(job) | {**of_engine}
    typed = [f"{path}={'null' if value is None else value}" for path, value in settings.items()]
    with refusals(TypeError):
        config = module("train.config").SkyRLTrainConfig.from_cli_overrides(typed)
        module("train.utils.utils").validate_cfg(config)
    if job.configuration.divisor == "" and config.trainer.algorithm.max_seq_len is not None:
        raise Unsupported("no missing max_seq_len: it is derived from the generated lengths")
    return config


def _sizes(job: Job) -> Settings:
    """The sizes of the batch of rollouts, of a mini-batch, and of the world."""
    prompts, per_prompt = prompts_per_step(job.steps), rollouts_per_prompt(job.steps)
    gpus = [f"trainer.placement.{model}_num_gpus_per_node" for model in models(job)]
    uneven = any(step.size != prompts * per_prompt for step in job.steps)
    if uneven and job.objective in OF_TOKENS:
        raise Unsupported("no token rewards: the samples of a rollout share one advantage")
    return {
        "trainer.logger": "console",
        "trainer.placement.colocate_all": False,
        **dict.fromkeys(gpus, job.layout.world_size),
        "trainer.train_batch_size": prompts * len(job.steps),
        "trainer.policy_mini_batch_size": _mini_batch_size(job, prompts, per_prompt),
        "generator.n_samples_per_prompt": per_prompt,
        **({"generator.step_wise_trajectories": True} if uneven else {}),
    }


def _mini_batch_size(job: Job, prompts: int, per_prompt: int) -> int:
    samples = job.configuration.batch_size or prompts * per_prompt
    if samples % per_prompt:
        raise Unsupported(
            f"policy_mini_batch_size counts prompts of {per_prompt} samples, and {samples} is not a"
            " multiple of that"
        )
    return samples // per_prompt


def _micro_batches(job: Job) -> Settings:
    known = _names(module("train.config").TrainerConfig)
    packing = next(name for name in PACKING if name in known)
    # SkyRL's own count: rollouts of a mini-batch on one data-parallel rank.
    per_rank = prompts_per_step(job.steps) * rollouts_per_prompt(job.steps) // job.layout.dp
    settings: Settings = {f"trainer.{packing}": job.layout.format == "thd"}
    micro_batch_size = "trainer.micro_train_batch_size_per_gpu"
    if isinstance(job.layout.micro_batches, int):
        settings[micro_batch_size] = max(per_rank // job.layout.micro_batches, 1)
    elif job.layout.micro_batches == "tokens" and "max_tokens_per_microbatch" in known:
        settings[micro_batch_size] = per_rank
        settings["trainer.max_tokens_per_microbatch"] = token_budget(job.steps, job.layout.dp)
    else:
        raise Unsupported(f"no micro-batches by {job.layout.micro_batches}")
    return settings


def _algorithm(job: Job) -> Settings:
    """The settings of the loss and its terms."""
    of_entropy = Objective.ENTROPY, Objective.COMBINED
    settings: Settings = {
        f"{ALGORITHM}.use_kl_loss": has_kl_term(job),
        f"{ALGORITHM}.eps_clip_low": CONSTANTS.clip_low,
        f"{ALGORITHM}.eps_clip_high": CONSTANTS.clip_high,
        **OF_OBJECTIVES.get(job.objective, {}),
    }
    if has_kl_term(job):
        settings[f"{ALGORITHM}.kl_estimator_type"] = "k1"
        settings[f"{ALGORITHM}.kl_loss_coef"] = KL_COEFFICIENT
    if job.configuration.entropy or job.objective in of_entropy:
        settings[f"{ALGORITHM}.use_entropy_loss"] = True
        settings[f"{ALGORITHM}.entropy_loss_coef"] = ENTROPY_COEFFICIENT
    if job.configuration.says_mode:
        settings[f"{ALGORITHM}.loss_reduction"] = LOSS_REDUCTIONS[job.aggregation.mode]
    divisor = _divisor(job)
    if divisor:
        settings[f"{ALGORITHM}.max_seq_len"] = divisor
    if job.objective in POLICY_LOSSES:
        settings[f"{ALGORITHM}.policy_loss_type"] = job.objective.value
    if job.objective is Objective.REJECTION:
        settings |= {f"{CORRECTION}.{name}": bound for name, bound in REJECTING.items()}
    if job.configuration.corrects:
        settings[TIS] = "token"
    return settings


def _divisor(job: Job) -> str:
    """The divisor as typed, empty if there is none."""
    if job.configuration.divisor is not None:
        return yaml(job.configuration.divisor)  # SkyRL's command line parses values as YAML
    divisor = whole_divisor(job, "max_seq_len")
    return "" if divisor is None else str(divisor)


def _critic(job: Job) -> Settings:
    if not has_critic(job):
        return {}
    if job.objective is Objective.VALUE and job.aggregation.mode is Mode.TOKEN_MEAN:
        raise Unsupported("no token mean of a critic's loss: loss_reduction applies to the policy")
    return {
        "trainer.critic.model.path": "critic",
        "trainer.critic_mini_batch_size": prompts_per_step(job.steps),
    }


def _names(config_class: Any) -> set[str]:
    return {field.name for field in fields(config_class)}


def _reduces(loss_reduction: str) -> bool:
    """Whether SkyRL reduces one token's advantage, or before 0.2.0 its loss, in this mode."""
    import torch

    token = torch.ones(1, 1)
    try:
        call_supported(
            getattr(ppo_utils(), SCALING if scales_advantages() else "reduce_loss"),
            advantages=token,
            loss=token,
            loss_mask=token,
            loss_reduction=loss_reduction,
            micro_batch_size=1,
            max_seq_len=1,
            prompt_boundaries=[(0, 1)],
        )
    except ValueError:
        return False
    return True
