"""OpenRLHF's actors on this rank, made by their own `init_model_from_pretrained`."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from unittest import mock

from adapters.engines.deepspeed import gradients_of_steps
from adapters.openrlhf import model
from adapters.openrlhf.importing import module
from adapters.toolkit.probe import ForwardPasses, Recorder

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

LEARNING_STEPS = 100  # of the schedule of a learning rate that is always 0


@dataclass(frozen=True, eq=False)
class Trained:
    """An actor of OpenRLHF, the gradients of its optimizer's steps and its forward passes."""

    actor: Any
    gradients: Recorder[NDArray[np.float32]]
    passes: ForwardPasses


def policy(args: Any, capacity: int) -> Trained:
    """The actor that trains the policy."""
    made = _without_ray(module("trainer.ray.ppo_actor").PolicyModelActor)
    passes = ForwardPasses()
    with _replaced(
        "trainer.ray.ppo_actor",
        Actor=lambda *_, **__: model.actor(capacity, passes, args),
        get_tokenizer=lambda *_, **__: None,
    ):
        made.init_model_from_pretrained(_strategy(args), "probe", LEARNING_STEPS, None)
    engine = made.actor.model
    return Trained(made, gradients_of_steps(engine, model.probe_of(engine.module)), passes)


def critic(args: Any, capacity: int) -> Trained:
    """The actor that trains the critic."""
    made = _without_ray(module("trainer.ray.ppo_critic").CriticModelActor)
    passes = ForwardPasses()
    with _replaced(
        "trainer.ray.ppo_critic",
        get_llm_for_sequence_regression=lambda *_, **__: model.critic(capacity, passes, args),
    ):
        made.init_model_from_pretrained(_strategy(args), "probe", LEARNING_STEPS)
    engine = made.critic
    return Trained(made, gradients_of_steps(engine, model.probe_of(engine.module)), passes)


def _strategy(args: Any) -> Any:
    """A strategy of its own, as Ray sends each actor a copy."""
    return module("utils").get_strategy(args)


def _without_ray(remote_class: Any) -> Any:
    """An instance of the class that Ray would start a process of."""
    return object.__new__(remote_class.__ray_metadata__.modified_class)


def _replaced(path: str, **names: Any) -> ExitStack:
    """A context in which a module of OpenRLHF has these in the place of its own."""
    stack = ExitStack()
    for name, value in names.items():
        stack.enter_context(mock.patch.object(module(path), name, value))
    return stack
