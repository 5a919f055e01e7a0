"""NeMo-RL's example configurations with what a job overrides, as a user would on a command line."""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING, Any

from omegaconf import OmegaConf

from adapters.contract import Option, Unsupported
from adapters.contract.objective import ADVANTAGE_CONSTANTS, CONSTANTS, KL_COEFFICIENT, Objective
from adapters.nemo_rl.importing import example, module
from adapters.toolkit.settings import samples_per_step, token_budget
from reference.aggregation import Mode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from adapters.contract import Job, Layout
    from reference.step import Step

    Settings = Mapping[str, object]
    """Values by their paths in NeMo-RL's configuration; None is null."""

TOKEN_LEVEL = {Mode.TOKEN_MEAN: True, Mode.SAMPLE_MEAN: False}
"""NeMo-RL's `token_level_loss` of each mode."""

ONLY_MODE = {
    Objective.GSPO: Mode.SAMPLE_MEAN,
    Objective.CISPO: Mode.TOKEN_MEAN,
    Objective.SFT: Mode.TOKEN_MEAN,
}
"""Losses that NeMo-RL documents in one mode alone."""

CORRECTED: Settings = {
    "loss_fn.use_importance_sampling_correction": True,
    "loss_fn.truncated_importance_sampling_ratio": CONSTANTS.truncation,
}

OF_OBJECTIVES: dict[Objective, Settings] = {
    Objective.DUAL_CLIP: {"loss_fn.ratio_clip_c": CONSTANTS.dual_clip},
    Objective.GSPO: {"loss_fn.sequence_level_importance_ratios": True},
    Objective.CISPO: {"loss_fn.use_cispo": True},
    Objective.GPG: {"loss_fn.disable_ppo_ratio": True},
    Objective.KL: {"loss_fn.reference_policy_kl_penalty": KL_COEFFICIENT},
    Objective.TIS_TOKEN: {**CORRECTED, "loss_fn.truncated_importance_sampling_type": "tis"},
    Objective.REJECTION: {
        **CORRECTED,
        "loss_fn.truncated_importance_sampling_type": "icepop",
        "loss_fn.truncated_importance_sampling_ratio_min": CONSTANTS.kept_low,
    },
    Objective.SEQUENCE_MASKED: {
        **CORRECTED,
        "loss_fn.truncated_importance_sampling_type": "seq-mask-tis",
        "loss_fn.truncated_importance_sampling_ratio": CONSTANTS.kept_high,
        "loss_fn.truncated_importance_sampling_ratio_min": CONSTANTS.kept_low,
    },
    Objective.GROUP_NORMALISED: {"grpo.use_leave_one_out_baseline": False},
    Objective.GROUP_CENTRED: {
        "grpo.use_leave_one_out_baseline": False,
        "grpo.normalize_rewards": False,
    },
    Objective.LEAVE_ONE_OUT: {"grpo.normalize_rewards": False},
    Objective.REINFORCE_PP_BASELINE: {
        "grpo.adv_estimator.name": "reinforce_plus_plus",
        "loss_fn.use_kl_in_reward": True,
        "loss_fn.reference_policy_kl_type": "k1",
        "loss_fn.reference_policy_kl_penalty": ADVANTAGE_CONSTANTS.penalty,
    },
}
"""What objectives set."""


OF_ROLLOUTS: Settings = {"grpo.num_generations_per_prompt": 1}
"""Each sample is given as a prompt of its own."""

OF_RUNS: Settings = {
    "checkpointing.enabled": False,
    "policy.model_name": "probe",
    "policy.precision": "float32",
    "policy.max_grad_norm": None,
    "policy.optimizer.kwargs.lr": 0.0,
    "policy.optimizer.kwargs.weight_decay": 0.0,
}


def configuration(job: Job, steps: Sequence[Step], engine: Settings) -> Any:
    """The configuration by which a user of an engine would train these steps, as validated.

    Raises `Unsupported` for a loss that NeMo-RL documents it does not have in the job's mode.
    """
    mode = job.aggregation.mode
    if ONLY_MODE.get(job.objective, mode) is not mode:
        raise Unsupported(f"{job.objective} is documented to have no {mode}")
    of_policy = {**OF_RUNS, **engine, **_of_layout(job), **_batches(job, steps)}
    if job.objective is Objective.SFT:
        return _validated("sft", "sft.yaml", {**of_policy, **_schedule("sft")})
    rollouts = {"grpo.num_prompts_per_step": sum(step.size for step in steps)}
    return _validated(
        "grpo",
        "grpo_math_1B.yaml",
        {**of_policy, **_schedule("grpo"), **OF_ROLLOUTS, **rollouts, **_of_loss(job)},
    )


