"""Our implementation of a function of Transformer Engine, used if the package is not installed."""

from __future__ import annotations

import importlib.util
from typing import Any

from adapters.toolkit.imports import provide

KERNELS = "transformer_engine_torch"


def provide_partition() -> None:
    """Give Megatron-Core the only function that it needs to split packed rows among ranks."""
    if importlib.util.find_spec(KERNELS) is None:
        provide(KERNELS, thd_get_partitioned_indices=partitioned)


def partitioned(starts: Any, length: int, parts: int, part: int) -> Any:
    """The positions of a packed row that a context-parallel rank holds: [length / parts].

    Each sequence is cut into 2 · ``parts`` chunks; a rank has one from the front and one from the
    back. ``starts`` has the start of each sequence, and the end of the last one.
    """
    import torch

    held = []
    for start, end in zip(starts.tolist()[:-1], starts.tolist()[1:], strict=True):
        size = (end - start) // (2 * parts)
        for chunk in (part, 2 * parts - 1 - part):
            first = start + chunk * size
            held.append(torch.arange(first, first + size, dtype=torch.int32))
    return torch.cat(held)
