"""verl's distillation: its loss, and its configuration as the trainer and the worker read it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from adapters.verl.importing import module

if TYPE_CHECKING:
    from collections.abc import Callable


def distillation_of(config: Any) -> Any:
    """The configuration of distillation as verl's dataclass; None if it is off.

    Each is made anew: losses keep numbers of the last batch in it.
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
