"""OpenRLHF's actors on this rank, and its groups of the actors of all ranks, without Ray."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np

from adapters.engines.deepspeed import gradients_of_steps
from adapters.openrlhf import model
from adapters.openrlhf.importing import module
from adapters.toolkit.probe import ForwardPasses, Recorder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from adapters.openrlhf.rollouts import Rollouts

LEARNING_STEPS = 100  # of the schedule of a learning rate that is always 0


@dataclass(frozen=True, eq=False)
class Trained:
    """An actor of OpenRLHF, the gradients of its optimizer's steps and its forward passes."""

    actor: Any
    gradients: Recorder[NDArray[np.float32]]
    passes: ForwardPasses


def policy(args: Any, capacity: int) -> Trained:
    """The actor that trains the policy."""
    passes = ForwardPasses()
    made = _initialised(
        args,
        "trainer.ray.ppo_actor",
        "PolicyModelActor",
        None,
        Actor=lambda *_, **__: model.actor(capacity, passes, args),
        get_tokenizer=lambda *_, **__: None,
    )
    return _observed(made, made.actor.model, passes)


def critic(args: Any, capacity: int) -> Trained:
    """The actor that trains the critic."""
    passes = ForwardPasses()
    made = _initialised(
        args,
        "trainer.ray.ppo_critic",
        "CriticModelActor",
        get_llm_for_sequence_regression=lambda *_, **__: model.critic(capacity, passes, args),
    )
    return _observed(made, made.critic, passes)


def _initialised(args: Any, path: str, name: str, *more: Any, **replaced: Any) -> Any:
    """An actor of the class that Ray would start a process of, initialised by itself.

    It has a strategy of its own, as Ray sends each actor a copy.
    """
    home = module(path)
    made = object.__new__(getattr(home, name).__ray_metadata__.modified_class)
    with mock.patch.multiple(home, **replaced):
        strategy = module("utils").get_strategy(args)
        made.init_model_from_pretrained(strategy, "probe", LEARNING_STEPS, *more)
    return made


def _observed(actor: Any, engine: Any, passes: ForwardPasses) -> Trained:
    [probe] = [one for one in engine.module.parameters() if one.requires_grad]
    return Trained(actor, gradients_of_steps(engine, probe), passes)


@dataclass(frozen=True, eq=False)
class Handle:
    """Ray's handle of one actor; ``actor`` is None if it is another rank's, or never trained.

    Every rank runs the trainer, so that all of them call an actor's collectives at the same time.
    """

    role: str
    actor: Any
    rollouts: Rollouts

    def __getattr__(self, method: str) -> Any:
        return SimpleNamespace(remote=partial(self._call, method))

    def _call(self, method: str, *args: Any, **options: Any) -> Any:
        if method == "execute_batch" and args[0] == "forward":
            return self.rollouts.answers(self.role, args[1])
        if self.actor is None:
            return {}
        return getattr(self.actor, method)(*deepcopy(args), **options)


def group(role: str, actor: Any, rollouts: Rollouts, rank: int) -> Any:
    """OpenRLHF's group of the actors of all ranks, of which it can call this rank's alone."""
    layout = rollouts.job.layout
    made = object.__new__(module("trainer.ray.launcher").RayActorGroup)
    made.duplicate_actors = layout.cp
    made._actor_handlers = [
        Handle(role, actor if index == rank else None, rollouts)
        for index in range(layout.world_size)
    ]
    if len(rollouts.job.steps) > 1:
        made.async_run_method_batch = partial(_call_in_steps, made.async_run_method_batch, rollouts)
    return made


def _call_in_steps(call: Any, rollouts: Rollouts, method_name: str, **data: Any) -> Any:
    """Call a method of all actors, whose experiences are dealt to them step by step."""
    if method_name == "append":
        data = {"experience": _dealt(data["experience"], rollouts)}
    return call(method_name, **data)


def _dealt(experiences: Sequence[Any], rollouts: Rollouts) -> list[Any]:
    """The experiences, in an order that gives each rank its part of every step of several.

    Ranks have contiguous parts of a batch of rollouts, which they cut into train batches.
    """
    functions, layout = module("trainer.ppo_utils.experience"), rollouts.job.layout
    rows = [row for one in experiences for row in functions.split_experience_batch(one)]
    rows.sort(key=lambda row: int(row.sequences[0]))
    steps = len(rows) // rollouts.job.steps[0].size
    parts = np.arange(len(rows)).reshape(steps, layout.dp, -1).swapaxes(0, 1)
    return [functions.make_experience_batch([rows[index]]) for index in parts.ravel()]
