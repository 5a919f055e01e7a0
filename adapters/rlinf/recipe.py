"""Reads a recipe of RLinf: the file that its main function composes, and hydra's overrides."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from adapters.contract.layout import Layout
from adapters.contract.recipe import (
    MASKED_END,
    MASKED_SAMPLE,
    UNEVEN_GROUPS,
    Recipe,
    RecipeRefused,
    flat,
    nested_yaml,
    options_of,
    refusals_of_recipes,
)
from adapters.rlinf import importing

if TYPE_CHECKING:
    from adapters.contract.recipe import Typed
    from adapters.rlinf.adapter import RlinfFsdpAdapter

GPUS = 8
"""The GPUs of a node, where a placement on all of them does not say how many they are."""


def read(adapter: RlinfFsdpAdapter, typed: Typed) -> Recipe:
    """Read a recipe as RLinf composes and validates it; raises `RecipeRefused`."""
    with refusals_of_recipes():
        config = _composed(typed)
        if config.runner.task_type != "reasoning" or config.actor.training_backend != "fsdp":
            raise RecipeRefused("only recipes of `reasoning` on FSDP are read")
        by_user = _named(config)
        ranks = typed.ranks or GPUS * int(config.cluster.num_nodes)
        values = _named(importing.validated(config, ranks))
    per_prompt, steps = int(values["algorithm.group_size"]), int(values["algorithm.n_minibatches"])
    samples = int(values["data.rollout_batch_size"]) * per_prompt // steps
    by_tokens = bool(values.get("runner.enable_dynamic_batch_size"))
    is_packed = by_tokens or bool(values.get("actor.model.variable_seq_lengths"))
    # What follows from other options is none that a user has set.
    following = {name: one for name, one in values.items() if name not in by_user}
    defaults = {name: importing.default(name) for name in values} | following
    rows = int(values["actor.micro_batch_size"])
    return Recipe(
        engine=str(values["actor.fsdp_config.strategy"]),
        values=values,
        defaults=defaults,
        layout=Layout(
            dp=ranks,
            micro_batches="tokens" if by_tokens else max(samples // ranks // rows, 1),
            format="thd" if is_packed else "bshd",
            options=options_of(adapter.framework, values, defaults),
        ),
        samples=samples,
        per_prompt=per_prompt,
        steps=steps,
        longest=int(values["runner.seq_length"]) - int(values["data.max_prompt_length"]),
        # A rollout of reasoning has one turn, and all of its tokens are trained on.
        unlike=frozenset({MASKED_SAMPLE, MASKED_END, UNEVEN_GROUPS}),
    )


def _composed(typed: Typed) -> Any:
    """The configuration that RLinf's main function is given for a file and words."""
    from hydra import compose, initialize_config_dir

    if typed.file is None:
        raise RecipeRefused("RLinf's main function composes a file, which is not given")
    nested_yaml(typed.file)  # says in one line that it is no YAML
    file = typed.file.absolute()
    with initialize_config_dir(str(file.parent), version_base="1.1"):
        return compose(file.stem, overrides=[*typed.words])


def _named(config: Any) -> dict[str, Any]:
    from omegaconf import OmegaConf

    whole: Any = OmegaConf.to_container(config, resolve=True)
    return dict(flat(whole))
