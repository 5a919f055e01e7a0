"""Reads a recipe of RLinf: a file for its main function, and hydra's overrides."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from adapters.contract import recipe
from adapters.rlinf import importing
from adapters.toolkit.settings import composed, flattened

if TYPE_CHECKING:
    from adapters.rlinf.adapter import RlinfFsdpAdapter

GPUS = 8
"""The number of GPUs of a node, for placements on all GPUs, which do not give a number."""


def read(adapter: RlinfFsdpAdapter, typed: recipe.Typed) -> recipe.Recipe:
    """Read a recipe as RLinf composes and validates it; raises `RecipeRefused`."""
    with recipe.refusals_of_recipes():
        config = _composed(typed)
        if config.runner.task_type != "reasoning" or config.actor.training_backend != "fsdp":
            raise recipe.RecipeRefused("only recipes of `reasoning` on FSDP are read")
        by_user = flattened(config, resolve=True)
        ranks = typed.ranks or GPUS * int(config.cluster.num_nodes)
        values = flattened(importing.validated(config, ranks), resolve=True)
    per_prompt, steps = int(values["algorithm.group_size"]), int(values["algorithm.n_minibatches"])
    samples = int(values["data.rollout_batch_size"]) * per_prompt // steps
    by_tokens = bool(values.get("runner.enable_dynamic_batch_size"))
    is_packed = by_tokens or bool(values.get("actor.model.variable_seq_lengths"))
    unset = {name: importing.default(name) for name in values}
    defaults = recipe.extend_defaults(unset, values, by_user)
    rows = int(values["actor.micro_batch_size"])
    return recipe.Recipe.cut(
        recipe.grid_of(ranks),
        engine=str(values["actor.fsdp_config.strategy"]),
        values=values,
        defaults=defaults,
        samples=samples,
        rows=None if by_tokens else rows,
        is_packed=is_packed,
        options=recipe.options_of(adapter.framework, values, defaults),
        per_prompt=per_prompt,
        steps=steps,
        longest=int(values["runner.seq_length"]) - int(values["data.max_prompt_length"]),
        # A rollout of reasoning has one turn, and all of its tokens are trained on.
        unlike=frozenset({recipe.MASKED_SAMPLE, recipe.MASKED_END, recipe.UNEVEN_GROUPS}),
    )


def _composed(typed: recipe.Typed) -> Any:
    """The configuration that RLinf's main function gets for a file and words."""
    if typed.file is None:
        raise recipe.RecipeRefused("RLinf's main function composes a file, which is not given")
    recipe.nested_yaml(typed.file)  # refuses, in one line, a file that is not YAML
    return composed(typed.file, typed.words, version_base="1.1")
