"""A weight's factors are read off compiled functions of JAX, with the lines that asked for them."""

import linecache
from collections.abc import Callable
from typing import Any

import pytest

from adapters.contract.batch.altered import PAINT
from adapters.tunix.adapter import TunixAdapter
from conformance.ranks.pool import RankPool
from conformance.ranks.recording.stacks import LIBRARIES
from conformance.tracing.chain import Chain, chain
from conformance.tracing.graph import Graph
from conformance.tracing.trace import Trace
from conformance.tracing.traced import TracedJob
from conformance.tracing.tracer import trace
from reference.aggregation import Mode
from tests.adapters import steps
from tests.pools import pool_of

pytestmark = pytest.mark.tunix

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402 - only where JAX is installed

from adapters.tunix.driving import as_array  # noqa: E402 - it imports JAX
from conformance.ranks.recording.jaxprs import JaxRecorder  # noqa: E402 - it imports JAX

MASK = jnp.array([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
ADVANTAGES = jnp.zeros((2, 3)).at[0, 1].set(PAINT)
PROBE = jnp.zeros((2, 3))

PASSED_BY = LIBRARIES | {"adapters", "conformance"}

Step = Callable[[], Any]


def losses(probe: Any, advantages: Any) -> Any:
    return -advantages * jnp.exp(probe - jax.lax.stop_gradient(probe)) * MASK


def loss(probe: Any, advantages: Any) -> Any:
    return losses(probe, advantages).sum() / MASK.sum()


def compiled() -> Any:
    return jax.jit(jax.value_and_grad(loss))(PROBE, advantages())


def compiled_within() -> Any:
    inner = jax.jit(loss)
    return jax.jit(jax.value_and_grad(lambda *given: 2 * inner(*given)))(PROBE, advantages())


def not_compiled() -> Any:
    return jax.value_and_grad(loss)(PROBE, advantages())


def recomputed() -> Any:
    return jax.jit(jax.value_and_grad(jax.checkpoint(loss)))(PROBE, advantages())


def of_a_branch() -> Any:
    def chosen(probe: Any, advantages: Any) -> Any:
        return jax.lax.cond(MASK.sum() > 2, loss, lambda *_: 0.0, probe, advantages)

    return jax.jit(jax.value_and_grad(chosen))(PROBE, advantages())


@jax.custom_vjp
def tripled(value: Any) -> Any:
    return value * 1


def backward(_: Any, gradient: Any) -> Any:
    return (gradient * 3,)


tripled.defvjp(lambda value: (value * 1, None), backward)


def of_its_own_derivative() -> Any:
    def summed(probe: Any, advantages: Any) -> Any:
        return tripled(losses(probe, advantages)).sum() / MASK.sum()

    return jax.jit(jax.value_and_grad(summed))(PROBE, advantages())


def accumulated() -> Any:
    def one(sum_before: Any, given: Any) -> Any:
        value, gradient = jax.value_and_grad(loss)(PROBE, given)
        return value, (sum_before + gradient) / 2

    _, first = jax.jit(one)(PROBE, advantages())
    return jax.jit(one)(first, jnp.zeros_like(PROBE))


def advantages() -> Any:
    return jnp.array(ADVANTAGES)


def traced(step: Step) -> Chain:
    recorder = JaxRecorder(lambda module: module.partition(".")[0] in PASSED_BY)
    with recorder:
        _, gradient = step()
        as_array(gradient)
    graph = Graph([recorder.trace])
    return chain(graph, next(graph.ends))


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (compiled, [(1 / 3, "loss")]),
        (compiled_within, [(1 / 3, "loss"), (2.0, "<lambda>")]),
        (not_compiled, [(1 / 3, "loss")]),
        (recomputed, [(1 / 3, "loss")]),
        (of_a_branch, [(1 / 3, "loss")]),
        (of_its_own_derivative, [(1 / 3, "summed"), (3.0, "summed")]),
        (accumulated, [(1 / 3, "loss"), (0.5, "one"), (0.5, "one")]),
    ],
)
def test_each_step_has_its_factors(step: Step, expected: list[tuple[float, str]]) -> None:
    found = traced(step)

    factors = [
        (pytest.approx(one.value), line.function)
        for one in found.factors
        if not one.is_idle and (line := found.operation(one).line) is not None
    ]
    assert factors == expected


pool = pool_of(TunixAdapter, 2)


def of_tunix(pool: RankPool, mode: Mode, layout: str) -> Trace:
    found = trace(steps.job(mode=mode, layout=layout), pool)
    assert isinstance(found, TracedJob), found
    made = Trace.of(layout, found, "tunix", None)
    assert made.objection is None
    assert made.rest == pytest.approx(1, rel=1e-6)
    return made


def test_a_right_weight_has_its_factors_on_several_devices(pool: RankPool) -> None:
    found = of_tunix(pool, Mode.SAMPLE_MEAN, "dp2-cp1-mb1-bshd")

    assert found.suspects == []
    assert [one.place for one in found.of_cause.chain if "aggregate_loss" in str(one.place)]


@pytest.mark.parametrize(
    ("mode", "text"),
    [
        (Mode.TOKEN_MEAN, "completion_mask.sum()"),
        (Mode.SAMPLE_MEAN, "(seq_mask > 0).sum()"),
        (Mode.CONSTANT, "(seq_mask > 0).sum()"),
    ],
)
def test_the_line_that_counts_in_a_micro_batch_is_suspected(
    pool: RankPool, mode: Mode, text: str
) -> None:
    """0.1.7 averages micro-batches, each divided by its own count."""
    line = of_tunix(pool, mode, "dp1-cp1-mb2-bshd").suspects[0].line

    assert text in linecache.getline(line.file, line.number)
