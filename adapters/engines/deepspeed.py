"""DeepSpeed: its engine on the CPU, and readers of the gradient.

The engine, its reductions and its optimizers run as they are. Where there is no GPU, the optimizer
is torch's AdamW, and collectives stay with gloo: DeepSpeed's own versions of both would have to
compile C++.
"""

from __future__ import annotations

import importlib
import inspect
import logging
import os
import sys
from contextlib import contextmanager, suppress
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import platformdirs
import torch

from adapters.contract import Refused
from adapters.toolkit.probe import Records, as_array

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from reference.arrays import Gradient


GROUPS = (
    "_WORLD_GROUP",
    "_ZERO_PARAM_INTRA_PARALLEL_GROUP",
    "_TENSOR_MODEL_PARALLEL_GROUP",
    "_MODEL_PARALLEL_GROUP",
    "_DATA_PARALLEL_GROUP",
    "mesh_device",
    "mpu",
)
"""Names of the process groups that `deepspeed.utils.groups` keeps for all engines."""


def import_deepspeed() -> None:
    """Import DeepSpeed; without a GPU, for the CPU and without compiling anything."""
    if not torch.cuda.is_available():
        os.environ["DS_ACCELERATOR"] = "cpu"
    # DeepSpeed imports torch's compiler, which would leave a folder among temporary files.
    kept = platformdirs.user_cache_path("rl-loss-conformance") / "torchinductor"
    with suppress(OSError):
        kept.mkdir(parents=True, exist_ok=True)
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(kept))
    importlib.import_module("deepspeed")
    backend: Any = importlib.import_module("deepspeed.comm.torch")
    backend.build_shm_op = lambda: None
    importlib.import_module("deepspeed.utils").logger.setLevel(logging.ERROR)


def use_torch_adam(optimizer: Mapping[str, Any]) -> dict[str, Any]:
    """The ``optimizer`` section of DeepSpeed's configuration, with torch's own AdamW."""
    return {**optimizer, "params": {**optimizer["params"], "torch_adam": True}}


OF_SIZES = ("Check batch related parameters", "Gradient accumulation steps: ")
"""The first words of DeepSpeed's errors about batch sizes."""


@contextmanager
def refusals_of_sizes() -> Iterator[None]:
    """Turn DeepSpeed's errors about inconsistent batch sizes into `Refused`."""
    try:
        yield
    except AssertionError as error:
        if not str(error).startswith(OF_SIZES):
            raise
        raise Refused(f"DeepSpeed: {error}") from error


_MESHES: dict[tuple[Any, ...], Any] = {}


def made_once(make: Callable[..., Any]) -> Callable[..., Any]:
    """A cached version of ``make``, so that each device mesh of a world is made only once."""

    def mesh(*args: Any, **options: Any) -> Any:
        key = (*args, *options.items())
        if key not in _MESHES:
            _MESHES[key] = make(*args, **options)
        return _MESHES[key]

    return mesh


def gradients_of_steps(engine: Any, probe: torch.nn.Parameter) -> Records[Gradient]:
    """Records the probe's gradient, [capacity], at each optimizer step of DeepSpeed's engine.

    Frameworks call the engine's `step` after every micro-batch; the engine itself knows which
    micro-batch is the last of an optimizer step.
    """
    from deepspeed.utils import safe_get_full_grad

    gradients, step = Records["Gradient"](), engine.step

    def read_and_step(*args: Any, **kwargs: Any) -> Any:
        if engine.is_gradient_accumulation_boundary():
            gradients.append(as_array(safe_get_full_grad(probe)))
        return step(*args, **kwargs)

    engine.step = read_and_step
    return gradients


def forget_engines() -> None:
    """Reset DeepSpeed's state of earlier engines in a process: a user's process has one engine.

    The state consists of how ranks share sequences, and of ZeRO 3's counters of parameters and
    modules. ZeRO 3 compares these counters over ranks, but our ranks have had different numbers of
    engines before.
    """
    groups: Any = importlib.import_module("deepspeed.utils.groups")
    groups.mpu = None
    parameters: Any = importlib.import_module("deepspeed.runtime.zero.partition_parameters")
    parameters.Init.param_id = 0
    offload: Any = importlib.import_module("deepspeed.runtime.zero.parameter_offload")
    register = inspect.unwrap(offload.DeepSpeedZeRoOffload._register_deepspeed_module)
    for count in filter(None, register.__defaults__):
        count[0] = 0


SEQUENCES = "deepspeed.runtime.sequence_parallel.parallel_state_sp"
"""The module that keeps the process groups of sequence parallelism."""


def group_sequences_once() -> None:
    """Let the process groups of sequence parallelism be made only once in a world."""
    home: Any = importlib.import_module(SEQUENCES)
    home.initialize_sequence_parallel = made_once(home.initialize_sequence_parallel)


def leave_world() -> None:
    """Drop DeepSpeed's process groups and device meshes of a world about to end."""
    _MESHES.clear()
    sequences: Any = sys.modules.get(SEQUENCES, SimpleNamespace())
    sequences._SEQUENCE_PARALLEL_GROUP = sequences._SEQUENCE_DATA_PARALLEL_GROUP = None
    groups: Any = importlib.import_module("deepspeed.utils.groups")
    for name in GROUPS:
        if hasattr(groups, name):
            setattr(groups, name, None)
    comm: Any = importlib.import_module("deepspeed.comm.comm")
    comm.cdb = None
