"""Prepares a process before it becomes a rank.

The fork server imports this module, so that ranks start with the framework already in memory.
"""

from __future__ import annotations

import base64
import ctypes
import gc
import os
import pickle
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from adapters.toolkit.imports import load
from conformance.ranks import changed

if TYPE_CHECKING:
    import signal
    from pathlib import Path

    from adapters.contract import Adapter, Description
    from conformance.ranks.hardware import Hardware

VARIABLE = "_RL_LOSS_CONFORMANCE_PRELOAD"

_loaded: dict[tuple[type[Adapter], Path | None], Description | Exception] = {}


def announce(adapter: Adapter, source: Path | None, hardware: Hardware) -> None:
    """Tell a fork server started by this process which framework to load, and from where."""
    loading = pickle.dumps((adapter, source, hardware))
    os.environ[VARIABLE] = base64.b64encode(pickle.dumps((sys.path, loading))).decode()


def load_once(adapter: Adapter, source: Path | None) -> Description:
    """Load a framework unless this process, or the one it was forked from, already has.

    Its capabilities are also detected once: on miles that takes longer than a fork. A framework
    that failed to load is not loaded again, since a half-loaded one fails in another way.
    """
    key = (type(adapter), source)
    if key not in _loaded:
        _loaded[key] = _load(adapter, source)
    loaded = _loaded[key]
    if isinstance(loaded, Exception):
        raise loaded
    return loaded


def _load(adapter: Adapter, source: Path | None) -> Description | Exception:
    try:
        return load(adapter, source)
    except Exception as error:  # the ranks report it
        return error


def hide_gpus() -> None:
    """Hide GPUs from frameworks, for ranks that compute on the CPU."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""


def die_with_parent(sign: signal.Signals) -> None:
    """Have the kernel send us this signal when our parent ends, even if we hang in native code."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, sign)


def _load_announced() -> None:
    # torch reads this on import. If it were not set, every rank would compile C++ for the losses
    # that frameworks pass to torch.compile.
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
    import torch

    from conformance.ranks.hardware import Device

    changed.note_all_of(changed.announced())
    folders, loading = pickle.loads(base64.b64decode(os.environ[VARIABLE]))
    sys.path += [folder for folder in folders if folder not in sys.path]
    adapter, source, hardware = pickle.loads(loading)
    # A framework may touch CUDA when it is imported. Processes that are forked afterwards cannot
    # use CUDA.
    if hardware.device is Device.CPU:
        hide_gpus()
        load_once(adapter, source)
        # This takes a second, which otherwise each rank's first optimizer would take.
        import torch._dynamo  # noqa: F401

        # Frameworks collect garbage in their steps; objects from before the fork need no
        # collection.
        gc.freeze()


if VARIABLE in os.environ:
    # The ranks will report a failure.
    with suppress(Exception):
        _load_announced()
