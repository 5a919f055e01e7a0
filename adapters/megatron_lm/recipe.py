"""Reads a recipe of Megatron-LM's reinforcement learning: the words after ``train_rl.py``."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING
from unittest import mock

from adapters.contract import recipe
from adapters.engines.shells import PARALLEL
from adapters.megatron_lm.driving import parsed_arguments
from adapters.megatron_lm.framework import PACKED, PER_TOKEN

if TYPE_CHECKING:
    from adapters.megatron_lm.adapter import MegatronLmAdapter

OF_MACHINE = ("--perform-rl-step", "--transformer-impl=local", "--no-gradient-accumulation-fusion")
"""Options by which a recipe for GPUs is validated on a machine without GPUs."""


def read(adapter: MegatronLmAdapter, typed: recipe.Typed) -> recipe.Recipe:
    """Read a recipe with Megatron-LM's own parser and validation; raises `RecipeRefused`."""
    recipe.require_words(typed, adapter.framework.title)
    ranks = typed.ranks or 1
    with (
        recipe.refusals_of_recipes(),
        mock.patch.dict(os.environ, {"WORLD_SIZE": str(ranks)}),
        parsed_arguments([*typed.words, *OF_MACHINE]) as args,
    ):
        of_parser = adapter.options.values(args)
        # Leave out options that turn other options off.
        values = {name: one for name, one in of_parser.items() if not name.startswith("--no-")}
    rows, is_packed = int(values["--micro-batch-size"]), bool(values[PACKED])
    if not values[PER_TOKEN] and (is_packed or rows > 1):
        raise recipe.RecipeRefused(
            f"micro-batches of several samples have no mode without {PER_TOKEN}"
        )
    by_user = {word.partition("=")[0] for word in typed.words}
    unset = {name: adapter.options.default(name) for name in values}
    defaults = recipe.extend_defaults(unset, values, by_user)
    samples, per_prompt = int(values["--global-batch-size"]), int(values["--grpo-group-size"])
    collected = int(values["--grpo-prompts-per-step"]) * per_prompt
    return recipe.Recipe.cut(
        recipe.grid_of(ranks, *recipe.sizes_in(values, *PARALLEL)),
        engine=adapter.engine,
        values=values,
        defaults=defaults,
        samples=samples,
        # The record has --micro-batch-size=1 for micro-batches by tokens, which have one row each.
        rows=None if rows == 1 else rows,
        is_packed=is_packed,
        options=recipe.options_of(adapter.record, values, defaults),
        per_prompt=per_prompt,
        steps=max(collected // samples, 1) * int(values["--grpo-iterations"]),
        longest=int(values["--seq-length"]),
        sizes=frozenset(PARALLEL),
        # Every response token is trained on, so none is masked.
        unlike=frozenset({recipe.MASKED_SAMPLE, recipe.MASKED_END}),
    )
