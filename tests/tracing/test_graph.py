"""Factors between a token's loss and its weight."""

import math

import pytest

from conformance.findings.trace import Contents, Operation, RankTrace
from conformance.tracing.counts import How, Unfolding
from conformance.tracing.graph import Graph, Node, is_of_count


@pytest.mark.parametrize(
    ("factor", "is_one"),
    [(3.0, True), (0.5, True), (0.3, False), (math.nan, False), (math.inf, False)],
)
def test_a_factor_of_a_count_is_a_whole_number_or_one_over_it(factor: float, is_one: bool) -> None:
    """NaN and infinite factors, as in a sample without tokens, once ended all traces."""
    assert is_of_count(factor) is is_one


def test_a_count_with_very_many_parts_is_unfolded_less_deep() -> None:
    """Each pair of sums doubles the number of parts."""
    made: list[Operation] = []
    for place in range(60):
        before = place - place % 2
        value = float(2 ** (place // 2))
        made.append(
            Operation(
                name="aten.add.Tensor" if before else "aten.sum.default",
                stack=(),
                contents=Contents(1, (value,), value, value, 1, is_measured=True),
                inputs=(before - 2, before - 1) if before else (),
            )
        )

    count = Unfolding(Graph([RankTrace(operations=tuple(made))])).of_value(Node(0, 59), 2.0**29)

    assert count is not None
    assert count.how is How.SUM
    assert len([*count.walk()]) < 1000
