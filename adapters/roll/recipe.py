"""Reads a recipe of ROLL: the YAML file of an RLVR pipeline, and values by dotted names."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

from adapters.contract import Adapter, recipe
from adapters.engines.shells import PARALLEL_SIZES
from adapters.roll import importing
from adapters.roll.framework import ENGINE, SIZES

if TYPE_CHECKING:
    from collections.abc import Iterator

OF_HYDRA = ("defaults", "hydra")
"""Sections of a file that are not options of ROLL."""

STRATEGIES = {"megatron_train": "megatron", "fsdp2_train": "fsdp2"}
ULYSSES = "actor_train.model_args.ulysses_size"
MEGATRON = tuple(f"{ENGINE}.{name}" for name in PARALLEL_SIZES)
OF_STEP = tuple(
    f"{SIZES}.{name}" for name in ("per_device_train_batch_size", "gradient_accumulation_steps")
)
STRATEGY = "actor_train.strategy_args.strategy_name"


def read(adapter: Adapter, typed: recipe.Typed) -> recipe.Recipe:
    """Read a recipe with ROLL's own configuration; raises `RecipeRefused`.

    ROLL's reader ignores unknown options.
    """
    from omegaconf import OmegaConf

    with recipe.refusals_of_recipes():
        given = {n: v for n, v in recipe.nested_yaml(typed.file).items() if n not in OF_HYDRA}
        merged = OmegaConf.merge(OmegaConf.create(given), OmegaConf.from_dotlist([*typed.words]))
        whole: Any = OmegaConf.to_container(merged, resolve=True)
        values = dict(_named(importing.read(whole)))
    typed_by_user = {name for name, _ in recipe.flat(whole)}
    of_engine = {name: None for name in values if name.startswith(f"{ENGINE}.")}
    unset = {**dict(_named(importing.pipeline_config())), **of_engine}
    defaults = recipe.extend_defaults(unset, values, typed_by_user)
    engine = STRATEGIES.get(str(values.get(STRATEGY)), "fsdp2")
    mapped = values.get("actor_train.device_mapping") or [0]
    shared = MEGATRON if engine == "megatron" else (ULYSSES,)
    grid = recipe.grid_of(typed.ranks or len(mapped), *recipe.sizes_in(values, *shared))
    rows, count = recipe.sizes_in(values, *OF_STEP)
    by_tokens = bool(values.get("actor_train.use_dynamic_batching_in_train"))
    per_prompt = int(values["num_return_sequences_in_group"])
    of_batch = int(values["rollout_batch_size"]) * per_prompt
    samples = rows * count * grid.dp
    return recipe.Recipe.cut(
        grid,
        engine=engine,
        values=values,
        defaults=defaults,
        samples=samples,
        rows=None if by_tokens else rows,
        is_packed=bool(values.get("actor_train.use_sequence_packing")),
        options=recipe.options_of(recipe.record_of(adapter, engine), values, defaults),
        per_prompt=per_prompt,
        steps=max(of_batch // samples, 1) * int(values.get("ppo_epochs") or 1),
        longest=values.get("response_length"),
        sizes=frozenset({ULYSSES, *MEGATRON, STRATEGY}),
        unread=frozenset(typed_by_user - values.keys()),
    )


def _named(section: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield all options of sections and dictionaries, by dotted name."""
    pairs = (
        section.items()
        if isinstance(section, dict)
        else ((one.name, getattr(section, one.name, None)) for one in fields(section))
    )
    for name, value in pairs:
        if is_dataclass(value) or (isinstance(value, dict) and value):
            yield from _named(value, f"{path}{name}.")
        yield f"{path}{name}", value
