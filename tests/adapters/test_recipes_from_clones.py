"""Recipes of frameworks that are run from clones, read by their own parsers."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from adapters.contract import Layout, Option
from adapters.contract.objective import Objective
from adapters.contract.recipe import Recipe, Typed
from conformance.findings.errors import InvalidRecipeError
from conformance.recipes.matching import Match, match
from conformance.recipes.running import read
from conformance.runs import registry
from tests.adapters import steps
from tests.pools import NEEDS_CLONES, version_of

COMMITS = {
    "areal": "cbff54d",
    "nemo_rl": "7ea279a",
    "open_instruct": "e6c3044",
    "prime_rl": "559b447",
    "tunix": "c7d8950f",
}

AREAL, NEMO_RL, OPEN_INSTRUCT, PRIME_RL, TUNIX = (
    [*steps.marks(name), NEEDS_CLONES] for name in COMMITS
)


def read_from_clone(
    name: str, file: Path | None = None, words: Sequence[str] = ()
) -> tuple[Recipe, Match]:
    """The recipe as a framework reads it at its commit, and the matching part of its record."""
    adapter = registry.create(name)
    source = version_of(adapter, COMMITS[name])
    recipe = read(adapter, source, Typed(file=file, words=tuple(words)))
    assert adapter.framework is not None
    return recipe, match(adapter.framework, recipe)


OF_AREAL = """
experiment_name: some
trial_name: some
cluster: {fileroot: /tmp/some}
saver: &named {experiment_name: some, trial_name: some, fileroot: /tmp/some}
evaluator: *named
recover: *named
stats_logger: *named
perf_tracer: {experiment_name: some, trial_name: some, fileroot: /tmp/some}
train_dataset: {path: some, type: rl, batch_size: 64}
gconfig: {n_samples: 8, max_new_tokens: 512}
rollout: {backend: "sglang:d4", experiment_name: some, trial_name: some, fileroot: /tmp/some}
actor:
  experiment_name: some
  trial_name: some
  backend: "megatron:d2p2t2c2"
  mb_spec: {n_mbs: 4}
  ppo_n_minibatches: 2
  eps_clip: 0.3
  kl_ctl: 0.0
  use_decoupled_loss: true
  rejection_sampling: {metric: ratio, upper: 5.0}
  reward_norm: {mean_level: group, std_level: group, group_size: 8}
  adv_norm: {mean_level: batch, std_level: batch}
"""


class TestAReaL:
    pytestmark = AREAL

    @pytest.fixture
    def file(self, tmp_path: Path) -> Path:
        (path := tmp_path / "grpo.yaml").write_text(OF_AREAL)
        return path

    def test_file_is_read_with_words_that_change_it(self, file: Path) -> None:
        recipe, found = read_from_clone("areal", file, ["gconfig.max_new_tokens=1024"])

        assert recipe.engine == "megatron"
        assert recipe.layout == Layout(dp=2, cp=2, tp=2, pp=2, micro_batches=4, format="thd")
        assert (recipe.samples, recipe.per_prompt, recipe.steps) == (256, 8, 2)
        assert recipe.longest == 1024
        assert found.policy is Objective.REJECTION_OFF_POLICY
        assert found.estimator is Objective.GROUP_NORMALISED
        # Checks compare advantages before they are whitened, and losses with bounds on both sides.
        assert found.instead.keys() == {
            "adv_norm.mean_level",
            "adv_norm.std_level",
            "eps_clip_higher",
        }

    def test_ratios_of_another_kind_are_another_correction(self, file: Path) -> None:
        rejection = "actor.rejection_sampling"
        words = [f"{rejection}.metric=kl_k1", f"+{rejection}.level=sequence"]
        _, found = read_from_clone("areal", file, words)

        assert found.policy is Objective.SEQUENCE_MASKED

    def test_what_areal_refuses_is_refused_in_its_words(self, file: Path) -> None:
        with pytest.raises(InvalidRecipeError, match=r"AReaL refuses .* 'actor.colour'"):
            read_from_clone("areal", file, ["actor.colour=red"])
        with pytest.raises(InvalidRecipeError, match=r"AReaL refuses this recipe: .*deepspeed"):
            read_from_clone("areal", file, ["actor.backend=deepspeed:d2"])


class TestNemoRL:
    pytestmark = NEMO_RL

    def test_overrides_of_its_example_are_read(self) -> None:
        recipe, found = read_from_clone(
            "nemo_rl",
            words=[
                "cluster.gpus_per_node=8",
                "policy.train_global_batch_size=64",
                "policy.train_micro_batch_size=1",
                "policy.logprob_batch_size=1",
                "policy.sequence_packing.enabled=false",
                "policy.dtensor_cfg._v2=false",
                "loss_fn.token_level_loss=false",
                "loss_fn.sequence_level_importance_ratios=true",
                "loss_fn.use_kl_in_reward=true",
                "grpo.adv_estimator.normalize_rewards=false",
            ],
        )

        assert recipe.engine == "dtensor_v1"
        assert recipe.layout == Layout(dp=8, micro_batches=8)
        assert (recipe.samples, recipe.per_prompt, recipe.steps) == (64, 16, 8)
        assert (found.policy, found.estimator) == (Objective.GSPO, Objective.LEAVE_ONE_OUT)
        assert found.terms == ()  # the divergence is in rewards
        assert not found.instead

    def test_what_its_setup_refuses_is_refused_in_its_words(self) -> None:
        with pytest.raises(InvalidRecipeError, match=r"NeMo-RL refuses this recipe: .*colour"):
            read_from_clone("nemo_rl", words=["loss_fn.colour=red"])
        with pytest.raises(InvalidRecipeError, match="requires train_global_batch_size"):
            read_from_clone(
                "nemo_rl",
                words=["loss_fn.force_on_policy_ratio=true", "policy.train_global_batch_size=64"],
            )


OF_PRIME_RL = """
seq_len = 2048

