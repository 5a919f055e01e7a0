"""Reads a recipe of Megatron-LM's reinforcement learning: the words after ``train_rl.py``."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any
from unittest import mock

from adapters.contract.layout import Layout
from adapters.contract.recipe import (
    MASKED_END,
    MASKED_SAMPLE,
    Recipe,
    RecipeRefused,
    options_of,
    refusals_of_recipes,
    require_words,
)
from adapters.megatron_lm.driving import parsed_arguments
from adapters.megatron_lm.framework import PACKED, PER_TOKEN

if TYPE_CHECKING:
    from adapters.contract.recipe import Typed
    from adapters.megatron_lm.adapter import MegatronLmAdapter

PARALLEL = (
    "--context-parallel-size",
    "--tensor-model-parallel-size",
    "--pipeline-model-parallel-size",
)
OF_MACHINE = ("--perform-rl-step", "--transformer-impl=local", "--no-gradient-accumulation-fusion")
"""So that a recipe for GPUs is validated on a machine without any."""


def read(adapter: MegatronLmAdapter, typed: Typed) -> Recipe:
    """Read a recipe with Megatron-LM's own parser and validation; raises `RecipeRefused`."""
    require_words(typed, adapter.framework.title)
    ranks = typed.ranks or 1
    with (
        refusals_of_recipes(),
        mock.patch.dict(os.environ, {"WORLD_SIZE": str(ranks)}),
        parsed_arguments([*typed.words, *OF_MACHINE]) as args,
    ):
        values = _values(adapter, args)
    rows, is_packed = int(values["--micro-batch-size"]), bool(values[PACKED])
    if not values[PER_TOKEN] and (is_packed or rows > 1):
        raise RecipeRefused(f"micro-batches of several samples have no mode without {PER_TOKEN}")
    by_user = {word.partition("=")[0] for word in typed.words}
    # What follows from other options is none that a user has set.
    following = {name: one for name, one in values.items() if name not in by_user}
    known = adapter.parser._option_string_actions
    defaults = {name: known[name].default for name in values} | following
    cp, tp, pp = (int(values[name]) for name in PARALLEL)
    dp = max(ranks // (cp * tp * pp), 1)
    samples, per_prompt = int(values["--global-batch-size"]), int(values["--grpo-group-size"])
    collected = int(values["--grpo-prompts-per-step"]) * per_prompt
    return Recipe(
        engine=adapter.engine,
        values=values,
        defaults=defaults,
        layout=Layout(
            dp=dp,
            cp=cp,
            tp=tp,
            pp=pp,
            # One row at a time is what the record calls micro-batches by tokens.
            micro_batches="tokens" if rows == 1 else max(samples // dp // rows, 1),
            format="thd" if is_packed else "bshd",
            options=options_of(adapter.record, values, defaults),
        ),
        samples=samples,
        per_prompt=per_prompt,
        steps=max(collected // samples, 1) * int(values["--grpo-iterations"]),
        longest=int(values["--seq-length"]),
        sizes=frozenset(PARALLEL),
        # Every token of a response is trained on.
        unlike=frozenset({MASKED_SAMPLE, MASKED_END}),
    )


def _values(adapter: MegatronLmAdapter, args: Any) -> dict[str, Any]:
    """All options by their names on the command line, without those that turn others off."""
    return {
        name: getattr(args, action.dest)
        for name, action in adapter.parser._option_string_actions.items()
        if name.startswith("--") and not name.startswith("--no-") and hasattr(args, action.dest)
    }
