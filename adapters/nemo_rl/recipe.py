"""Reads a recipe of NeMo-RL: a file for ``run_grpo.py --config``, and hydra's overrides."""

from __future__ import annotations

from contextlib import suppress
from typing import Any
from unittest import mock

from adapters.contract import Adapter, Option, recipe
from adapters.engines.shells import PARALLEL_SIZES
from adapters.nemo_rl.importing import example, loaded, module
from adapters.toolkit.settings import flattened

EXAMPLE = "grpo_math_1B.yaml"
"""The configuration that ``run_grpo.py`` starts from if its user names none."""

OF_DTENSOR = ("context_parallel_size", "tensor_parallel_size")
REPLICAS = "policy.dtensor_cfg.dp_replicate_size"
SIZES = frozenset(f"policy.dtensor_cfg.{name}" for name in OF_DTENSOR)
OF_ESTIMATOR = ("normalize_rewards", "use_leave_one_out_baseline")
"""Options that estimators read in their own section, and that the record has by their older names.
"""


class _ValidatedError(Exception):
    """NeMo-RL has reached its request for GPUs, so it accepts the recipe."""


def read(_: Adapter, typed: recipe.Typed) -> recipe.Recipe:
    """Read a recipe with NeMo-RL's own parser and validation; raises `RecipeRefused`."""
    from omegaconf import OmegaConf

    with recipe.refusals_of_recipes():
        composed = _composed(typed)
        following = {name for name, value in flattened(composed).items() if "${" in str(value)}
        config = _made(OmegaConf.to_container(composed, resolve=True))
        values = _values(config)
        _validate(config)
    defaults = _values(_made(OmegaConf.to_container(example(EXAMPLE), resolve=True)))
    grid = recipe.grid_of(_training_ranks(config), *_sizes(config.policy))
    samples = config.policy["train_global_batch_size"]
    per_prompt = config.grpo.num_generations_per_prompt
    is_packed, by_tokens = (
        values.get(f"policy.{name}.enabled") for name in ("sequence_packing", "dynamic_batching")
    )
    rows = config.policy["train_micro_batch_size"]
    return recipe.Recipe.cut(
        grid,
        engine=_engine(config.policy),
        values=values,
        defaults=recipe.extend_defaults(defaults, values, values.keys() - following),
        samples=samples,
        rows=None if is_packed or by_tokens else rows,
        is_packed=bool(is_packed),
        options=(Option.HYBRID_SHARDING,) if (values.get(REPLICAS) or 1) > 1 else (),
        per_prompt=per_prompt,
        steps=max(config.grpo.num_prompts_per_step * per_prompt // samples, 1),
        longest=config.policy["generation"]["max_new_tokens"],
        sizes=SIZES,
    )


def _composed(typed: recipe.Typed) -> Any:
    """The configuration that ``run_grpo.py`` composes from a file and words."""
    composed = loaded(typed.file) if typed.file else example(EXAMPLE).copy()
    ranks = [f"cluster.gpus_per_node={typed.ranks}", "cluster.num_nodes=1"] if typed.ranks else []
    return module("utils.config").parse_hydra_overrides(composed, [*typed.words, *ranks])


def _made(settings: Any) -> Any:
    return module("algorithms.grpo").MasterConfig(**settings)


def _values(config: Any) -> dict[str, Any]:
    """All options, by their names in the record."""
    values = dict(recipe.flat(config.model_dump()))
    for name in OF_ESTIMATOR:
        if (value := values.get(f"grpo.adv_estimator.{name}")) is not None:
            values[f"grpo.{name}"] = value
    return values


def _validate(config: Any) -> None:
    """Let NeMo-RL set up a run, up to its request for GPUs."""
    trainer = module("algorithms.grpo")
    config = config.model_copy(deep=True)
    config.checkpointing["checkpoint_dir"] = "nowhere"
    config.data["use_multiple_dataloader"] = False
    for_gpus = mock.Mock(side_effect=_ValidatedError)
    replaced: dict[str, Any] = {
        name: for_gpus
        for name in ("RayVirtualCluster", "prepare_segment_topology")
        if hasattr(trainer, name)
    }
    replaced |= {"Logger": mock.Mock(), "extract_necessary_env_names": lambda _: []}
    with mock.patch.multiple(trainer, **replaced), suppress(_ValidatedError):
        trainer.setup(config, None, [None], [None])
    trainer._create_advantage_estimator(config)


def _engine(policy: Any) -> str:
    """The worker that a recipe trains with."""
    if (policy.get("megatron_cfg") or {}).get("enabled"):
        return "megatron"
    return "dtensor_v2" if policy["dtensor_cfg"].get("_v2") else "dtensor_v1"


def _sizes(policy: Any) -> tuple[int, int, int]:
    """The numbers of context-, tensor- and pipeline-parallel ranks."""
    if _engine(policy) == "megatron":
        cp, tp, pp = (policy["megatron_cfg"][name] for name in PARALLEL_SIZES)
        return cp, tp, pp
    cp, tp = (policy["dtensor_cfg"][name] for name in OF_DTENSOR)
    return cp, tp, 1


def _training_ranks(config: Any) -> int:
    """The number of GPUs of a run, without GPUs that only generate."""
    ranks: int = config.cluster["gpus_per_node"] * config.cluster["num_nodes"]
    apart = config.policy["generation"]["colocated"]
    if apart["enabled"]:
        return ranks
    of_rollouts = apart["resources"]
    per_node: int = of_rollouts["gpus_per_node"] or config.cluster["gpus_per_node"]
    return ranks - per_node * (of_rollouts["num_nodes"] or 1)
