"""Reads a recipe of verl: hydra's overrides, and a file of nested options."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from adapters.contract import Adapter, recipe
from adapters.engines.shells import PARALLEL_SIZES
from adapters.toolkit.settings import composed, flattened
from adapters.verl.framework import CHECKPOINT
from adapters.verl.importing import ACTOR, module, validate

if TYPE_CHECKING:
    from collections.abc import Sequence

SECTION = f"{ACTOR}."
"""The section that is left out in the option names of the record."""

MEGATRON = tuple(f"megatron.{name}" for name in PARALLEL_SIZES)
ULYSSES = "fsdp_config.ulysses_sequence_parallel_size"


def read(adapter: Adapter, typed: recipe.Typed) -> recipe.Recipe:
    """Read a recipe with verl's own configuration; raises `RecipeRefused`."""
    from omegaconf import OmegaConf

    with recipe.refusals_of_recipes():
        config = _composed(typed.words)
        if typed.file is not None:
            config = OmegaConf.merge(config, recipe.nested_yaml(typed.file))
        if typed.ranks:
            config.trainer.n_gpus_per_node, config.trainer.nnodes = typed.ranks, 1
        unresolved = flattened(config, SECTION)
        following = {name for name, value in unresolved.items() if "${" in str(value)}
        OmegaConf.resolve(config)
        # If a user does not say whether there is a critic, the advantage estimator decides.
        config.critic.enable = module("trainer.ppo.utils").need_critic(config)
        values = flattened(config, SECTION)
        for model in ("actor_rollout_ref.model", "critic.model"):
            # Validation reads the model's own configuration, and its tokenizer.
            OmegaConf.update(config, f"{model}.path", str(CHECKPOINT))
            OmegaConf.update(config, f"{model}.load_tokenizer", value=False, force_add=True)
        validate(config)
    engine = str(config.actor_rollout_ref.actor.strategy)
    # The word that chooses the engine also chooses other defaults.
    of_engine = [word for word in typed.words if word.startswith("model_engine=")]
    unset = flattened(_composed(of_engine), SECTION, resolve=True)
    defaults = recipe.extend_defaults(unset, values, values.keys() - following)
    ranks = int(config.trainer.n_gpus_per_node) * int(config.trainer.nnodes)
    shared = MEGATRON if engine == "megatron" else (ULYSSES,)
    grid = recipe.grid_of(ranks, *recipe.sizes_in(values, *shared))
    per_prompt = int(config.actor_rollout_ref.rollout.n)
    mini_batch = int(values["ppo_mini_batch_size"])
    samples = mini_batch * per_prompt
    rows = int(values.get("ppo_micro_batch_size_per_gpu") or samples // grid.dp)
    by_tokens = bool(values.get("use_dynamic_bsz"))
    return recipe.Recipe.cut(
        grid,
        engine=engine,
        values=values,
        defaults=defaults,
        samples=samples,
        rows=None if by_tokens else rows,
        is_packed=bool(values.get("actor_rollout_ref.model.use_remove_padding")),
        options=recipe.options_of(recipe.record_of(adapter, engine), values, defaults),
        per_prompt=per_prompt,
        steps=max(int(config.data.train_batch_size) // mini_batch, 1) * int(values["ppo_epochs"]),
        longest=config.data.max_response_length,
        sizes=frozenset({ULYSSES, *MEGATRON}),
        # Only tool outputs and rejected tokens are masked.
        unlike=frozenset() if _masks_tokens(config) else frozenset({recipe.MASKED_END}),
    )


def _masks_tokens(config: Any) -> bool:
    corrections = (config.algorithm, config.actor_rollout_ref.actor.policy_loss)
    rejects = any((one.get("rollout_correction") or {}).get("rollout_rs") for one in corrections)
    return rejects or bool(config.actor_rollout_ref.rollout.multi_turn.enable)


def _composed(words: Sequence[str]) -> Any:
    """The configuration that verl's main function gets for words."""
    folder = Path(module("trainer.config").__file__).parent
    return composed(folder / "ppo_trainer.yaml", words)
