"""A job as verl's configuration, for every engine."""

from __future__ import annotations

import importlib
import pickle
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adapters.contract import Job, Unsupported
from adapters.contract.objective import (
    CONSTANTS,
    ENTROPY_COEFFICIENT,
    KL_COEFFICIENT,
    POLICY_LOSSES,
    Objective,
)
from adapters.toolkit.calls import refusals
from adapters.toolkit.settings import (
    has_critic,
    has_kl_term,
    has_reference,
    samples_per_step,
    whole_divisor,
)
from adapters.verl.importing import module
from adapters.verl.objectives import (
    ACTOR,
    ESTIMATOR,
    GIVEN,
    OF_OBJECTIVES,
    ROLLOUT,
    VANILLA,
)
from adapters.verl.sizes import CRITIC, epochs, sizes
from reference.aggregation import Mode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from adapters.verl.objectives import Settings

LOSS_AGG_MODES = {
    Mode.SAMPLE_MEAN: "seq-mean-token-mean",
    Mode.TOKEN_MEAN: "token-mean",
    Mode.CONSTANT: "seq-mean-token-sum-norm",
}
MODEL, CRITIC_MODEL = "actor_rollout_ref.model", f"{CRITIC}.model"


def configure(job: Job, of_engine: Mapping[str, object], divisor: int) -> Any:
    """verl's validated configuration for a job; raises `Unsupported` or `Refused`.

    The samples of a mini-batch are a multiple of ``divisor`` ranks.
    """
    _require_objective(job)
    settings = sizes(job, divisor) | _loss(job) | _trained(ACTOR, MODEL) | _critic(job)
    settings |= {f"{ROLLOUT}.name": "vllm", **of_engine}
    return pickle.loads(_validated(pickle.dumps((settings, has_reference(job), has_critic(job)))))


@cache
def _parse_interpolations_once() -> None:
    """Make OmegaConf cache what it has parsed: every configuration has the same texts."""
    base: Any = importlib.import_module("omegaconf.base")
    base.parse = cache(base.parse)


@lru_cache(maxsize=256)
def _validated(asked: bytes) -> bytes:
    """A configuration, resolved and validated as verl's main function does it; pickled.

    ``asked`` are its settings and whether there are a reference policy and a critic, pickled.
    Validation takes longer than a step, and many jobs share a configuration.
    """
    from omegaconf import OmegaConf

    _parse_interpolations_once()
    settings, use_reference, use_critic = pickle.loads(asked)
    config = pickle.loads(_defaults(settings.pop("model_engine", None)))
    for path, value in settings.items():
        OmegaConf.update(config, path, value, force_add=True)
    OmegaConf.resolve(config)
    with refusals():
        module("utils.config").validate_config(
            config, use_reference_policy=use_reference, use_critic=use_critic
        )
    return pickle.dumps(config)


def paths_of_capacity(job: Job) -> list[str]:
    """The paths of the probe's size in the configurations of a job's models."""
    models = [MODEL, CRITIC_MODEL] if has_critic(job) else [MODEL]
    return [f"{model}.override_config.capacity" for model in models]


def _require_objective(job: Job) -> None:
    """Raise `Unsupported` if verl lacks the objective in the job's mode or with its steps."""
    if job.objective is Objective.REJECTION and len(job.steps) > 1:
        raise Unsupported("no log of rejection for several steps: it is logged once per batch")
    if job.objective is Objective.SFT and epochs(job) > 1:
        raise Unsupported("no epochs of fine-tuning: ppo_epochs is PPO's")
    if job.objective is Objective.SFT and job.aggregation.mode is not Mode.TOKEN_MEAN:
        raise Unsupported("fine-tuning is by tokens: loss_agg_mode is the policy's")
    if job.objective is Objective.GEO_MEAN and job.aggregation.mode is not Mode.SAMPLE_MEAN:
        raise Unsupported("geo_mean is a mean over samples, whatever loss_agg_mode says")


@cache
def _defaults(model_engine: object | None) -> bytes:
    """An engine's default configuration, pickled, the fastest way to copy it.

    Reading it again with hydra takes longer than a step.
    """
    from hydra import compose, initialize_config_dir

    folder = Path(module("trainer.config").__file__).parent
    with initialize_config_dir(str(folder), version_base=None):
        # Older versions have no such group in their configuration.
        chosen = [f"model_engine={model_engine}"] if model_engine else []
        return pickle.dumps(compose("ppo_trainer", overrides=chosen))


def _loss(job: Job) -> Settings:
    """The settings of the loss and its terms."""
    settings: Settings = {
        ESTIMATOR: GIVEN,
        f"{ACTOR}.clip_ratio_low": CONSTANTS.clip_low,
        f"{ACTOR}.clip_ratio_high": CONSTANTS.clip_high,
        # Without `DUAL_CLIP`, a bound that no ratio reaches.
        f"{ACTOR}.clip_ratio_c": 1e6,
        **OF_OBJECTIVES.get(job.objective, {}),
    }
    if has_kl_term(job):
        settings[f"{ACTOR}.use_kl_loss"] = True
        settings[f"{ACTOR}.kl_loss_type"] = "k1"
        settings[f"{ACTOR}.kl_loss_coef"] = KL_COEFFICIENT
    if job.configuration.entropy or job.objective in (Objective.ENTROPY, Objective.COMBINED):
        settings[f"{ACTOR}.entropy_coeff"] = ENTROPY_COEFFICIENT
    sum_mode = _sum_mode(job)
    if job.configuration.says_mode:
        settings[f"{ACTOR}.loss_agg_mode"] = sum_mode or LOSS_AGG_MODES[job.aggregation.mode]
    settings[f"{ACTOR}.loss_scale_factor"] = None if sum_mode else _divisor(job)
    if job.objective in POLICY_LOSSES and job.objective not in VANILLA:
        settings[f"{ACTOR}.policy_loss.loss_mode"] = job.objective.value
    return settings


def _sum_mode(job: Job) -> str | None:
    """verl's mode that sums tokens and divides only by N (L = 1) or by nothing (L = 1/N)."""
    divisor, size = job.aggregation.divisor or 0.0, samples_per_step(job.steps)
    return {float(size): "seq-mean-token-sum", 1.0: "token-sum"}.get(divisor * size)


def _divisor(job: Job) -> object:
    """The divisor as hydra parses what is typed, None if there is none."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    typed = job.configuration.divisor
    if typed:
        return OverridesParser.create().parse_override(f"divisor={typed}").value()
    return None if typed == "" else whole_divisor(job, "loss_scale_factor")


def _trained(role: str, model: str) -> Settings:
    """Our model, and an optimizer that leaves the probe at 0."""
    from adapters.verl.model import CHECKPOINT

    return {
        f"{model}.path": str(CHECKPOINT),
        f"{model}.load_tokenizer": False,
        f"{model}.override_config.attn_implementation": "eager",
        f"{model}.enable_gradient_checkpointing": False,
        f"{role}.optim.lr": 0.0,
        f"{role}.optim.weight_decay": 0.0,
        f"{role}.optim.clip_grad": 1e9,
        f"{role}.optim.total_training_steps": 1,
    }


def _critic(job: Job) -> Settings:
    """The settings of a critic, whose loss is by default aggregated like the policy's."""
    if not has_critic(job):
        return {}
    return {**_trained(CRITIC, CRITIC_MODEL), f"{CRITIC}.enable": True}
