"""Recipes of TRL and verl, read by their own parsers, and the answers on TRL's generations."""

from pathlib import Path

import pytest

from adapters.contract import Layout, Option
from adapters.contract.objective import Objective
from adapters.contract.recipe import Recipe, Typed
from conformance.findings.errors import InvalidRecipeError
from conformance.recipes.answer import Answer, answer_for_config, answered
from conformance.recipes.matching import match
from conformance.recipes.running import read
from conformance.runs import registry
from tests.adapters import steps

RECIPE = """
dataset_name: trl-lib/DeepMath-103K
loss_type: dapo
per_device_train_batch_size: 4
gradient_accumulation_steps: 8
steps_per_generation: 8
num_generations: 8
max_completion_length: 1024
accelerate_config: zero3
num_processes: 4
"""

TRL, VERL = steps.marks("trl"), steps.marks("verl")

SEVERAL_GENERATIONS = "Where an optimizer step has several generations"
ONE_GENERATION = "Where a generation is cut into several optimizer steps"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (path := tmp_path / "recipe.yaml").write_text(RECIPE)
    return path


def of_trl(file: Path, *words: str) -> Recipe:
    return read(registry.create("trl"), None, Typed(file=file, words=words))


class TestTrl:
    pytestmark = TRL

    def test_recipe_is_read_with_what_accelerate_is_given(self, file: Path) -> None:
        recipe = of_trl(file)

        assert recipe.engine == "deepspeed"
        assert recipe.layout == Layout(dp=4, micro_batches=8, options=(Option.ZERO_3,))
        assert (recipe.samples, recipe.per_prompt, recipe.steps) == (128, 8, 1)
        assert "loss_type" not in recipe.chosen  # which is the default
        assert of_trl(file, "--use_vllm", "true").chosen["use_vllm"] is True

    def test_generations_of_several_steps_and_of_parts_of_one_are_options(self, file: Path) -> None:
        half, twice = (of_trl(file, f"--steps_per_generation={n}") for n in (4, 16))

        assert Option.SPLIT_GENERATION in half.layout.options
        assert (half.steps, half.generations) == (1, 2)
        assert Option.SHARED_GENERATION in twice.layout.options
        assert (twice.steps, twice.generations) == (2, 1)

    @pytest.mark.parametrize(
        ("words", "complaint"),
        [
            (["--colour", "red"], "neither TRL nor Accelerate knows --colour"),
            (["--num_generations", "7"], r"must be divisible by num_generations \(7\)"),
            (["--steps_per_generation", "few"], "invalid int value: 'few'"),
        ],
    )
    def test_what_trl_refuses_is_refused_in_its_words(
        self, file: Path, words: list[str], complaint: str
    ) -> None:
        with pytest.raises(InvalidRecipeError, match=complaint):
            of_trl(file, *words)

    def test_configuration_of_accelerate_that_trl_lacks_is_refused_in_its_words(
        self, file: Path
    ) -> None:
        file.write_text(RECIPE.replace("zero3", "zero9"))

        with pytest.raises(InvalidRecipeError, match="zero9 is neither a file nor a valid config"):
            of_trl(file)

    @pytest.mark.parametrize(
        ("steps_per_generation", "reached"),
        [(8, []), (4, [SEVERAL_GENERATIONS]), (16, [ONE_GENERATION])],
    )
    def test_steps_per_generation_other_than_the_accumulation_is_reached(
        self, file: Path, steps_per_generation: int, reached: list[str]
    ) -> None:
        words = (f"--steps_per_generation={steps_per_generation}",)
        found = answered("trl", Typed(file=file, words=words), budget=0.0)

        assert _about_generations([one.says for one in found.reached]) == reached
        absent = _about_generations([one.says for one in found.not_reached])
        assert not {*reached} & {*absent}
        assert reached or absent == [SEVERAL_GENERATIONS, ONE_GENERATION]
        assert ("your gradient is right" in found.sentence) is (steps_per_generation != 4)
        assert ("right as TRL means it" in found.sentence) is (steps_per_generation == 16)
        assert found.is_right is (steps_per_generation != 4)
        shown = [one.finding for one in found.not_reached if one.finding]
        assert all(one.startswith(("weights/", "advantages.")) for one in shown)

    def test_configuration_object_is_read_by_its_fields(self) -> None:
        from trl import GRPOConfig

        config = GRPOConfig("nowhere", use_cpu=True, bf16=False, loss_type="grpo")
        found: Answer = answer_for_config(config, ranks=2, budget=0.0)

        assert found.chosen["loss_type"] == "grpo"
        assert found.engine == "ddp"
        assert found.is_right


def _about_generations(said: list[str]) -> list[str]:
    return [one for one in (SEVERAL_GENERATIONS, ONE_GENERATION) for each in said if one in each]


SIZES = (
    "data.train_batch_size=64",
    "actor_rollout_ref.actor.ppo_mini_batch_size=32",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4",
    "critic.ppo_micro_batch_size_per_gpu=4",
    "trainer.n_gpus_per_node=4",
)


class TestVerl:
    pytestmark = VERL

    def test_overrides_are_read_by_hydra(self) -> None:
        adapter = registry.create("verl")
        recipe = read(adapter, None, Typed(words=(*SIZES, "algorithm.adv_estimator=grpo")))
        assert adapter.framework is not None
        found = match(adapter.framework, recipe)

        assert recipe.layout == Layout(dp=4, micro_batches=2, format="thd")
        assert (recipe.samples, recipe.steps) == (32, 2)
        assert found.reduction == "token-mean"
        assert found.estimator is Objective.GROUP_NORMALISED

    def test_critic_and_shards_follow_from_options(self) -> None:
        adapter = registry.create("verl")
        of_shards = "actor_rollout_ref.actor.fsdp_config.fsdp_size=1"
        recipe = read(adapter, None, Typed(words=(*SIZES, of_shards)))
        assert adapter.framework is not None
        found = match(adapter.framework, recipe)

        assert Option.NOT_SHARDED in recipe.layout.options
        assert found.estimator is Objective.GAE
        assert Objective.VALUE in found.terms

    def test_what_verl_refuses_is_refused_in_its_words(self) -> None:
        adapter = registry.create("verl")
        with pytest.raises(InvalidRecipeError, match=r"Could not override 'algorithm\.colour'"):
            read(adapter, None, Typed(words=("algorithm.colour=red",)))
        with pytest.raises(InvalidRecipeError, match="train_batch_size"):
            read(adapter, None, Typed(words=(*SIZES, "data.train_batch_size=16")))
