"""Reads a recipe of OpenRLHF: the words of its command line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from adapters.contract.layout import Layout, Option
from adapters.contract.recipe import (
    UNEVEN_BATCH,
    Recipe,
    options_of,
    refusals_of_recipes,
    require_words,
)
from adapters.openrlhf import importing

if TYPE_CHECKING:
    from adapters.contract.recipe import Typed
    from adapters.openrlhf.adapter import OpenRLHFAdapter

ACTOR_RANKS = ("--actor.num_nodes", "--actor.num_gpus_per_node")
RING = "--ds.ring_attn_size"


def read(adapter: OpenRLHFAdapter, typed: Typed) -> Recipe:
    """What OpenRLHF makes of a recipe; raises `RecipeRefused`."""
    require_words(typed, "OpenRLHF")
    with refusals_of_recipes():
        values = importing.values(typed.words)
    defaults = importing.defaults()
    nodes, per_node = (int(values[name]) for name in ACTOR_RANKS)
    cp = int(values[RING])
    dp = max((typed.ranks or nodes * per_node) // cp, 1)
    samples, per_prompt = values["--train.batch_size"], values["--rollout.n_samples_per_prompt"]
    of_batch = values["--rollout.batch_size"] * per_prompt
    by_tokens = bool(values["--train.dynamic_batch_enable"])
    options = options_of(adapter.framework, values, defaults)
    if of_batch % samples and not by_tokens:
        options = (*options, Option.SHORT_BATCH)
    return Recipe(
        engine=adapter.engine,
        values=values,
        defaults=defaults,
        layout=Layout(
            dp=dp,
            cp=cp,
            micro_batches="tokens" if by_tokens else _micro_batches(values, dp),
            format="thd" if values["--ds.packing_samples"] else "bshd",
            options=options,
        ),
        samples=samples,
        per_prompt=per_prompt,
        steps=max(of_batch // samples, 1) * values["--train.max_epochs"],
        longest=values["--rollout.max_new_tokens"],
        unlike=frozenset() if samples % dp or of_batch % samples else frozenset({UNEVEN_BATCH}),
        sizes=frozenset({*ACTOR_RANKS, RING, "--train.max_epochs"}),
    )


def _micro_batches(values: dict[str, Any], dp: int) -> int:
    """The micro-batches of a rank in an optimizer step."""
    count: int = values["--train.batch_size"] // (dp * values["--train.micro_batch_size"])
    return max(count, 1)
