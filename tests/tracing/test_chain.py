"""The product of a chain's factors, each with the line that applied it, is the token's weight."""

import math
from collections.abc import Callable, Iterator

import pytest

from adapters.contract import Layout
from adapters.contract.job import Configuration
from conformance.ranks.pool import RankPool
from conformance.tracing.chain import Chain, chain
from conformance.tracing.graph import Graph
from conformance.tracing.traced import Token, TracedJob
from conformance.tracing.tracer import trace
from conformance.tracing.unfolded import number
from tests.jobs import job_of, step_of
from tests.tracing.toys import ToyAdapter

STEP = step_of([1, 1, 0], [1, 1, 1], [1, 0, 1], [1, 1, 1])
"""A step of 10 active tokens, 4 of which are on the first of two ranks."""

Traced = Callable[[str], tuple[TracedJob, Chain]]


@pytest.fixture(scope="module")
def traced() -> Iterator[Traced]:
    """A function that traces a token of a step trained in one of the toy's ways."""
    with RankPool(ToyAdapter(), None, 2) as pool:

        def run(way: str) -> tuple[TracedJob, Chain]:
            job = job_of(STEP, layout=Layout(dp=2), configuration=Configuration(divisor=way))
            found = trace(job, pool, Token(1, 0))
            assert isinstance(found, TracedJob), found
            graph = Graph(found.traces)
            return found, chain(graph, next(graph.ends))

        yield run


def factors(found: Chain) -> list[tuple[float, str]]:
    """Each factor other than 1, with the function whose line applied it."""
    return [
        (round(one.value, 6), line.function)
        for one in found.factors
        if not one.is_idle and (line := found.operation(one).line) is not None
    ]


@pytest.mark.parametrize(
    ("way", "expected"),
    [
        ("reduced", [(0.1, "reduced")]),
        ("clamped", [(0.1, "clamped")]),
        ("gathered", [(0.1, "gathered")]),
        ("read", [(0.1, "read")]),
        ("averaged", [(0.1, "averaged"), (0.5, "averaged")]),
        ("function", [(0.1, "function"), (3.0, "backward")]),
        ("chunked", [(0.1, "forward"), (2.0, "chunked")]),
        ("foreach", [(0.1, "foreach")]),
        ("view", [(0.1, "view")]),
        ("upcast", [(0.1, "upcast")]),
        ("bfloat16", [(0.100098, "bfloat16")]),
        ("dtensor", [(0.1, "dtensor")]),
        ("compiled", [(0.1, "<lambda>")]),
        ("subclass", [(0.1, "subclass")]),
        ("wrapped", [(0.1, "wrapped")]),
        ("pipeline", [(0.25, "_one_way")]),
    ],
)
def test_each_way_has_its_factors(
    traced: Traced, way: str, expected: list[tuple[float, str]]
) -> None:
    job, found = traced(way)

    assert factors(found) == expected
    assert found.product == pytest.approx(job.traced, rel=1e-6)


@pytest.mark.parametrize(
    ("value", "words"),
    [(1 / 23, "1/23"), (0.1234567, "0.123457"), (math.nan, "nan"), (-math.inf, "-inf")],
)
def test_a_number_is_as_its_reader_knows_it(value: float, words: str) -> None:
    assert number(value) == words
