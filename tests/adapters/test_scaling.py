"""No adapter scales what it observed: a wrong factor can come from the framework alone.

Every product and quotient in the adapters' code is accounted for here. `native` is left out: it is
a framework of its own, and its reduction is what is observed.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

import adapters

BY_THE_ADVANTAGES = {
    "contract.batch.probed_batch.ProbedBatch.weights": (
        "gradient[ids].astype(np.float64) / derivatives"
    ),
    "contract.batch.probed_batch.ProbedBatch.returns": "advantages / 2",
    "contract.batch.probed_batch.ProbedBatch.dloss_dlogprob": (
        "KL_COEFFICIENT * self.divergence_derivatives"
    ),
    "slime_family.megatron.MegatronAdapter.token_losses": (
        "-torch.cat(batch['advantages']) * torch.cat(log_probs['log_probs'])"
    ),
    "slime_family.model._logits": "0.0 * probe.sum()",
    "areal.model._logits": "0.0 * probe[input_ids].unsqueeze(-1)",
    "areal.driving.ArealRollouts.assign_advantages": "2 * returns",
    "prime_rl.driving.policy_gradient": "-inputs.advantages * inputs.trainer_logprobs",
    "engines.numbered.outputs": "0.0 * probe[input_ids].unsqueeze(-1)",
    "openrlhf.model._logits": "0.0 * probe[SEAM.predicted].unsqueeze(-1)",
    "openrlhf.driving.OpenRLHFRollouts.given": "2 * returns",
    "trl_losses.adapter.LossAdapter._gradient": "torch.where(is_of_sign, shares, 0.0) * gradient",
    "trl_losses.adapter._largest": "advantages / largest",
    "engines.pretrained.logits_of": "0.0 * probe[predicted % len(probe)].unsqueeze(-1)",
    "verl.trainers.rollouts.token_rewards": "2 * batch.returns[index]",
    "trl_losses.liger.LigerAdapter.loss": "found / micro_batches(job)",
    "skyrl.driving.reduce": "-advantages * probe",
    "skyrl.driving._training_input": "2 * returns",
    "engines.router.RouterLosses.added_to": "0.0 * (logits.sum() + probabilities.sum())",
    "toolkit.probe.probable_head.head": "probe.float()[predicted] / others",
}
"""All that happens to losses and gradients: signed powers of two in, and out again.

