"""Imports verl on a machine without its GPU packages, and configures it."""

from __future__ import annotations

import importlib
import pickle
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adapters.contract.tables import read_rows
from adapters.toolkit.calls import refusals
from adapters.toolkit.imports import (
    choices_in,
    found,
    import_from,
    modules_of,
)
from adapters.toolkit.settings import composed, flattened

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from adapters.contract.framework import Settings

module = modules_of("verl")

ACTOR = "actor_rollout_ref.actor"
SECTIONS = ("actor_rollout_ref", "algorithm", "critic", "data", "distillation", "trainer")
"""Sections of verl's configuration; options without such a prefix belong to the actor."""

[OF_CRITIC] = read_rows("adapters.verl", "of_critic")
"""Prefixes of the actor's options of engine, model and optimizer, each with the critic's prefix."""

[REGISTRIES] = read_rows("adapters.verl", "registries")
"""Options whose values are registered in `trainer/ppo/core_algos.py`."""


def import_verl(source: Path | None) -> None:
    """Import verl, and hide TRL from the modules that verl imports later.

    verl patches TRL's value heads before it builds any model, and supports only TRL 0.27.0; newer
    releases of TRL have moved or dropped these heads.
    """
    import_from("verl", [source] if source else [])
    module("utils.import_utils").is_trl_available = lambda: False


def has_default_trainer() -> bool:
    """Whether this version has the default trainer; if not, only the legacy one exists."""
    return found("verl.trainer.ppo.v1.trainer_sync:PPOTrainerSync._step_once") is not None


def pack_without_flash_attention() -> None:
    """Make versions before 0.9.1 pack rows by transformers' functions instead of flash-attn's."""
    packing = module("utils.attention_utils")
    try:
        packing._get_attention_functions()
    except ModuleNotFoundError:
        own: Any = importlib.import_module("transformers.modeling_flash_attention_utils")
        functions = (own._index_first_axis, own._pad_input, None, own._unpad_input)
        packing._get_attention_functions = lambda: functions


def configured(settings: Settings) -> Any:
    """verl's configuration of all models, validated; raises `Refused` if verl declines it."""
    whole = _add_critic_settings(settings) if "critic.enable" in settings else settings
    return pickle.loads(_validated(pickle.dumps(whole)))


TRANSFORMER = "override_transformer_config."
"""The prefix under which options of Megatron-Core's own configuration may be set."""


def offers(settings: Settings) -> bool:
    """Whether this version's configuration has these options, and its registries their values.

    Before 0.8.0, the engines of critics have a different configuration.
    """
    algorithms = module("trainer.ppo.core_algos")
    of_critic = module("workers.config").FSDPCriticConfig.__dataclass_fields__
    are_registered = all(
        settings[name] in getattr(algorithms, registry)
        for name, registry in REGISTRIES.items()
        if name in settings
    )
    closed = (name for name in settings if TRANSFORMER not in name)
    has_options = {*map(_path, closed)} <= {*_paths(None), *_paths_of_types()}
    has_critic = "critic.enable" not in settings or "fsdp" in of_critic
    return has_options and are_registered and has_critic


def default(name: str) -> object:
    """The value of an option that a user does not set; None if this version lacks the option."""
    from omegaconf import OmegaConf

    return OmegaConf.select(pickle.loads(_defaults(None)), _path(name))


def option_names(model_engine: str | None) -> Iterator[str]:
    """Yields the options of an actor, of policy losses and of advantages, and their choices."""
    for path in _paths(model_engine):
        name = path.removeprefix(f"{ACTOR}.")
        is_of_actor = name != path and ("." not in name or name.startswith("policy_loss."))
        if is_of_actor or path.startswith(("algorithm.", "distillation.distillation_loss.")):
            yield name
    algorithms = module("trainer.ppo.core_algos")
    yield from (
        f"loss_agg_mode={mode}" for mode in choices_in(algorithms.agg_loss, "loss_agg_mode")
    )
    for name, registry in REGISTRIES.items():
        yield from (f"{name}={one}" for one in getattr(algorithms, registry))


def distillation_of(config: Any) -> Any:
    """The configuration of distillation as verl's dataclass; None if distillation is off.

    Each call makes a new object, because losses store numbers of the last batch in the object.
    """
    section = config.get("distillation")
    if section is None or not section.enabled:
        return None
    return module("utils.config").omega_conf_to_dataclass(section)


