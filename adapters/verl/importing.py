"""Imports verl on a machine without its GPU packages."""

from __future__ import annotations

import importlib
import importlib.util
import os
from functools import cache
from typing import TYPE_CHECKING, Any

from adapters.toolkit.imports import import_from

if TYPE_CHECKING:
    from pathlib import Path

ENGINE = "workers.engine.fsdp.transformer_impl"


def import_verl(source: Path | None) -> None:
    """Import the default trainer and its engine, and put the probe into them."""
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")  # compiling takes longer than any step
    import_from("verl", [source] if source else [])
    _put_the_probe_in()


@cache
def _put_the_probe_in() -> None:
    """Put the probe in once per process, for all engines."""
    import torch

    _keep_trl_out_of_sight()
    on_cpu = not torch.cuda.is_available()
    if on_cpu:
        _choose_the_cpu()
    _name_what_transformers_has_renamed()
    model = importlib.import_module("adapters.verl.model")
    model.register()
    engine, functional = module(ENGINE), module("utils.torch_functional")
    engine.logprobs_from_logits = model.with_probe(engine.logprobs_from_logits)
    functional.entropy_from_logits = model.with_entropies(functional.entropy_from_logits)
    if on_cpu:
        _let_engines_run_on_the_cpu(engine)
    _pack_without_flash_attention()
    workers = module("workers.engine_workers")
    if hasattr(workers, "CheckpointEngineRegistry"):  # versions before 2026 lack it
        workers.CheckpointEngineRegistry.new = lambda *_, **__: None
    importlib.import_module("adapters.verl.trainers.default").register_given_advantages()


def module(path: str) -> Any:
    """Import a module of verl by its path below the package."""
    return importlib.import_module(f"verl.{path}")


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


def _choose_the_cpu() -> None:
    """Make the CPU verl's device: by its platforms, or in older versions by torch's CPU."""
    if importlib.util.find_spec("verl.plugin") is None:
        importlib.import_module("adapters.verl.cpu_device").complete_torch_cpu()
    else:
        importlib.import_module("adapters.verl.cpu_platform").choose()


def _name_what_transformers_has_renamed() -> None:
    """Add the old name of a class that transformers 5 renamed, for versions before 0.7.1."""
    try:
        module("utils.model")
    except ImportError:
        transformers: Any = importlib.import_module("transformers")
        transformers.AutoModelForVision2Seq = transformers.AutoModelForImageTextToText


def _pack_without_flash_attention() -> None:
    """Make versions before 0.9.1 pack rows with transformers' functions of the same names."""
    packing = module("utils.attention_utils")
    try:
        packing._get_attention_functions()
    except ModuleNotFoundError:
        own: Any = importlib.import_module("transformers.modeling_flash_attention_utils")
        functions = (own._index_first_axis, own._pad_input, None, own._unpad_input)
        packing._get_attention_functions = lambda: functions


def _let_engines_run_on_the_cpu(engine: Any) -> None:
    """Register verl's engines for the CPU, and skip a check of torch's that requires a GPU."""
    register = module("workers.engine").EngineRegistry.register
    for model, of_model in (
        ("language_model", engine.FSDPEngineWithLMHead),
        ("value_model", engine.FSDPEngineWithValueHead),
    ):
        register(model_type=model, backend=["fsdp", "fsdp2"], device="cpu")(of_model)
    fsdp1: Any = importlib.import_module("torch.distributed.fsdp._init_utils")
    fsdp1._check_module_states_for_sync_module_states = lambda _: None
