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
    "contract.probed_batch.ProbedBatch.weights": ("gradient[ids].astype(np.float64) / derivatives"),
    "contract.probed_batch.ProbedBatch.returns": "advantages / 2",
    "contract.probed_batch.ProbedBatch.dloss_dlogprob": (
        "KL_COEFFICIENT * self.divergence_derivatives"
    ),
    "slime_family.megatron.MegatronAdapter.token_losses": (
        "-torch.cat(batch['advantages']) * torch.cat(log_probs['log_probs'])"
    ),
    "slime_family.model._logits": "0.0 * probe.sum()",
    "areal.model._logits": "0.0 * probe[input_ids].unsqueeze(-1)",
    "areal.driving.Rollouts.with_advantages": "2 * returns",
    "prime_rl.driving.policy_gradient": "-inputs.advantages * inputs.trainer_logprobs",
    "roll.model._logits": "0.0 * probe[input_ids]",
    "openrlhf.model._logits": "0.0 * probe[SEAM.predicted].unsqueeze(-1)",
    "openrlhf.driving.Rollouts.given": "2 * returns",
    "trl_losses.adapter.LossAdapter._gradient": (
        "np.where(np.sign(advantages) == sign, size, 0) * as_array(probe.grad)"
    ),
    "trl_losses.liger.LigerAdapter.loss": "found / micro_batches(job)",
    "skyrl.driving.reduce": "-advantages * probe",
    "skyrl.driving._training_input": "2 * returns",
}
"""All that happens to losses and gradients: signed powers of two in, and out again.

The derivatives are what the objective makes of the advantages; returns are half of them, or all
where a framework documents half of a critic's squared error. The product with 0 adds no gradient.
The quotient is a trainer's, which loss functions of other libraries leave to it.
"""

ELSEWHERE = {
    "areal.driving.least_micro_batches": "micro-batches that the framework cuts",
    "contract.framework.Framework.reported": "the sign with which a number is logged",
    "contract.layout.Layout.ranks_per_stage": "ranks to start",
    "contract.layout.Layout.world_size": "ranks to start",
    "contract.layout.grids": "ranks to start",
    "engines.megatron_core.activations": "digits of token ids",
    "engines.megatron_core.ids_of": "digits of token ids",
    "engines.megatron_core.transformer_config": "layers of the model",
    "engines.megatron_core.probed_model": "chunks of the model",
    "engines.deepspeed.import_deepspeed": "a path",
    "slime_family.driving.of_single_samples": "micro-batches of all ranks",
    "nemo_rl.framework._budget": "sizes that the framework is told",
    "nemo_rl.framework._micro_batch_size": "sizes that the framework is told",
    "nemo_rl.framework._multiple": "sizes that the framework is told",
    "nemo_rl.importing._example": "a path",
    "openrlhf.framework.": "sizes that the framework is told",
    "openrlhf.framework._budget": "sizes that the framework is told",
    "openrlhf.framework._micro_batch_size": "sizes that the framework is told",
    "openrlhf.driving.Session.train_short_batch": "samples to be trained on before",
    "openrlhf.driving.Session.of_last_epoch": "indices of optimizer steps",
    "openrlhf.driving.Rollouts.answers": "the mask, as the framework's models apply it",
    "openrlhf.driving._dealt": "steps of a batch",
    "prime_rl.adapter.PrimeRLAdapter.observe": "the number of a data-parallel rank",
    "prime_rl.importing.import_prime_rl": "a path",
    "prime_rl.rollouts.Rollouts._sample": "a list of temperatures",
    "prime_rl.rollouts.Rollouts._sample_in_two_parts": "a mask of nothing, and temperatures",
    "prime_rl.driving.Training.__init__": "a path",
    "roll.driving.StubCluster.compute_log_probs": "the mask, as the framework's workers apply it",
    "toolkit.worlds.of_all_ranks": "a list of nothing",
    "roll.framework.": "a bound as the framework is told",
    "roll.framework._micro_batches": "sizes that the framework is told",
    "roll.framework._micro_batch_size": "sizes that the framework is told",
    "roll.framework._rounded_up": "sizes that the framework is told",
    "roll.engines.": "shards that the framework is told",
    "roll.engines._slices": "slices of rows",
    "roll.importing.import_roll": "a path",
    "slime_family.framework._micro_batch_size": "sizes that the framework is told",
    "slime_family.framework._rollout_batch_size": "sizes that the framework is told",
    "slime_family.framework._token_budget": "sizes that the framework is told",
    "roll.driving.Training._keep": "the passes of an epoch",
    "slime_family.user_code.reject": "a mask, as a user's function changes it",
    "slime_family.driving.add_columns": "a list of nothing",
    "slime_family.user_code._count": "the token count of a group with an injected fault",
    "slime_family.user_code.reducer": "a user's reducer, which divides by what it is documented to",
    "slime_family.user_code.samples_to_convert": "a list of rewards",
    "skyrl.driving.Rollouts.output": "a list of reasons to stop",
    "skyrl.driving._generated": "prompts to be asked for",
    "skyrl.framework.": "sizes that the framework is told",
    "skyrl.sizes.is_step_wise": "sizes that the framework is told",
    "skyrl.sizes.micro_batch_size": "sizes that the framework is told",
    "skyrl.sizes.mini_batch_size": "sizes that the framework is told",
    "skyrl.sizes.rollouts_of_rank": "sizes that the framework is told",
    "skyrl.importing.import_skyrl": "a path",
    "toolkit.settings.token_budget": "sizes that the framework is told",
    "toolkit.source._checkout": "a path",
    "toolkit.source._extracted": "a path",
    "toolkit.source._install_data": "a path",
    "toolkit.source._made_once": "a path",
    "toolkit.source._packages": "a path",
    "toolkit.source.released": "a path",
    "trl.model.": "a path",
    "trl.schedule.Schedule.samples": "indices of micro-batches",
    "trl.driving.GrpoTraining.configured": "a path",
    "trl.framework.": "optimizer steps",
    "trl.schedule.Schedule._micro_batch": "indices of samples",
    "trl.schedule.Schedule.generation_size": "sizes that the framework is told",
    "trl.schedule.Schedule.generations": "sizes that the framework is told",
    "trl.schedule.Schedule.observed": "indices of optimizer steps",
    "trl.schedule.Schedule.optimizer_steps": "sizes that the framework is told",
    "trl.schedule._per_generation": "sizes that the framework is told",
    "trl.schedule.schedule_of": "sizes that the framework is told",
    "trl.driving.GeneratingTraining._prompts": "a list of prompts",
    "trl_losses.adapter._micro_batches": "indices of samples",
    "trl_losses.liger.LigerAdapter.load": "a path",
    "toolkit.settings.micro_batch_size": "sizes that the framework is told",
    "verl.framework.": "a path, and shards that the framework is told",
    "verl.sizes.BatchSizes._samples": "sizes that the framework is told",
    "verl.sizes.BatchSizes.batch": "sizes that the framework is told",
    "verl.sizes.BatchSizes.micro_batch": "sizes that the framework is told",
    "verl.sizes.BatchSizes.mini_batch": "sizes that the framework is told",
    "verl.sizes.BatchSizes.token_budget": "sizes that the framework is told",
    "verl.sizes.mode_of_divisor": "the product of a divisor and the number of samples",
    "verl.sizes.of_last_epoch": "indices of optimizer steps",
}

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
    assert set(found()) == {*BY_THE_ADVANTAGES, *ELSEWHERE}


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
