"""Imports `train_rl.py` with the Megatron-Core of its own repository, on a machine without GPUs."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import typing
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from adapters.toolkit import cuda_on_cpu
from adapters.toolkit.imports import WrongSourceError, import_from, provide, stub_missing
from adapters.toolkit.worlds import sum_gradients_of_all_gather

if TYPE_CHECKING:
    from pathlib import Path

PACKAGES = ("aiohttp", "flask", "hypercorn", "openai", "quart", "uvloop", "wandb", "zmq")
KERNELS = "transformer_engine_torch"
STUBBED: list[str] = []  # packages that were stubbed in this process


def import_training(source: Path | None) -> None:
    """Import the trainer from a source; raises `WrongSourceError` if Megatron-Core is another."""
    cuda_on_cpu.install()
    cuda_on_cpu.replace_streams()
    _replace_properties_of_device()
    sum_gradients_of_all_gather()
    _add_names_of_newer_python()
    _provide_partition()
    STUBBED.extend(stub_missing(PACKAGES))
    import_from("megatron", [source] if source else [])
    core = importlib.import_module("megatron.core")
    if source is not None and not str(core.__file__).startswith(str(source.resolve())):
        raise WrongSourceError(f"megatron.core came from {core.__file__}, and not from {source}")
    importlib.import_module("train_rl")
    _remember_docstrings()


def _replace_properties_of_device() -> None:
    """Give the CUDA device the CPU's random state and a version, unless CUDA is available.

    From that version on Megatron-LM wants no environment variables for it.
    """
    import torch

    cuda: Any = torch.cuda
    if not cuda.is_available():
        cuda.get_rng_state = lambda device=None: torch.get_rng_state()
        cuda.set_rng_state = lambda state, device=None: torch.set_rng_state(state)
        cuda.get_device_properties = lambda device=None: SimpleNamespace(major=10, minor=0)


def _add_names_of_newer_python() -> None:
    """Add a name of Python 3.12 that Megatron-LM imports."""
    if sys.version_info < (3, 12):
        import typing_extensions

        typing.override = typing_extensions.override  # type: ignore[attr-defined,unused-ignore]


def _remember_docstrings() -> None:
    """Read the help texts of a class of options once, as that takes longer than a step."""
    home = importlib.import_module("megatron.training.argument_utils")
    factory = home.ArgumentGroupFactory
    read, known = factory._get_field_docstrings, dict[type, dict[str, str]]()

    def docstrings(made: Any, options: type) -> dict[str, str]:
        if options not in known:
            known[options] = read(made, options)
        return {**known[options]}

    factory._get_field_docstrings = docstrings


def _provide_partition() -> None:
    """Give Megatron-LM the one function of Transformer Engine's that context parallelism needs."""
    if importlib.util.find_spec(KERNELS) is None:
        provide(KERNELS, thd_get_partitioned_indices=partitioned)


def partitioned(starts: Any, length: int, parts: int, part: int) -> Any:
    """The positions of a packed row that a context-parallel rank holds: [length / parts].

    Each sequence is cut into 2 · ``parts`` chunks; a rank has one from the front and one from the
    back. ``starts`` are those of sequences, and the end of the last.
    """
    import torch

    held = []
    for start, end in zip(starts.tolist()[:-1], starts.tolist()[1:], strict=True):
        size = (end - start) // (2 * parts)
        for chunk in (part, 2 * parts - 1 - part):
            first = start + chunk * size
            held.append(torch.arange(first, first + size, dtype=torch.int32))
    return torch.cat(held)
