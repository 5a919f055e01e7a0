"""Imports TRL without network access, and finds the options and functions of a version."""

from __future__ import annotations

import importlib
from dataclasses import fields
from functools import cache
from typing import TYPE_CHECKING, Any

from adapters.engines import trainers
from adapters.toolkit.imports import choices_in, import_from, modules_of
from adapters.toolkit.settings import KnownOptions

if TYPE_CHECKING:
    from pathlib import Path

    from adapters.contract.framework import Settings

module = modules_of("trl")

TRAINERS = ("trainer.grpo_trainer", "trainer.rloo_trainer")
"""The modules of the driven trainers."""

USES_OF_LIGER = ("compute_liger_loss", "_chunked_logps")
"""Methods of `GRPOTrainer` for a loss of Liger-Kernel, and for log-probabilities without logits."""


def set_environment() -> None:
    """Set environment variables that packages read at import; Triton is then for CPUs."""
    trainers.set_environment(TRITON_INTERPRET="1")


def import_trl(source: Path | None) -> None:
    """Import TRL's trainers, and register the model; raises `ImportError`."""
    set_environment()
    import_from("trl", [source] if source else [])
    for trainer in TRAINERS:
        module(trainer)
    # The kernel is None if the version's fused LM head requires Triton, and Triton is missing.
    kernel = "_ChunkedLogProbFunction"
    if has_fused_lm_head() and getattr(module("trainer.utils"), kernel, kernel) is None:
        importlib.import_module("triton")  # raises ImportError
    _put_the_probe_in()


@cache
def _put_the_probe_in() -> None:
    """Add the probe to TRL's functions, once per process, for all engines."""
    model = importlib.import_module("adapters.trl.model")
    model.register()
    if has_fused_lm_head():
        return
    for trainer in map(module, TRAINERS):
        for name, added in model.FUNCTIONS.items():
            if hasattr(trainer, name):
                setattr(trainer, name, model.adding(getattr(trainer, name), *added))


def has_fused_lm_head() -> bool:
    """Whether this version computes log-probabilities without logits."""
    return hasattr(module("trainer.utils"), "add_fused_lm_head")


def require_use_of_liger() -> None:
    """Import Liger-Kernel; raises `LookupError` if the loss does not depend on it."""
    importlib.import_module("liger_kernel")
    trainer = module("trainer.grpo_trainer").GRPOTrainer
    if not any(hasattr(trainer, name) for name in USES_OF_LIGER):
        raise LookupError("use_liger_kernel of this version replaces layers, but not the loss")


def offers(settings: Settings) -> bool:
    """Whether `GRPOConfig` has these fields, and the trainer implements the loss type."""
    loss_types = choices_in(module("trainer.grpo_trainer"), "loss_type")
    config = module("trainer.grpo_config").GRPOConfig
    return KnownOptions.read_fields({"loss_type": loss_types}, config).offers(settings)


def defaults() -> dict[str, Any]:
    """The defaults of `GRPOConfig`, by name."""
    return {one.name: one.default for one in fields(module("trainer.grpo_config").GRPOConfig)}


def option_names(trainer: type, config: type) -> set[str]:
    """The fields of a configuration that transformers' own trainer lacks, and their choices.

    Choices are the strings that the trainer compares a field with, as ``name=choice``.
    """
    from transformers import TrainingArguments

    names = {one.name for one in fields(config)} - {one.name for one in fields(TrainingArguments)}
    code = importlib.import_module(trainer.__module__)
    return names | {f"{name}={choice}" for name in names for choice in choices_in(code, name)}


def has_entropy_bonus() -> bool:
    """Whether all loss types have the same entropy bonus, as since 1.10."""
    loss = module("trainer.grpo_trainer").GRPOTrainer._compute_loss
    return "accumulation_factor" in loss.__code__.co_varnames
