"""Imports miles without a GPU, servers or an object store."""

from __future__ import annotations

import importlib
import importlib.util
from contextlib import nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from adapters.slime_family import framework
from adapters.slime_family.framework import LOG
from adapters.slime_family.user_code import CpUtils
from adapters.toolkit.imports import import_from, modules_of

if TYPE_CHECKING:
    from pathlib import Path

module = modules_of("miles")


def module_if_any(path: str) -> Any:
    """Import a module of miles; None if this version lacks it."""
    try:
        return module(path)
    except ModuleNotFoundError:
        return None


def engine(name: str) -> Any:
    """Import a module of the FSDP engine, which some versions keep in ``experimental``."""
    stable = importlib.util.find_spec("miles.backends.fsdp_utils")
    place = "backends" if stable else "backends.experimental"
    return module(f"{place}.fsdp_utils.{name}")


def import_miles(source: Path | None, *, megatron: bool) -> None:
    """Import what all engines need and add the probe to log-probabilities."""
    from adapters.slime_family.model import seam_around

    framework.install("miles", megatron=megatron)
    import_from("miles", [source] if source else [])
    framework.drop_server_options("miles")
    for name in ("ray.rollout.train_data_conversion", "utils.data"):
        holder = module(name)
        if hasattr(holder, "ray"):
            holder.ray = framework.OBJECT_STORE
        if hasattr(holder, "object_store"):
            store = SimpleNamespace(put=lambda value, value_spec: value, get=_Fetched)
            holder.object_store.get_instance = lambda store=store: store
    LOG.listen(module("backends.training_utils.log_utils"))
    CpUtils.module = module("backends.training_utils.cp_utils")
    processors = module("backends.training_utils.loss_hub.logit_processors")
    processors.calculate_log_probs_and_entropy = seam_around(
        processors.calculate_log_probs_and_entropy
    )


class _Fetched(nullcontext[Any]):
    """An object as the object store returns it: it has a ``value`` and is a context manager."""

    @property
    def value(self) -> Any:
        return self.enter_result