def loss_of(config: Any, actor_config: Any) -> Callable[..., Any]:
    """The loss that verl's worker gives an actor's engine."""
    distillation = distillation_of(config)
    if distillation is None:
        return partial(module("workers.utils.losses").ppo_loss, config=actor_config)
    loss = module("trainer.distillation").distillation_ppo_loss
    return partial(loss, config=actor_config, distillation_config=distillation)


@cache
def _paths(model_engine: str | None) -> tuple[str, ...]:
    """The paths of this version's options in its configuration."""
    entries = flattened(pickle.loads(_defaults(model_engine))).items()
    # Neither empty sections nor the classes of sections are options.
    options = (name for name, value in entries if value != {})
    return tuple(name for name in options if name.split(".")[-1] != "_target_")


@cache
def _paths_of_types() -> tuple[str, ...]:
    """The paths of options that users must add: types declare them, but verl's files lack them."""
    types = module("workers.config")
    if "rollout_correction" not in types.PolicyLossConfig.__dataclass_fields__:
        return ()
    names = module("trainer.config.algorithm").RolloutCorrectionConfig.__dataclass_fields__
    return tuple(f"{ACTOR}.policy_loss.rollout_correction.{name}" for name in names)


def _path(name: str) -> str:
    """The path of an option in verl's configuration."""
    return name if name.partition(".")[0] in SECTIONS else f"{ACTOR}.{name}"


def _add_critic_settings(settings: Settings) -> Settings:
    """Settings that also give a critic the settings of the actor's model, engine and optimizer.

    The trainer gives a critic's engine one token budget for all purposes, and cuts by tokens unless
    the engine's own configuration says otherwise.
    """
    alike = {
        name.replace(actor, critic, 1): value
        for name, value in settings.items()
        for actor, critic in OF_CRITIC.items()
        if name.startswith(actor)
    }
    if "use_dynamic_bsz" in settings:
        budget = settings["ppo_max_token_len_per_gpu"]
        return {**settings, **alike, "critic.ppo_infer_max_token_len_per_gpu": budget}
    size = settings["ppo_micro_batch_size_per_gpu"]
    engine = f"critic.{settings.get('model_engine', 'fsdp')}"
    return {
        **settings,
        **alike,
        "critic.ppo_micro_batch_size_per_gpu": size,
        f"{engine}.use_dynamic_bsz": False,
        f"{engine}.micro_batch_size_per_gpu": size,
    }


@cache
def _parse_interpolations_once() -> None:
    """Make OmegaConf cache parsed interpolations, which all configurations share."""
    base: Any = importlib.import_module("omegaconf.base")
    base.parse = cache(base.parse)


@lru_cache(maxsize=256)
def _validated(pickled: bytes) -> bytes:
    """The configuration from settings, resolved and validated as in verl's main function, pickled.

    Settings are pickled too. Results are cached, because validation takes longer than a step and
    many jobs share a configuration.
    """
    from omegaconf import OmegaConf

    _parse_interpolations_once()
    settings = pickle.loads(pickled)
    config = pickle.loads(_defaults(settings.pop("model_engine", None)))
    for name, value in settings.items():
        OmegaConf.update(config, _path(name), value, force_add=True)
    OmegaConf.resolve(config)
    with refusals():
        validate(config)
    return pickle.dumps(config)


def validate(config: Any) -> None:
    """Validate as verl's trainer does, with or without a critic and a reference policy."""
    penalises = config.actor_rollout_ref.actor.use_kl_loss or config.algorithm.use_kl_in_reward
    module("utils.config").validate_config(
        config, use_reference_policy=penalises, use_critic=bool(config.critic.enable)
    )


@cache
def _defaults(model_engine: object | None) -> bytes:
    """An engine's default configuration, pickled: unpickling is the fastest way to copy it."""
    folder = Path(module("trainer.config").__file__).parent
    name, chosen = "ppo_trainer", [f"model_engine={model_engine}"] if model_engine else []
    if chosen and not (folder / "model_engine" / f"{model_engine}.yaml").exists():
        name, chosen = f"ppo_{model_engine}_trainer", []  # an engine's file in older versions
    return pickle.dumps(composed(folder / f"{name}.yaml", chosen))
