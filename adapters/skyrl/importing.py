"""Imports SkyRL on a machine without its GPU packages."""

from __future__ import annotations

import importlib
import sys
import typing
from functools import cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from adapters.toolkit.imports import import_from, modules_of, stub_missing

if TYPE_CHECKING:
    from pathlib import Path

module = modules_of("skyrl")


STUBBED: list[str] = []  # packages stubbed in this process


class PaddingMicroBatches:
    """Counts the micro-batches of padding that SkyRL adds to give all ranks the same number."""

    made = 0

    def drain(self) -> int:
        """Return the number made since the last call."""
        made, self.made = self.made, 0
        return made


PADDING_MICRO_BATCHES = PaddingMicroBatches()
"""The counter of this process, which trains one job at a time."""


def import_skyrl(source: Path | None) -> None:
    """Import the modules of every engine and replace the dispatch's Ray object store."""
    from adapters.toolkit import cuda_on_cpu

    _patch_dependencies()
    cuda_on_cpu.install()
    import_from("skyrl", [source, source / "skyrl-gym"] if source else [])
    # Both look for flash_attn and must not find our stub.
    module("backends.skyrl_train.utils.torch_utils")
    importlib.import_module("transformers.modeling_utils")
    _stub_flash_attn()
    object_store = SimpleNamespace(put=lambda chunk: chunk)
    module("backends.skyrl_train.distributed.dispatch").ray = object_store
    module("train.trainer")
    _count_padding_micro_batches()


@cache
def _count_padding_micro_batches() -> None:
    """Count padding micro-batches in `PADDING_MICRO_BATCHES`; older versions make none."""
    utils = module("backends.skyrl_train.workers.worker_utils")
    iterator = getattr(utils, "TokenBasedBatchIterator", None)
    if iterator is None:
        return
    make = iterator._create_padding_microbatch

    def counted(batches: Any) -> Any:
        PADDING_MICRO_BATCHES.made += 1
        return make(batches)

    iterator._create_padding_microbatch = counted


def ppo_utils() -> Any:
    """Import the module of SkyRL's losses and reduction."""
    return module("backends.skyrl_train.utils.ppo_utils")


def _patch_dependencies() -> None:
    """Add names of Python 3.12 and of an older ray that SkyRL's releases import."""
    if sys.version_info < (3, 12):
        import typing_extensions

        typing.TypedDict = typing_extensions.TypedDict
    placement_group: Any = importlib.import_module("ray.util.placement_group")
    strategies = importlib.import_module("ray.util.scheduling_strategies")
    placement_group.PlacementGroupSchedulingStrategy = strategies.PlacementGroupSchedulingStrategy


def _stub_flash_attn() -> None:
    """Stub flash_attn, which has no CPU build, with the packing functions of transformers."""
    missing = stub_missing(["flash_attn"])
    if not missing:
        return
    STUBBED.extend(missing)
    packing = importlib.import_module("transformers.modeling_flash_attention_utils")
    bert_padding: Any = importlib.import_module("flash_attn.bert_padding")
    bert_padding.unpad_input = packing._unpad_input
    bert_padding.pad_input = packing._pad_input
