"""Reads a recipe of SkyRL: overrides as on its command line, and a file of nested options."""

from __future__ import annotations

import json
from typing import Any

from adapters.contract import Adapter, recipe
from adapters.engines.shells import PARALLEL_SIZES
from adapters.skyrl.importing import PACKING, module, options_of

OF_FSDP = "sequence_parallel_size"
SIZES = frozenset(
    f"trainer.{model}.{name}"
    for model in ("policy", "ref", "critic")
    for name in (OF_FSDP, *(f"megatron_config.{one}" for one in PARALLEL_SIZES))
)

ALGORITHM = "trainer.algorithm."
"""The section that is left out in the option names of the record."""


def read(adapter: Adapter, typed: recipe.Typed) -> recipe.Recipe:
    """Read a recipe with SkyRL's own configuration; raises `RecipeRefused`."""
    kind = module("train.config").SkyRLTrainConfig
    with recipe.refusals_of_recipes():
        of_file = [
            f"{name}={value if isinstance(value, str) else json.dumps(value)}"
            for name, value in recipe.flat(recipe.nested_yaml(typed.file))
        ]
        config = kind.from_cli_overrides([*of_file, *typed.words])
        if typed.ranks:
            config.trainer.placement.policy_num_gpus_per_node = typed.ranks
            config.trainer.placement.policy_num_nodes = 1
        config.trainer.logger = "console"  # other loggers require API keys
        module("train.utils.utils").validate_cfg(config)
    trainer = config.trainer
    engine = "megatron" if trainer.strategy == "megatron" else "fsdp"
    ranks = trainer.placement.policy_num_gpus_per_node * trainer.placement.policy_num_nodes
    grid = recipe.grid_of(ranks, *_sizes(trainer.policy, engine))
    per_prompt = config.generator.n_samples_per_prompt
    samples = trainer.policy_mini_batch_size * per_prompt
    budget = getattr(trainer, "max_tokens_per_microbatch", None) or 0
    rows = trainer.micro_train_batch_size_per_gpu
    is_packed = any(getattr(trainer, name, False) for name in PACKING)
    return recipe.Recipe.cut(
        grid,
        engine=engine,
        values=_named(config),
        defaults=_named(kind()),
        samples=samples,
        rows=None if budget > 0 else rows,
        is_packed=is_packed,
        per_prompt=per_prompt,
        steps=max(trainer.train_batch_size // trainer.policy_mini_batch_size, 1)
        * trainer.update_epochs_per_batch,
        sizes=SIZES,
        longest=config.generator.sampling_params.max_generate_length,
    )


def _sizes(policy: Any, engine: str) -> tuple[int, int, int]:
    """The policy's numbers of context-, tensor- and pipeline-parallel ranks."""
    if engine == "fsdp":
        return getattr(policy, OF_FSDP), 1, 1
    cp, tp, pp = (getattr(policy.megatron_config, name) for name in PARALLEL_SIZES)
    return cp, tp, pp


def _named(config: Any) -> dict[str, Any]:
    """All options by their names in the record."""
    return {name.removeprefix(ALGORITHM): value for name, value in options_of(config)}
