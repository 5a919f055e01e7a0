"""Reads a recipe of ms-swift: the words of ``swift rlhf``, or a file of options."""

from __future__ import annotations

import json
import os
from contextlib import ExitStack
from dataclasses import fields
from math import ceil
from typing import TYPE_CHECKING, Any
from unittest import mock

from adapters.contract import Adapter, Option, recipe
from adapters.engines.shells import DEFAULT_STAGE, STAGES
from adapters.toolkit.imports import found

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

OF_MACHINE = (
    *("--use_cpu", "true", "--bf16", "false", "--fp16", "false"),
    *("--report_to", "none", "--output_dir", "nowhere"),
)
"""Options by which a recipe for GPUs is read on a machine without GPUs."""

LEAST = ("--rlhf_type", "grpo", "--model", "a_model", "--dataset", "a_dataset")
"""Options that ms-swift requires of every user."""

FITTING = 8
"""A number of ranks with which all defaults of ms-swift are consistent."""

BEFORE_A_RUN = (
    "_add_version",
    "_import_external_plugins",
    "_init_external_vllm",
    "_init_stream",
    "_init_torch_dtype",
)
"""Methods of arguments that do more than validate: they look up models, call servers or run users'
code."""

OF_LAYERS = ("base_args.template_args:TemplateArguments", "tuner_args:TunerArguments")
"""Arguments whose validation depends on the model: its template and the trained layers."""

SIZES = frozenset(
    {
        *("num_generations", "sequence_parallel_size", "generation_batch_size"),
        *("deepspeed", "cosine_max_len"),
    }
)
"""Options that determine layout and samples, or that follow from another option."""


def read(adapter: Adapter, typed: recipe.Typed) -> recipe.Recipe:
    """Read a recipe with ms-swift's own arguments; raises `RecipeRefused`."""
    if adapter.engine == "megatron":
        raise recipe.RecipeRefused("recipes of its trainer on Megatron-Core are not read yet")
    ranks = typed.ranks or 1
    with recipe.refusals_of_recipes():
        values = _values([*_words_of(typed.file), *typed.words], ranks)
    if values["rlhf_type"] != "grpo":
        raise recipe.RecipeRefused(
            f"rlhf_type={values['rlhf_type']} has a trainer that is not driven"
        )
    engine, stage = _engine(values)
    accumulated, cp = values["gradient_accumulation_steps"], values["sequence_parallel_size"]
    per_generation, rows = values["steps_per_generation"], values["per_device_train_batch_size"]
    samples = rows * accumulated * ranks
    options = {
        Option.SHARED_GENERATION: per_generation > accumulated,
        Option.MASKED_TRUNCATION: values["overlong_filter"],
        **{one: number == stage for one, number in STAGES.items()},
    }
    return recipe.Recipe.cut(
        recipe.grid_of(ranks, cp),
        engine=engine,
        values=values,
        defaults=_values(LEAST, FITTING),
        samples=samples,
        rows=rows,
        is_packed=values["padding_free"],
        options=tuple(one for one, is_on in options.items() if is_on),
        per_prompt=values["num_generations"],
        steps=ceil(per_generation / accumulated),
        generations=ceil(accumulated / per_generation),
        longest=values["max_completion_length"],
        sizes=SIZES,
        # Only a user's multi-turn scheduler can mask all labels of a sample.
        unlike=frozenset() if values["multi_turn_scheduler"] else frozenset({recipe.MASKED_SAMPLE}),
    )


def _words_of(file: Path | None) -> Iterator[str]:
    """The words of a file of options, which ms-swift's command takes instead of words."""
    for name, value in recipe.nested_yaml(file).items():
        yield f"--{name}"
        values = value if isinstance(value, list) else [value]
        yield from (json.dumps(one) if isinstance(one, dict) else str(one) for one in values)


def _values(words: Sequence[str], ranks: int) -> dict[str, Any]:
    """All fields of the arguments, as ms-swift validates them for this number of ranks."""
    kind: Any = found("swift.arguments:RLHFArguments")
    config: Any = found("swift.rlhf_trainers:GRPOConfig")
    with ExitStack() as stack:
        # 0 stands for any free port
        stack.enter_context(mock.patch.dict(os.environ, {"MASTER_PORT": "0"}))
        for name in BEFORE_A_RUN:
            stack.enter_context(mock.patch.object(kind, name, return_value=None))
        for path in OF_LAYERS:
            section = found(f"swift.arguments.{path}")
            stack.enter_context(mock.patch.object(section, "__post_init__", return_value=None))
        # ms-swift would look these attributes up for a recipe's model
        unread = mock.patch.multiple(kind, create=True, model_info=None, model_meta=None)
        stack.enter_context(unread)
        stack.enter_context(mock.patch.object(config, "world_size", ranks))
        read, left = found("swift.utils:parse_args")(kind, [*words, *OF_MACHINE])
    if left:
        raise recipe.RecipeRefused(f"ms-swift does not know {' '.join(left)}")
    made = vars(read.training_args)
    return {one.name: made.get(one.name, getattr(read, one.name)) for one in fields(kind)}


def _engine(values: dict[str, Any]) -> tuple[str, int | None]:
    """The engine that a recipe trains with, and its ZeRO stage."""
    if values["deepspeed"]:
        from transformers.integrations.deepspeed import HfDeepSpeedConfig

        config = HfDeepSpeedConfig(values["deepspeed"])
        return "deepspeed", config.get_value("zero_optimization.stage", DEFAULT_STAGE)
    return ("fsdp2" if values["fsdp"] else "ddp"), None
