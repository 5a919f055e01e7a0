"""Imports ROLL's pipeline and workers on a machine without GPUs, and puts the probe into them."""

from __future__ import annotations

import importlib
import logging
import os
from functools import cache
from typing import TYPE_CHECKING, Any

from adapters.toolkit.imports import import_from, stub, stub_missing

if TYPE_CHECKING:
    from pathlib import Path

SERVICES = ("gem", "imageio", "modelscope", "more_itertools", "nltk", "openai")
"""Packages of environments, rewards and downloads, which no training step of ours enters."""

RENAMED = {"AutoModelForVision2Seq": "AutoModelForImageTextToText"}
"""Classes that versions before March 10, 2026, import by names that transformers 5 has dropped."""

TRACES = ("opentelemetry.exporter.otlp.proto.grpc", "roll.utils.otel_receiver")
"""Where traces are sent to, and a server that receives them."""

STUBBED: list[str] = []  # what `import_roll` stubbed in this process


def import_roll(source: Path | None) -> None:
    """Import ROLL's pipeline with its FSDP2 engine, from the folder of a checkout if given."""
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")  # compiling takes longer than any step
    _stub_services()
    _name_as_before()
    import_from("roll", [source] if source else [])
    _write_no_log_files()
    module("pipeline.rlvr.rlvr_pipeline")
    _let_a_cpu_do()
    _add_the_seams()


def module(path: str) -> Any:
    """Import a module of ROLL by its path below the package."""
    return importlib.import_module(f"roll.{path}")


@cache
def _stub_services() -> None:
    stub(TRACES)
    STUBBED.extend([*stub_missing(SERVICES), *TRACES])


@cache
def _name_as_before() -> None:
    importlib.import_module("peft")  # which has transformers imported anew
    transformers = importlib.import_module("transformers")
    for old, new in RENAMED.items():
        if not hasattr(transformers, old):
            setattr(transformers, old, getattr(transformers, new))
    # transformers asks for flash_attn when it is imported, and must not find our stand-in.
    importlib.import_module("transformers.integrations.flash_attention")
    STUBBED.extend(stub_missing(["flash_attn"]))


@cache
def _write_no_log_files() -> None:
    """ROLL's loggers write to a file in the current folder as soon as its modules are imported."""
    module("utils.logging").get_logger = lambda: logging.getLogger("roll")


@cache
def _let_a_cpu_do() -> None:
    """Let ROLL's platform of CPUs answer what those of accelerators do."""
    platform = module("platforms").current_platform
    nothing = ("empty_cache", "reset_max_memory_allocated", "reset_max_memory_cached")
    for name in (*nothing, "reset_peak_memory_stats"):
        setattr(platform, name, lambda *_: None)
    used = ("memory_allocated", "memory_reserved", "max_memory_reserved", "device_memory_used")
    for name in (*used, "max_memory_allocated"):
        setattr(platform, name, lambda *_: 0)
    platform.apply_ulysses_patch = lambda: True
    module("distributed.scheduler.decorator").clear_memory = lambda: None


@cache
def _add_the_seams() -> None:
    """Add the probe where the engine computes log-probabilities and entropies."""
    from adapters.roll.model import with_entropies, with_probe

    engine, functions = module("distributed.strategy.fsdp2_strategy"), module("utils.functionals")
    engine.log_probs_from_logits = with_probe(engine.log_probs_from_logits)
    functions.entropy_from_logits = with_entropies(functions.entropy_from_logits)
