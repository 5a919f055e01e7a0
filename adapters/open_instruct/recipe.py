"""Reads a recipe of open-instruct: the words of the command line of ``grpo_fast.py``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from adapters.contract import Adapter, Option, recipe
from adapters.contract.tables import RecordFile
from adapters.open_instruct.framework import STAGES
from adapters.open_instruct.importing import config_classes, module

if TYPE_CHECKING:
    from collections.abc import Sequence

SET_BY_SCRIPT = RecordFile("adapters.open_instruct").variant("script").always
"""Defaults of ``grpo_fast.py`` as a script, which differ from the defaults of its fields."""

OF_SCRIPT = ("TokenizerConfig", "ModelConfig", "EnvsConfig")
"""The dataclasses that the script reads besides the options of a step and of its data."""

LEAST = ("--model_name_or_path", "a_model")
"""The words that every recipe must have."""

SIZES = frozenset({"num_learners_per_node", "sequence_parallel_size", "num_unique_prompts_rollout"})


def read(adapter: Adapter, typed: recipe.Typed) -> recipe.Recipe:
    """Read a recipe with open-instruct's own parser; raises `RecipeRefused`."""
    recipe.require_words(typed, "open-instruct")
    with recipe.refusals_of_recipes():
        values = _values(typed.words)
    cp = values["sequence_parallel_size"]
    per_prompt, steps = values["num_samples_per_prompt_rollout"], values["num_mini_batches"]
    samples = max(values["num_unique_prompts_rollout"] * per_prompt // steps, 1)
    rows = values["per_device_train_batch_size"]
    stage = {one: number for one, number in STAGES.items() if cp == 1}
    options = {
        **{one: values["deepspeed_stage"] == number for one, number in stage.items()},
        Option.SHARED_GENERATION: steps > 1,
        Option.TWO_EPOCHS: values["num_epochs"] > 1,
    }
    return recipe.Recipe.cut(
        recipe.grid_of(typed.ranks or sum(values["num_learners_per_node"]), cp),
        engine=adapter.engine,
        values=values,
        defaults=_values(LEAST),
        samples=samples,
        # With one row per micro-batch, rows are packed by tokens.
        rows=None if rows == 1 else rows,
        is_packed=rows == 1,
        options=tuple(one for one, is_on in options.items() if is_on),
        per_prompt=per_prompt,
        steps=steps * values["num_epochs"],
        longest=values["response_length"],
        sizes=SIZES,
    )


def _values(words: Sequence[str]) -> dict[str, Any]:
    """All options of a step and of its data, as the script reads and validates them."""
    script, (of_step, of_data) = module("grpo_fast"), config_classes()
    others = [getattr(script, name) for name in OF_SCRIPT]
    of_engine = module("data_loader").VLLMConfig
    parser = script.ArgumentParserPlus((of_step, of_data, of_engine, *others))
    parser.set_defaults(**SET_BY_SCRIPT)
    step, data, engine, *_ = parser.parse_args_into_dataclasses([*words])
    learners = tuple(step.num_learners_per_node)
    script.validate_configs(data, engine, learners, step.sequence_parallel_size)
    return {**vars(data), **vars(step)}
