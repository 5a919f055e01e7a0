"""Reads a recipe of tunix: overrides as for ``grpo_main``, and a file of nested options."""

from __future__ import annotations

import math
import os
from dataclasses import asdict, fields, replace
from typing import TYPE_CHECKING, Any

from adapters.contract.recipe import Recipe, RecipeRefused, Typed, grid_of, refusals_of_recipes
from adapters.toolkit.imports import found
from adapters.tunix.adapter import CONFIGS, TunixAdapter

if TYPE_CHECKING:
    from collections.abc import Mapping

BASE = "base_config.yaml"
"""tunix's own configuration, which a user's configuration overrides."""

SHARDS = "tp"
"""The mesh axis over which a model's layers are sharded; all other axes split samples."""

SHORTEST = Typed(words=("rl_training_config.eval_every_n_steps=1",))
"""A recipe with only the options that every recipe must have."""

SIZES = frozenset({"gradient_accumulation_steps", "mesh.shape", "num_generations"})

PLAIN = (bool, int, float, str, type(None))
"""Types of options; other types are objects that save or log a run."""


def read(adapter: TunixAdapter, typed: Typed) -> Recipe:
    """Read a recipe with tunix's own configuration; raises `RecipeRefused`."""
    os.environ.setdefault("HF_TOKEN", "none")  # tunix requires a token before loading a tokenizer
    with refusals_of_recipes():
        parameters = _parameters(typed)
        values = _values(parameters)
        shape, axes = parameters.parse_mesh_config("actor_model_config")
    sizes = dict(zip(axes, shape, strict=True))
    tp = sizes.pop(SHARDS, 1)
    of_batch, per_prompt = parameters.config["batch_size"], values["num_generations"]
    prompts = values["mini_batch_size"] or of_batch
    of_pass = values["train_micro_batch_size"] or prompts
    return Recipe(
        engine=adapter.engine,
        values=values,
        defaults=_values(_parameters(SHORTEST)),
        # A micro-batch of tunix covers all ranks.
        layout=replace(
            grid_of(typed.ranks or math.prod(shape), tp=tp),
            micro_batches=max(prompts // of_pass, 1),
        ),
        samples=prompts * per_prompt,
        per_prompt=per_prompt,
        steps=max(of_batch // prompts, 1) * values["num_iterations"],
        longest=values["max_tokens_to_generate"],
        sizes=SIZES,
    )


def _parameters(typed: Typed) -> Any:
    """The parameters of a run, as ``grpo_main`` reads them."""
    of_file = [f"override_config_file={typed.file}"] if typed.file else []
    kind: Any = found("tunix.cli.config:HyperParameters")
    parameters = kind(["grpo_main", BASE, *of_file, *typed.words])
    if (mode := parameters.config.get("training_mode", "grpo")) != "grpo":
        raise RecipeRefused(f"training_mode={mode} has a learner that no adapter drives")
    return parameters


def _values(parameters: Any) -> dict[str, Any]:
    """All options by their names in the record, with defaults of tunix's dataclasses."""
    of_loss, of_training, _ = map(found, CONFIGS)
    chosen: Mapping[str, Any] = parameters.obtain_training_config_dict("rl_training_config")
    training = of_training(**{"actor_optimizer": None, **chosen})
    of_run = ((one.name, getattr(training, one.name)) for one in fields(training))
    rollout = parameters.config["rollout_config"]
    return {
        **asdict(of_loss(**parameters.config["grpo_config"])),
        **{name: value for name, value in of_run if isinstance(value, PLAIN)},
        "max_tokens_to_generate": rollout["total_generation_steps"],
        "temperature": rollout["temperature"],
        "mesh.shape": parameters.config["actor_model_config"]["mesh"]["shape"],
    }
