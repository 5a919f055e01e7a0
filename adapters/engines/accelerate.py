"""Hugging Face Accelerate, and transformers' `Trainer` on it.

Accelerate reads the world from environment variables and keeps it for the process; each `Trainer`
makes its own `Accelerator`, which uses that state.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from transformers import PrinterCallback, TrainerCallback

from adapters.contract import Rank, Unsupported
from adapters.toolkit.probe import GradientReader

if TYPE_CHECKING:
    from adapters.toolkit.probe import Records
    from reference.arrays import Gradient

LOCAL_RANK = "LOCAL_RANK"
USES_DEEPSPEED = "ACCELERATE_USE_DEEPSPEED"
"""The environment variable that Accelerate sets once DeepSpeed is configured."""

RENDEZVOUS = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
"""Variables that Accelerate requires; no process connects, as the world exists already."""


def enter_world(rank: Rank) -> None:
    """Let the next `Accelerator` find the world of a rank, without state of earlier jobs."""
    leave_world()
    for name, value in RENDEZVOUS.items():
        os.environ.setdefault(name, value)
    if rank.device == "cpu":
        os.environ.pop(LOCAL_RANK, None)  # Accelerate sets it if a world has several CPUs


def name_engine(name: str) -> None:
    """Enable an engine, by its name, on CPUs, although Accelerate allows it only on GPUs."""
    from accelerate.state import PartialState
    from accelerate.utils import DistributedType

    PartialState(cpu=True).distributed_type = DistributedType(name)


def require_engine(name: str) -> None:
    """Raise `Unsupported` unless the latest `Accelerator` ran the engine of this name."""
    from accelerate.state import AcceleratorState

    ran = AcceleratorState().distributed_type.value
    if ran != name:
        raise Unsupported(f"Accelerate ran {ran} instead of {name}")


def leave_world() -> None:
    """Forget the world, and the gradients and data loaders of its last job."""
    from accelerate.state import AcceleratorState, GradientState

    os.environ.pop(USES_DEEPSPEED, None)
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


class Watch(TrainerCallback):
    """Keeps the gradient and the log of each optimizer step of a `Trainer`."""

    def __init__(self) -> None:
        self.logs: list[dict[str, Any]] = []
        self.trainer: Any = None
        self._reader: GradientReader | Records[Gradient] | None = None

    def follow(self, trainer: Any) -> None:
        """Register with a trainer, replacing the callback that prints logs."""
        trainer.remove_callback(PrinterCallback)
        trainer.add_callback(self)
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **of_trainer: Any) -> None:
        """Read gradients at each step of the wrapped optimizer, or of DeepSpeed's engine if any."""
        optimizer, model = of_trainer["optimizer"], self.trainer.model_wrapped
        if hasattr(model, "is_gradient_accumulation_boundary"):
            from adapters.engines.deepspeed import gradients_of_steps

            [probe] = [one for one in model.parameters() if one.requires_grad]
            self._reader = gradients_of_steps(model, probe)
        else:
            self._reader = GradientReader(getattr(optimizer, "optimizer", optimizer))

    def on_log(self, args: Any, state: Any, control: Any, **of_trainer: Any) -> None:
        """Keep a log. The trainer makes one for each step, and a last one for the whole run."""
        self.logs.append({**of_trainer["logs"]})

    def gradients(self) -> list[Gradient]:
        """The gradients of all steps."""
        assert self._reader is not None
        return self._reader.drain()
