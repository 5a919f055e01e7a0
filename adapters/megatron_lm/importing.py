"""Imports `train_rl.py` with the Megatron-Core of the same repository, without GPUs."""

from __future__ import annotations

import importlib
from functools import cache, partial
from typing import TYPE_CHECKING

from adapters.engines.transformer_engine import provide_partition
from adapters.toolkit import cuda_on_cpu, imports
from adapters.toolkit.worlds import sum_gradients_of_all_gather

if TYPE_CHECKING:
    from pathlib import Path


def import_training(source: Path | None) -> None:
    """Import the trainer; raises `WrongSourceError` if Megatron-Core is from another source."""
    cuda_on_cpu.install()
    cuda_on_cpu.replace_streams()
    # a device for which Megatron-LM requires no environment variables
    cuda_on_cpu.describe_the_device()
    sum_gradients_of_all_gather()
    imports.add_names_of_newer_python("override")
    provide_partition()
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