[deployment]
num_train_gpus = 4
num_infer_gpus = 4

[orchestrator]
batch_size = 128
group_size = 16

[orchestrator.algo]
type = "max_rl"

[orchestrator.renderer]
name = "prime-qwen3"

[[orchestrator.train.source]]
name = "reverse-text"

[orchestrator.train.source.env.taskset]
id = "reverse-text"

[trainer.model]
cp = 2
"""


class TestPrimeRL:
    pytestmark = PRIME_RL

    @pytest.fixture
    def file(self, tmp_path: Path) -> Path:
        (path := tmp_path / "rl.toml").write_text(OF_PRIME_RL)
        return path

    def test_recipe_is_read_without_its_environments(self, file: Path) -> None:
        recipe, found = read_from_clone("prime_rl", file, ["--trainer.loss.kl-tau", "0"])

        assert recipe.layout == Layout(dp=2, cp=2, micro_batches="tokens", format="thd")
        assert (recipe.samples, recipe.per_prompt, recipe.longest) == (128, 16, None)
        assert recipe.values["orchestrator.seq_len"] == 2048
        assert (found.policy, found.estimator) == (Objective.DPPO_TV, Objective.MEAN_NORMALISED)
        assert not found.instead

    def test_what_prime_rl_refuses_is_refused_in_its_words(self, file: Path) -> None:
        with pytest.raises(InvalidRecipeError, match="Batch size must be divisible"):
            read_from_clone("prime_rl", file, ["--orchestrator.group-size", "7"])
        with pytest.raises(InvalidRecipeError, match="colour"):
            read_from_clone("prime_rl", file, ["--trainer.colour", "red"])


MODEL = ("--model_name_or_path", "a_model")


class TestOpenInstruct:
    pytestmark = OPEN_INSTRUCT

    def test_words_are_read(self) -> None:
        recipe, found = read_from_clone(
            "open_instruct",
            words=[
                *MODEL,
                *("--num_learners_per_node", "6", "--deepspeed_stage", "2"),
                *("--num_mini_batches", "2", "--num_unique_prompts_rollout", "48"),
                *("--beta", "0.0", "--load_ref_policy", "false"),
            ],
        )

        assert recipe.layout == Layout(
            dp=6,
            micro_batches="tokens",
            format="thd",
            options=(Option.SHARED_GENERATION, Option.ZERO_2),
        )
        assert (recipe.samples, recipe.per_prompt, recipe.steps) == (96, 4, 2)
        assert (found.reduction, found.estimator) == ("token", Objective.GROUP_CENTRED)
        assert found.terms == ()

    def test_what_open_instruct_refuses_is_refused_in_its_words(self) -> None:
        with pytest.raises(InvalidRecipeError, match="requires `deepspeed_stage` to be 3"):
            read_from_clone("open_instruct", words=[*MODEL, "--sequence_parallel_size", "2"])
        with pytest.raises(InvalidRecipeError, match="--colour"):
            read_from_clone("open_instruct", words=[*MODEL, "--colour", "red"])


class TestTunix:
    pytestmark = TUNIX

    def test_overrides_of_its_base_are_read(self) -> None:
        recipe, found = read_from_clone(
            "tunix",
            words=[
                *("batch_size=8", "grpo_config.num_generations=4", "grpo_config.beta=0.0"),
                "rl_training_config.eval_every_n_steps=10",
                "rl_training_config.mini_batch_size=4",
                "rl_training_config.train_micro_batch_size=2",
                "actor_model_config.mesh.shape=(2,4)",
            ],
        )

        assert recipe.layout == Layout(dp=2, tp=4, micro_batches=2)
        assert (recipe.samples, recipe.per_prompt, recipe.steps) == (16, 4, 2)
        assert found.reduction == "sequence-mean-token-mean"
        assert found.terms == ()

    def test_what_tunix_refuses_is_refused_in_its_words(self) -> None:
        with pytest.raises(InvalidRecipeError, match="colour"):
            read_from_clone("tunix", words=["grpo_config.colour=red"])
