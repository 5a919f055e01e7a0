"""What a version of NeMo-RL has, found in its code.

Before August 2026 a trainer's state was made by another function, and before July 2026 workers were
not bound to the cores of a GPU.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from typing import Any
from unittest import mock

from adapters.nemo_rl.importing import module


def initial_state(trainer: str) -> Any:
    """The state in which a trainer begins."""
    home = module(f"algorithms.{trainer}")
    names = (f"_initial_{trainer}_save_state", f"_default_{trainer}_save_state")
    return next(getattr(home, name) for name in names if hasattr(home, name))()


def without_binding() -> AbstractContextManager[object]:
    """Leave processes where they are."""
    if find_spec("nemo_rl.distributed.numa_utils") is None:
        return nullcontext()
    return mock.patch.object(module("distributed.numa_utils"), "bind_to_gpu_numa")
