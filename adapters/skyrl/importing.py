"""SkyRL's package, imported from its source on a machine without its GPU packages."""

from __future__ import annotations

import importlib
import sys
import typing
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from adapters.toolkit import cuda_on_cpu
from adapters.toolkit.imports import import_from, stub_missing

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType


STUBBED: list[str] = []
"""Packages stubbed in this process."""


class PaddingMicroBatches:
    """Counts the micro-batches that SkyRL makes of padding alone, to give all ranks as many."""

    def __init__(self) -> None:
        self._made = 0
        self._counts = False

    def count(self) -> None:
        """From now on, those that the only method makes that makes any; older versions have none.

        A process may load several engines, and counts once.

        Raises:
            AttributeError: SkyRL makes them in another way.
        """
        if self._counts:
            return
        self._counts = True
        utils = module("backends.skyrl_train.workers.worker_utils")
        iterator = getattr(utils, "TokenBasedBatchIterator", None)
        if iterator is None:
            return
        make = iterator._create_padding_microbatch

        def counted(batches: Any) -> Any:
            self._made += 1
            return make(batches)

        iterator._create_padding_microbatch = counted

    def drain(self) -> int:
        """How many were made since last asked."""
        made, self._made = self._made, 0
        return made


PADDING_MICRO_BATCHES = PaddingMicroBatches()
"""Of this process, which trains one job at a time."""


def import_skyrl(source: Path | None) -> None:
    """Import what every engine needs, and let the dispatch hand chunks over without a Ray store."""
    _mend_dependencies()
    cuda_on_cpu.install()
    import_from("skyrl", [source, source / "skyrl-gym"] if source else [])
    # Both look for flash_attn and must not take our stub for the real one.
    module("backends.skyrl_train.utils.torch_utils")
    importlib.import_module("transformers.modeling_utils")
    _stub_flash_attn()
    module("backends.skyrl_train.distributed.dispatch").ray = SimpleNamespace(put=_itself)
    module("train.trainer")
    PADDING_MICRO_BATCHES.count()


def module(path: str) -> ModuleType | Any:
    """A module of SkyRL, by its path below the package."""
    return importlib.import_module(f"skyrl.{path}")


def ppo_utils() -> Any:
    """Where SkyRL keeps its losses and its reduction."""
    return module("backends.skyrl_train.utils.ppo_utils")


def _itself(chunk: Any) -> Any:
    return chunk


def _mend_dependencies() -> None:
    """Names that SkyRL's releases expect of Python 3.12 and of the ray of their time."""
    if sys.version_info < (3, 12):
        import typing_extensions

        typing.TypedDict = typing_extensions.TypedDict  # type: ignore[assignment]
    placement_group = importlib.import_module("ray.util.placement_group")
    strategies = importlib.import_module("ray.util.scheduling_strategies")
    placement_group.PlacementGroupSchedulingStrategy = strategies.PlacementGroupSchedulingStrategy


def _stub_flash_attn() -> None:
    """flash_attn has no CPU build; transformers has the same packing functions in plain torch."""
    missing = stub_missing(["flash_attn"])
    if not missing:
        return
    STUBBED.extend(missing)
    packing = importlib.import_module("transformers.modeling_flash_attention_utils")
    bert_padding = importlib.import_module("flash_attn.bert_padding")
    bert_padding.unpad_input = packing._unpad_input
    bert_padding.pad_input = packing._pad_input
