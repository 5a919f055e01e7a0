"""Imported by the fork server, so that ranks start with the framework already in memory."""

from __future__ import annotations

import base64
import os
import pickle
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from adapters.contract import Adapter, Description
    from conformance.ranks.hardware import Hardware

VARIABLE = "_RL_LOSS_CONFORMANCE_PRELOAD"

_loaded: dict[tuple[type[Adapter], Path | None], Description] = {}


def announce(adapter: Adapter, source: Path | None, hardware: Hardware) -> None:
    """Tell a fork server that starts from this process what to load, and where to find it."""
    loading = pickle.dumps((adapter, source, hardware))
    os.environ[VARIABLE] = base64.b64encode(pickle.dumps((sys.path, loading))).decode()


def load_once(adapter: Adapter, source: Path | None) -> Description:
    """Load a framework unless this process, or the one it was forked from, already has.

    What it turned out to be is found out once too: on miles that takes longer than a fork.
    """
    key = (type(adapter), source)
    if key not in _loaded:
        adapter.load(source)
        _loaded[key] = adapter.describe()
    return _loaded[key]


def hide_gpus() -> None:
    """Have frameworks that look for a GPU find none, where ranks compute on the CPU."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""


def _load_announced() -> None:
    # torch reads it when imported; else frameworks' compiled losses compile C++ in every rank.
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
    import conformance.ranks.worker  # noqa: F401 - torch, for every rank
    from conformance.ranks.hardware import Device

    folders, loading = pickle.loads(base64.b64decode(os.environ[VARIABLE]))
    sys.path += [folder for folder in folders if folder not in sys.path]
    adapter, source, hardware = pickle.loads(loading)
    # A framework may touch CUDA when imported, and no process forked after that can use it.
    if hardware.device is Device.CPU:
        hide_gpus()
        load_once(adapter, source)


if VARIABLE in os.environ:
    # A failure is left to the ranks: each tries again and reports it.
    with suppress(Exception):
        _load_announced()