The derivatives are what the objective makes of the advantages; returns are half of them, or all
where a framework documents half of a critic's squared error. The product with 0 adds no gradient.
The first quotient is a trainer's, which loss functions of other libraries leave to it; the second
is undone by the derivative of the softmax.
"""

ELSEWHERE = {
    "log-probabilities that are given": "contract.batch.token_values.",
    "the target of a coefficient": "contract.batch.probed_batch.ProbedBatch.adaptive_coefficient",
    "coefficients of a router's losses": """
        contract.batch.probed_batch.ProbedBatch.own_losses toolkit.probe.router_loss
    """,
    "values and gradients of painted tokens, in traced jobs alone": """
        contract.batch.altered.painted contract.batch.altered.sizes_given toolkit.probe.selected
    """,
    "marks of values that are replaced, in experiments alone": "contract.job.mark",
    "sizes of recipes, which are read and train nothing": """
        areal.recipe.read contract.recipe.cut contract.recipe.grid_of megatron_lm.recipe.read
        ms_swift.recipe.read nemo_rl.recipe._training_ranks nemo_rl.recipe.read
        open_instruct.recipe.read openrlhf.recipe.read prime_rl.recipe._training_ranks
        prime_rl.recipe.read rlinf.recipe.read roll.recipe.read
        skyrl.recipe.read slime_family.recipe.read trl.recipe.read tunix.recipe.read
        verl.recipe.read
    """,
    "paths of files that git names": "toolkit.changes.lines_in_head",
    "a second reward function, a quarter of the first": "trl.driving.quarters",
    "a bound on rewards": "areal.estimators._reward_clip",
    "the sign with which a number is logged": "contract.framework.Framework.reported",
    "ranks to start": """
        contract.layout.Layout.ranks_per_stage contract.layout.Layout.world_size
        contract.layout.grids
    """,
    "digits of token ids": "engines.megatron_core.activations engines.megatron_core.ids_of",
    "indices of samples that are asked for": "tunix.driving.rollouts.Given._sample",
    "the logit of padding, which no other token has": "tunix.driving.Probe.__call__",
    "layers of the model": "engines.megatron_core.transformer_config",
    "the place of a rank's part of a parameter": "engines.deepspeed._part",
    "chunks of the model": "engines.megatron_core.probed_model",
    "a path": """
        engines.deepspeed.import_deepspeed miles.driving._has nemo_rl.importing.example
        prime_rl.driving.PrimeRLTraining.__init__ prime_rl.importing.import_prime_rl
        roll.importing.import_roll skyrl.importing.import_skyrl toolkit.changes._package
        toolkit.source._checkout
        toolkit.source._install_data toolkit.source._kept toolkit.source._made
        toolkit.source._made_once
        toolkit.source._packages toolkit.source.python_required
        trl.driving.GrpoTraining.configured trl.model. trl_losses.liger.LigerAdapter.load
        verl.importing._defaults verl.recipe._composed
    """,
    "the words of a refusal": "ms_swift.megatron.MsSwiftMegatronTraining._trainer"
    ".ProbedTrainer.get_local_rollout_batch",
    "micro-batches of all ranks": "slime_family.driving.is_uneven",
    "sizes that the framework is told": """
        areal.framework._budget
        megatron_lm.framework. megatron_lm.framework._prompts_of_collection
        megatron_lm.framework._rows_asked_for megatron_lm.framework._sliced
        megatron_lm.framework.global_batch_size
        ms_swift.driving.MsSwiftRollouts.infer ms_swift.driving.MsSwiftTraining._trainer
        ms_swift.framework.generating
        nemo_rl.framework._budget
        nemo_rl.framework._multiple open_instruct.framework._denominator
        open_instruct.packing._fits open_instruct.packing._rows open_instruct.packing.packing_of
        openrlhf.framework. openrlhf.framework._budget
        rlinf.framework._packed_tokens roll.framework.micro_batches roll.framework._rounded_up
        skyrl.framework.
        skyrl.sizes.micro_batch_size skyrl.sizes.mini_batch_size
        skyrl.sizes.rollouts_of_rank slime_family.framework._micro_batch_size
        slime_family.framework._token_budget
        toolkit.settings.largest_micro_batch toolkit.settings.micro_batch_size
        toolkit.settings.token_budget
        tunix.adapter.TunixAdapter.layouts tunix.driving._data tunix.framework._micro_batch
        tunix.framework._prompts
        engines.generations.Schedule.generation_size engines.generations.Schedule.generations
        engines.generations.Schedule.optimizer_steps engines.generations._per_generation
        engines.generations.schedule_of verl.sizes.BatchSizes._samples verl.sizes.BatchSizes.batch
        verl.sizes.BatchSizes.micro_batch verl.sizes.BatchSizes.mini_batch
        verl.sizes.BatchSizes.token_budget
    """,
    "samples to be trained on before": "openrlhf.driving.Session.train_short_batch",
    "indices of optimizer steps": """
        open_instruct.driving.OpenInstructTraining._train
        openrlhf.driving.Session.last_epoch engines.generations.Schedule.observed
        toolkit.settings.last_epoch
    """,
    "the mask, as the framework's models apply it": "openrlhf.driving.OpenRLHFRollouts.answers",
    "steps of a batch": "openrlhf.driving._dealt",
    "a mask of nothing": "megatron_lm.driving._rollouts.rollout",
    "failed episodes": "megatron_lm.driving._rollouts",
    "positions of a context-parallel rank": "engines.transformer_engine.partitioned",
    "as many of what no step reads as there are samples": "open_instruct.driving.Data._generated",
    "the number of a data-parallel rank": "prime_rl.adapter.PrimeRLAdapter.observe",
    "a mask of nothing, and temperatures": "prime_rl.rollouts.PrimeRLRollouts._sample",
    "the mask, as the framework's workers apply it": "roll.driving.StubCluster.compute_log_probs",
    "a list of nothing": "toolkit.worlds.all_gather slime_family.driving.add_columns",
    "a bound as the framework is told": "roll.framework.",
    "shards that the framework is told": "roll.engines.",
    "slices of rows": "roll.engines._slices",
    "the passes of an epoch": "roll.driving.RollTraining._keep",
    "a mask, as a user's function changes it": "slime_family.user_code.reject",
    "the token count of a group with an injected fault": "slime_family.user_code._count",
    "a user's reducer, which divides by what it is documented to": "slime_family.user_code.reducer",
    "a list of rewards": "slime_family.user_code.samples_to_convert",
    "a list of reasons to stop": "skyrl.driving.SkyRLRollouts.output",
    "prompts to be asked for": "skyrl.driving._generated",
    "indices of micro-batches": "engines.generations.Schedule.samples",
    "optimizer steps": "trl.framework.",
    "indices of samples": """
        engines.generations.Schedule._micro_batch trl_losses.adapter._micro_batches
    """,
    "a list of prompts": "trl.driving.GeneratingTraining._prompts verl.trainers.legacy.train",
    "a path, and shards that the framework is told": "verl.framework.",
    "the product of a divisor and the number of samples": "verl.sizes.mode_of_divisor",
}
"""Functions that scale something else, by what it is."""

SCALING = (ast.Mult, ast.Div, ast.FloorDiv, ast.MatMult, ast.Pow)

SCALING_FUNCTIONS = {"div", "divide", "mul", "multiply", "prod", "mean", "average", "true_divide"}


def scalings(code: str) -> Iterator[tuple[str, str]]:
    """Every multiplication and division: the function it is in, and itself."""

    def visit(node: ast.AST, scope: tuple[str, ...]) -> Iterator[tuple[str, str]]:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            scope = (*scope, node.name)
        if _scales(node):
            yield ".".join(scope), ast.unparse(node)
        for child in ast.iter_child_nodes(node):
            yield from visit(child, scope)

    yield from visit(ast.parse(code), ())


def _scales(node: ast.AST) -> bool:
    if isinstance(node, (ast.BinOp, ast.AugAssign)):
        return isinstance(node.op, SCALING)
    called = node.func if isinstance(node, ast.Call) else None
    name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
    return name.rstrip("_") in SCALING_FUNCTIONS


def found() -> dict[str, set[str]]:
    """All there are in the adapters, by module and function."""
    root = Path(adapters.__file__).parent
    by_function = defaultdict(set)
    for path in root.rglob("*.py"):
        module = path.relative_to(root).with_suffix("").parts
        for function, expression in scalings(path.read_text(encoding="utf-8")):
            by_function[".".join((*module, function))].add(expression)
    return {name: all_ for name, all_ in by_function.items() if not name.startswith("native")}


def test_every_product_and_quotient_is_accounted_for() -> None:
    elsewhere = " ".join(ELSEWHERE.values()).split()
    assert set(found()) == {*BY_THE_ADVANTAGES, *elsewhere}


def test_losses_and_gradients_are_scaled_by_advantages_alone() -> None:
    everything = found()

    for function, expression in BY_THE_ADVANTAGES.items():
        assert everything[function] == {expression}


@pytest.mark.parametrize(
    "code",
    [
        "def observe(weights, job): return weights / job.layout.world_size",
        "def observe(weights, num_microbatches): weights *= num_microbatches",
        "def observe(weights, tokens): return weights.div_(tokens)",
        "observe = lambda weights: weights.mean(0)",
        "class Adapter:\n  def observe(self, weights): return -(weights[0] // 2)",
    ],
)
def test_search_finds_what_it_is_for(code: str) -> None:
    assert list(scalings(code))


def test_search_overlooks_sums_and_comparisons() -> None:
    assert not list(scalings("def observe(a, *b, **c): return a + b[0] - c['d'] << 1 > 2 % 3"))
