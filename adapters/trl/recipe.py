"""Reads a recipe of TRL: a file or words of ``trl grpo``, or a `GRPOConfig`."""

from __future__ import annotations

from dataclasses import fields
from math import ceil
from typing import TYPE_CHECKING, Any
from unittest import mock

from adapters.contract.layout import Option
from adapters.contract.recipe import Recipe, RecipeRefused, Typed, grid_of, refusals_of_recipes
from adapters.engines.shells import STAGES
from adapters.trl.importing import module

if TYPE_CHECKING:
    from collections.abc import Mapping

    from adapters.trl.adapter import TrlAdapter

NO_GPU = ("--use_cpu", "true")
"""Options by which a recipe for GPUs is read on a machine without GPUs."""

ENGINES = {"DEEPSPEED": "deepspeed", "FSDP": "fsdp2"}
"""Engines by the distributed type of Accelerate; all other types are DistributedDataParallel."""

SCRIPTS = {"rloo": "scripts.rloo"}
"""By engine, the script of ``trl`` that reads the engine's options; for engines not listed, ``trl
grpo`` reads them."""

STEPS, SAMPLES = "steps_per_generation", "generation_batch_size"

FITTING = 8
"""A number of ranks with which all defaults of TRL are consistent."""


def read(adapter: TrlAdapter, typed: Typed) -> Recipe:
    """Read a recipe with TRL's own parser; raises `RecipeRefused`."""
    _, config = adapter.classes()
    with refusals_of_recipes():
        launched = {} if typed.fields else _launched(adapter, config, typed)
        ranks = typed.ranks or int(launched.get("num_processes") or 1)
        values = dict(typed.fields) if typed.fields else _parsed(adapter, config, typed, ranks)
    engine, stage = _engine(adapter, values, launched)
    accumulated = values["gradient_accumulation_steps"]
    rows = values["per_device_train_batch_size"]
    samples = rows * accumulated * ranks
    per_generation = values.get(STEPS) or accumulated
    options = {
        Option.SPLIT_GENERATION: per_generation < accumulated,
        Option.SHARED_GENERATION: per_generation > accumulated,
        Option.MASKED_TRUNCATION: values.get("mask_truncated_completions"),
        **{one: number == stage for one, number in STAGES.items()},
    }
    return Recipe.cut(
        grid_of(ranks),
        engine=engine,
        values=values,
        defaults=_defaults(adapter, config, values),
        samples=samples,
        rows=rows,
        is_packed=adapter.engine == "async",
        options=tuple(one for one, is_on in options.items() if is_on),
        per_prompt=values.get("num_generations", 1),
        steps=ceil(per_generation / accumulated),
        generations=ceil(accumulated / per_generation),
        longest=values.get("max_completion_length"),
        ours=frozenset({"num_iterations", "max_steps"}),
    )


def _parser(adapter: TrlAdapter) -> Any:
    """The parser of TRL's own script."""
    script = module(SCRIPTS.get(adapter.engine, "scripts.grpo"))
    return script.make_parser(prog="trl")


def _words(typed: Typed) -> list[str]:
    return [*(["--config", str(typed.file)] if typed.file else []), *typed.words]


def _launched(adapter: TrlAdapter, config: Any, typed: Typed) -> Mapping[str, Any]:
    """The words that TRL's parser leaves over, as Accelerate reads them in ``trl grpo``.

    The configuration is not validated yet, because that requires the number of ranks.
    """
    from accelerate.commands.config.config_args import load_config_from_file
    from accelerate.commands.launch import launch_command_parser

    with mock.patch.object(config, "__post_init__", return_value=None):
        *_, left = _parser(adapter).parse_args_and_config(
            [*_words(typed), "--output_dir", ""], return_remaining_strings=True
        )
    words = module("cli.accelerate_config").resolve_accelerate_config_argument(left)
    launched, unknown = launch_command_parser().parse_known_args([*words, "a_script.py"])
    if unknown or launched.training_script != "a_script.py":
        raise RecipeRefused(f"neither TRL nor Accelerate knows {' '.join(unknown or words)}")
    of_file = vars(load_config_from_file(launched.config_file)) if launched.config_file else {}
    return {
        **of_file,
        **{name: value for name, value in vars(launched).items() if value not in (None, False)},
    }


def _parsed(adapter: TrlAdapter, config: Any, typed: Typed, ranks: int) -> dict[str, Any]:
    """All fields of the configuration, as TRL validates it for this number of ranks."""
    with mock.patch.object(config, "world_size", ranks):
        found = _parser(adapter).parse_args_and_config(
            [*_words(typed), *NO_GPU, "--output_dir", "nowhere"], return_remaining_strings=True
        )
    [made] = [one for one in found if isinstance(one, config)]
    return {one.name: getattr(made, one.name) for one in fields(config) if hasattr(made, one.name)}


def _defaults(adapter: TrlAdapter, config: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """TRL's options without a recipe, with sizes of generations that follow from other options."""
    sizes = {STEPS: values["gradient_accumulation_steps"], SAMPLES: values.get(SAMPLES)}
    found = _parsed(adapter, config, Typed(), FITTING)
    return {**found, **{name: size for name, size in sizes.items() if name in found}}


def _engine(
    adapter: TrlAdapter, values: Mapping[str, Any], launched: Mapping[str, Any]
) -> tuple[str, int | None]:
    """The engine that a recipe trains with, and its ZeRO stage."""
    if adapter.engine in ("rloo", "async"):
        return adapter.engine, None
    of_deepspeed = values.get("deepspeed")
    if of_deepspeed:
        from transformers.integrations.deepspeed import HfDeepSpeedConfig

        stage = HfDeepSpeedConfig(of_deepspeed).get_value("zero_optimization.stage", 0)
        return "deepspeed", stage
    if values.get("fsdp"):
        return "fsdp2", None
    kind = launched.get("distributed_type")
    of_file = launched.get("deepspeed_config") or {}
    stage = launched.get("zero_stage") or of_file.get("zero_stage")
    if launched.get("use_deepspeed"):
        return "deepspeed", int(stage) if stage else None
    if launched.get("use_fsdp"):
        return "fsdp2", None
    return ENGINES.get(str(getattr(kind, "value", kind)), "ddp"), int(stage) if stage else None
