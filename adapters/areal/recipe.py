"""Reads a recipe of AReaL: the YAML file of an experiment, and values by dotted names."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from adapters.areal.importing import module
from adapters.contract import Adapter, recipe
from adapters.toolkit.settings import flattened

if TYPE_CHECKING:
    from collections.abc import Iterator

BACKENDS = {"fsdp": "fsdp2", "megatron": "megatron"}
"""The adapter's engine for each name that users type."""

ACTOR = "actor."
"""The section that is left out in the option names of the record."""

TUNING = {"rejection_sampling.metric", "rejection_sampling.agg"}
"""Options that alone choose nothing, because other options turn their section on."""


def read(adapter: Adapter, typed: recipe.Typed) -> recipe.Recipe:
    """Read a recipe with AReaL's own parser; raises `RecipeRefused`."""
    from omegaconf import OmegaConf

    configs = module("api.cli_args")
    with recipe.refusals_of_recipes(), _as_a_file(typed) as file:
        parsed, _ = configs.parse_cli_args(["--config", str(file), *typed.words])
        merged = configs.to_structured_cfg(parsed, config_cls=configs.PPOConfig)
        config: Any = OmegaConf.to_object(merged)
        allocated = module("api.alloc_mode").ModelAllocation.from_str(config.actor.backend)
    if allocated.backend not in BACKENDS:
        raise recipe.RecipeRefused(f"no adapter drives AReaL with {config.actor.backend}")
    values = flattened(OmegaConf.structured(config), ACTOR)
    unset = flattened(OmegaConf.structured(configs.PPOConfig), ACTOR)
    defaults = recipe.extend_defaults(unset, values, flattened(parsed, ACTOR))
    if rejection := config.actor.rejection_sampling:
        of_section = {f"rejection_sampling.{one.name}": one.default for one in fields(rejection)}
        defaults |= {name: of_section[name] for name in TUNING}
    parallel, spec = allocated.parallel, config.actor.mb_spec
    dp, cp, tp, pp = (
        int(getattr(parallel, f"{name}_parallel_size"))
        for name in ("data", "context", "tensor", "pipeline")
    )
    per_prompt, steps = int(config.gconfig.n_samples), int(config.actor.ppo_n_minibatches)
    engine = BACKENDS[allocated.backend]
    return recipe.Recipe(
        engine=engine,
        values=values,
        defaults=defaults,
        layout=replace(
            recipe.grid_of(typed.ranks or dp * cp * tp * pp, cp, tp, pp),
            micro_batches="tokens" if spec.max_tokens_per_mb else int(spec.n_mbs or 1),
            format="thd",
            options=recipe.options_of(recipe.record_of(adapter, engine), values, defaults),
        ),
        samples=max(int(config.train_dataset.batch_size) * per_prompt // steps, 1),
        per_prompt=per_prompt,
        steps=steps,
        longest=config.gconfig.max_new_tokens,
        sizes=frozenset({"backend"}),
    )


@contextmanager
def _as_a_file(typed: recipe.Typed) -> Iterator[Path]:
    """The file for AReaL's parser, which accepts no recipe without a file."""
    from omegaconf import OmegaConf

    if typed.file is not None:
        recipe.nested_yaml(typed.file)  # refuses, in one line, a file that is not YAML
        yield typed.file.absolute()
        return
    with TemporaryDirectory() as folder:
        (file := Path(folder, "recipe.yaml")).write_text(
            OmegaConf.to_yaml(dict(typed.fields or {}))
        )
        yield file
