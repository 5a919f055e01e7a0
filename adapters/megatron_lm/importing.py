"""Imports `train_rl.py` with the Megatron-Core of the same repository, without GPUs."""

from __future__ import annotations

import importlib.util
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from adapters.toolkit import cuda_on_cpu, imports
from adapters.toolkit.worlds import sum_gradients_of_all_gather

if TYPE_CHECKING:
    from pathlib import Path

KERNELS = "transformer_engine_torch"
"""The package of Transformer Engine's kernels."""


def import_training(source: Path | None) -> None:
    """Import the trainer; raises `WrongSourceError` if Megatron-Core is from another source."""
    cuda_on_cpu.install()
    cuda_on_cpu.replace_streams()
    # Megatron-LM requires no environment variables for the device that is described here.
    cuda_on_cpu.describe_the_device()
    sum_gradients_of_all_gather()
    imports.add_names_of_newer_python("override")
    _provide_partition()
    imports.stub_imports("adapters.megatron_lm")
    imports.import_from("megatron", [source] if source else [])
    core = importlib.import_module("megatron.core")
    if source is not None and not str(core.__file__).startswith(str(source.resolve())):
        raise imports.WrongSourceError(
            f"megatron.core came from {core.__file__}, and not from {source}"
        )
    importlib.import_module("train_rl")
    _remember_docstrings()


def _remember_docstrings() -> None:
    """Cache the help texts of a class of options, because reading them takes longer than a step."""
    home = importlib.import_module("megatron.training.argument_utils")
    factory = home.ArgumentGroupFactory
    read = cache(partial(factory._get_field_docstrings, object.__new__(factory)))
    factory._get_field_docstrings = lambda _, options: read(options)


def _provide_partition() -> None:
    """Give Megatron-Core the only function of these kernels that it needs: to split packed rows."""
    if importlib.util.find_spec(KERNELS) is None:
        imports.provide(KERNELS, thd_get_partitioned_indices=partitioned)


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
