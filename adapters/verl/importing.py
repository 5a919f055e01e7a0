"""Imports verl on a machine without its GPU packages."""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

from adapters.toolkit.imports import import_from, modules_of

if TYPE_CHECKING:
    from pathlib import Path

module = modules_of("verl")


def import_verl(source: Path | None) -> None:
    """Import verl; what is imported of it later is to find no TRL."""
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")  # compiling takes longer than any step
    import_from("verl", [source] if source else [])
    _keep_trl_out_of_sight()


def has_default_trainer() -> bool:
    """Whether this version has the default trainer; if not, only the legacy one exists."""
    try:
        trainer = module("trainer.ppo.v1.trainer_sync").PPOTrainerSync
    except ModuleNotFoundError:
        return False
    return hasattr(trainer, "_step_once")


def _keep_trl_out_of_sight() -> None:
    """Make verl find no TRL, whose value heads newer releases have moved or dropped.

    verl patches them before it builds any model, and supports only TRL 0.27.0. Modules import
    the name of the answer from this one later.
    """
    module("utils.import_utils").is_trl_available = lambda: False


def name_what_transformers_has_renamed() -> None:
    """Add the old name of a class that transformers 5 renamed, for versions before 0.7.1."""
    try:
        module("utils.model")
    except ImportError:
        transformers: Any = importlib.import_module("transformers")
        transformers.AutoModelForVision2Seq = transformers.AutoModelForImageTextToText


def pack_without_flash_attention() -> None:
    """Make versions before 0.9.1 pack rows with transformers' functions of the same names."""
    packing = module("utils.attention_utils")
    try:
        packing._get_attention_functions()
    except ModuleNotFoundError:
        own: Any = importlib.import_module("transformers.modeling_flash_attention_utils")
        functions = (own._index_first_axis, own._pad_input, None, own._unpad_input)
        packing._get_attention_functions = lambda: functions
