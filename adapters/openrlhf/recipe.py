"""Reads a recipe of OpenRLHF: the words of its command line."""

from __future__ import annotations

from adapters.contract import Adapter, Option, recipe
from adapters.openrlhf import importing
from adapters.openrlhf.framework import OPENRLHF

ACTOR_RANKS = ("--actor.num_nodes", "--actor.num_gpus_per_node")
RING = "--ds.ring_attn_size"


def read(adapter: Adapter, typed: recipe.Typed) -> recipe.Recipe:
    """Read a recipe with OpenRLHF's own script; raises `RecipeRefused`."""
    recipe.require_words(typed, "OpenRLHF")
    with recipe.refusals_of_recipes():
        values = importing.values(typed.words)
    defaults = importing.defaults()
    nodes, per_node = (int(values[name]) for name in ACTOR_RANKS)
    grid = recipe.grid_of(typed.ranks or nodes * per_node, cp=int(values[RING]))
    samples, per_prompt = values["--train.batch_size"], values["--rollout.n_samples_per_prompt"]
    of_batch = values["--rollout.batch_size"] * per_prompt
    by_tokens = bool(values["--train.dynamic_batch_enable"])
    options = recipe.options_of(OPENRLHF, values, defaults)
    if of_batch % samples and not by_tokens:
        options = (*options, Option.SHORT_BATCH)
    return recipe.Recipe.cut(
        grid,
        engine=adapter.engine,
        values=values,
        defaults=defaults,
        samples=samples,
        rows=None if by_tokens else values["--train.micro_batch_size"],
        is_packed=values["--ds.packing_samples"],
        options=options,
        per_prompt=per_prompt,
        steps=max(of_batch // samples, 1) * values["--train.max_epochs"],
        longest=values["--rollout.max_new_tokens"],
        unlike=frozenset()
        if samples % grid.dp or of_batch % samples
        else frozenset({recipe.UNEVEN_BATCH}),
        sizes=frozenset({*ACTOR_RANKS, RING, "--train.max_epochs"}),
    )
