"""Imports miles without a GPU, servers or an object store."""

from __future__ import annotations

import importlib.util
from contextlib import nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from adapters.slime_family import importing
from adapters.slime_family.driving import LOG, OBJECT_STORE
from adapters.slime_family.user_code import CpUtils
from adapters.toolkit.calls import refusals
from adapters.toolkit.imports import import_from, modules_of

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

module = modules_of("miles")


def engine(name: str) -> Any:
    """Import a module of the FSDP engine, which some versions keep in ``experimental``."""
    stable = importlib.util.find_spec("miles.backends.fsdp_utils")
    place = "backends" if stable else "backends.experimental"
    return module(f"{place}.fsdp_utils.{name}")


def decline_in_fetch(actors: ModuleType) -> None:
    """Let the actors of a module decline a job when they fetch their share of the data."""
    actors.get_rollout_data = refusals()(actors.get_rollout_data)  # type: ignore[attr-defined]


def import_miles(source: Path | None, *, megatron: bool) -> None:
    """Import what all engines need and add the probe to log-probabilities."""
    from adapters.slime_family.model import seam_around

    importing.install("miles", megatron=megatron)
    import_from("miles", [source] if source else [])
    importing.drop_server_options("miles")
    for name in ("ray.rollout.train_data_conversion", "utils.data"):
        holder = module(name)
        if hasattr(holder, "ray"):
            holder.ray = OBJECT_STORE
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
