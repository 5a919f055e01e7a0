"""Imports TRL without network access."""

from __future__ import annotations

import importlib
import os
from functools import cache
from typing import TYPE_CHECKING

from adapters.toolkit.imports import import_from, modules_of

if TYPE_CHECKING:
    from pathlib import Path

module = modules_of("trl")

SETTINGS = {
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TORCHDYNAMO_DISABLE": "1",
    "TRL_EXPERIMENTAL_SILENCE": "1",
}
"""Environment variables: no hub, no threads of a tokenizer, nothing compiled."""

TRAINERS = ("trainer.grpo_trainer", "trainer.rloo_trainer")
"""The modules of the driven trainers."""


def import_trl(source: Path | None) -> None:
    """Import TRL's trainers, and register the model."""
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    import_from("trl", [source] if source else [])
    for trainer in TRAINERS:
        module(trainer)
    _put_the_probe_in()


@cache
def _put_the_probe_in() -> None:
    """Put the probe in once per process, for all engines."""
    model = importlib.import_module("adapters.trl.model")
    model.register()
    if has_fused_lm_head():
        return
    for trainer in map(module, TRAINERS):
        for name, with_probe in model.FUNCTIONS.items():
            if hasattr(trainer, name):
                setattr(trainer, name, with_probe(getattr(trainer, name)))


def needs_triton() -> bool:
    """Whether this version's fused LM head requires Triton, and Triton is missing."""
    kernel = "_ChunkedLogProbFunction"
    return has_fused_lm_head() and getattr(module("trainer.utils"), kernel, kernel) is None


def has_fused_lm_head() -> bool:
    """Whether this version computes log-probabilities without logits."""
    return hasattr(module("trainer.utils"), "add_fused_lm_head")
