"""Actors of slime and miles, entered where their trainers enter them: at `train`.

An actor is made without its `init`, which starts CUDA and loads checkpoints, and has what that
would have given it: a model, an optimizer and what keeps account of a run.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any


def actor(actor_class: type, *, args: Any, **trained: Any) -> Any:
    """An actor that waits for a batch of rollouts to train ``trained`` on."""
    made = object.__new__(actor_class)
    actors = sys.modules[actor_class.__module__]
    start_waiting(actors.Timer())
    if hasattr(actors, "TrainProfiler"):
        made.prof = actors.TrainProfiler(args)
    vars(made).update(
        trained,
        args=args,
        weights_backuper=Backups(),
        weights={"actor": {}},  # of older versions, with what copies them
        update_gpu_params_dict=lambda weights: None,
        update_cpu_params_dict=lambda weights: None,
        weight_updater=SimpleNamespace(pop_metrics=dict),
        rollout_data_postprocess=None,
        with_ref=False,
        with_opd_teacher=False,
        _active_model_tag="actor",
        _flops_args=None,
        _ft_test_action_executor=None,
        _heartbeat=SimpleNamespace(bump=lambda: None),
    )
    return made


def start_waiting(timer: Any) -> None:
    """Leave the one timer of a process as `init` does, whatever job ended before its time."""
    timer.reset()
    timer.start_time.clear()
    timer.start("train_wait")


class Backups:
    """Stands for the copies of weights on the CPU: of the actor alone, which stays what it is."""

    backup_tags = ("actor",)

    def backup(self, tag: str) -> None:
        """Nothing: weights do not change."""

    def restore(self, tag: str) -> None:
        """Nothing: they are there."""
