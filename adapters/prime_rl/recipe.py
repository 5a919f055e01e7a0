"""Reads a recipe of prime-rl: a file and the words of its command ``rl``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from unittest import mock

from adapters.contract import Adapter, Option, recipe
from adapters.prime_rl.importing import module
from adapters.toolkit.imports import is_stub

if TYPE_CHECKING:
    from collections.abc import Mapping

OF_ORCHESTRATOR = {
    **dict.fromkeys(("seq_len", "batch_size", "token_batch_size", "group_size"), True),
    "train": {"filter_zero_advantages"},
}
"""The orchestrator's options that the record has, besides its algorithm."""

SIZES = frozenset({"model.cp", "orchestrator.group_size", "orchestrator.token_batch_size"})


def read(adapter: Adapter, typed: recipe.Typed) -> recipe.Recipe:
    """Read a recipe with prime-rl's own configuration; raises `RecipeRefused`."""
    with recipe.refusals_of_recipes(), _without_environments():
        kind = module("configs.rl").RLConfig
        of_file = ["@", str(typed.file)] if typed.file else []
        config = module("utils.config").cli(kind, args=[*of_file, *typed.words])
        default = kind(trainer={}, orchestrator={"train": {"source": [{"name": "any"}]}})
    model = config.trainer.model
    grid = recipe.grid_of(typed.ranks or _training_ranks(config.deployment), model.cp)
    orchestrator = config.orchestrator
    by_tokens = orchestrator.batch_size or orchestrator.token_batch_size // orchestrator.seq_len
    samples = max(by_tokens, 1)
    return recipe.Recipe.cut(
        grid,
        engine=adapter.engine,
        values=_values(config),
        defaults=_values(default),
        samples=samples,
        rows=None,
        is_packed=True,
        options=_options(model.dp_replicate, grid.dp),
        per_prompt=orchestrator.group_size,
        longest=orchestrator.train.source[0].sampling.max_completion_tokens,
        sizes=SIZES,
    )


def _options(replicas: int, dp: int) -> tuple[Option, ...]:
    """The layout option if parameters are replicated, on all ranks or on groups; else empty."""
    if replicas == 1:
        return ()
    return (Option.NOT_SHARDED if replicas == dp else Option.HYBRID_SHARDING,)


def _training_ranks(deployment: Any) -> int:
    """The number of GPUs of a run, without GPUs of inference."""
    if deployment.type == "single_node":
        return int(deployment.num_train_gpus)
    return int(deployment.num_train_nodes * deployment.gpus_per_node)


def _values(config: Any) -> dict[str, Any]:
    """All options by their names in the record; algorithms of all environments are one string."""
    orchestrator = config.orchestrator
    types = dict.fromkeys(one.algo.type for one in orchestrator.train.source)
    return {
        **dict(recipe.flat(config.trainer.model_dump())),
        **dict(recipe.flat(orchestrator.model_dump(include=OF_ORCHESTRATOR), "orchestrator.")),
        "orchestrator.algo.type": " and ".join(types),
    }


def _without_environments() -> Any:
    """Remove environments and renderers from recipes if the package that reads them is missing."""
    shared, orchestrator = module("configs.rl"), module("configs.orchestrator")
    if not is_stub(orchestrator.vf):
        return mock.patch.multiple(shared)
    orchestrator.vf.resolve_env_field = lambda data, _: data
    orchestrator.vf.SingleAgentEnvConfig.env_id = orchestrator.AutoRendererConfig.name = "any"
    propagate = shared.propagate_shared_fields

    def propagated(data: Any) -> Any:
        return propagate({**data, "orchestrator": _orchestrator(data.get("orchestrator", {}))})

    return mock.patch.object(shared, "propagate_shared_fields", propagated)


def _orchestrator(section: Mapping[str, Any]) -> dict[str, Any]:
    """The orchestrator's section without its environments and its renderer."""
    found = {name: value for name, value in section.items() if name != "renderer"}
    for use in {"train", "eval"} & found.keys():
        sources = [_source(one) for one in found[use].get("source", [])]
        found[use] = {**found[use], "source": sources}
    return found


def _source(section: Mapping[str, Any]) -> dict[str, Any]:
    """A source of samples without its environment."""
    left = {name: value for name, value in section.items() if name not in ("env", "serve")}
    return {"name": section.get("env", {}).get("taskset", {}).get("id"), **left}