def _validated(trainer: str, name: str, settings: Settings) -> Any:
    """An example's configuration with overrides."""
    overrides = [f"{path}={_typed(value)}" for path, value in settings.items()]
    config = module("utils.config").parse_hydra_overrides(_example(name).copy(), overrides)
    chosen: Any = OmegaConf.to_container(config, resolve=True)
    return module(f"algorithms.{trainer}").MasterConfig(**chosen)


@cache
def _example(name: str) -> Any:
    configs = module("utils.config")
    configs.register_omegaconf_resolvers()
    return configs.load_config(example(name))


def _typed(value: object) -> str:
    """A value as Hydra's command line takes it."""
    return json.dumps(value)


def _schedule(trainer: str) -> Settings:
    """One step of a trainer, which is not validated."""
    return {
        f"{trainer}.max_num_steps": 1,
        f"{trainer}.max_num_epochs": 1,
        f"{trainer}.val_period": 0,
    }


def _of_loss(job: Job) -> Settings:
    return {
        "loss_fn.token_level_loss": TOKEN_LEVEL[job.aggregation.mode],
        "loss_fn.ratio_clip_min": CONSTANTS.clip_low,
        "loss_fn.ratio_clip_max": CONSTANTS.clip_high,
        "loss_fn.reference_policy_kl_penalty": 0.0,
        **OF_OBJECTIVES.get(job.objective, {}),
    }


def _of_layout(job: Job) -> Settings:
    layout = job.layout
    has_copies = Option.HYBRID_SHARDING in layout.options
    copies = {"+policy.dtensor_cfg.dp_replicate_size": 2} if has_copies else {}
    return {
        "cluster.gpus_per_node": layout.world_size,
        "policy.dtensor_cfg.context_parallel_size": layout.cp,
        "policy.make_sequence_length_divisible_by": _multiple(layout),
        **copies,
    }


def _batches(job: Job, steps: Sequence[Step]) -> Settings:
    """The sizes of batches, and how a rank's samples are cut into micro-batches."""
    layout, size = job.layout, samples_per_step(steps)
    packed, cut = layout.format == "thd", layout.micro_batches
    settings: Settings = {
        "policy.train_global_batch_size": size,
        "policy.dynamic_batching.enabled": cut == "tokens" and not packed,
        "policy.dynamic_batching.sequence_length_round": _multiple(layout),
        "policy.sequence_packing.enabled": packed,
    }
    if not packed and cut != "tokens":
        return {**settings, "policy.train_micro_batch_size": _micro_batch_size(layout, size)}
    budget = _budget(layout, steps)
    kinds = ("dynamic_batching", "sequence_packing")
    return {**settings, **{f"policy.{kind}.train_mb_tokens": budget for kind in kinds}}


def _budget(layout: Layout, steps: Sequence[Step]) -> int:
    """The tokens that a micro-batch may have: about a third of a rank's, or those of all."""
    if layout.micro_batches == "tokens":
        return -(-token_budget(steps, layout.dp) // _multiple(layout)) * _multiple(layout)
    if layout.micro_batches != 1:
        raise Unsupported("packed micro-batches are cut by tokens, not by their number")
    return max(int((step.prompt_lengths + step.response_lengths).sum()) for step in steps)


def _multiple(layout: Layout) -> int:
    """What lengths of rows are multiples of: context-parallel ranks have two slices each."""
    return 1 if layout.cp == 1 else 2 * layout.cp


def _micro_batch_size(layout: Layout, size: int) -> int:
    """The samples of a micro-batch; raises `Unsupported` if they leave some over."""
    if not isinstance(layout.micro_batches, int):
        raise Unsupported(f"no micro-batches by {layout.micro_batches}")
    per_rank = size // layout.dp
    samples = max(per_rank // layout.micro_batches, 1)
    if per_rank % samples:
        raise Unsupported(f"no micro-batches of {samples} of a rank's {per_rank} samples")
    return samples
