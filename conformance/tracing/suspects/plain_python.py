"""Where plain Python had a number before a tensor was made of it, by its value."""

from __future__ import annotations

from typing import TYPE_CHECKING

from conformance.findings.trace import GIVEN
from conformance.tracing.counts import SMALL
from conformance.tracing.source.origins import fields_read

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conformance.findings.trace import Returned
    from conformance.tracing.graph import Node
    from conformance.tracing.suspects.wrong_weight import WrongWeight

CALLING = 2
"""How many of the innermost lines may name the field that a tensor is made of."""


def had_before(weight: WrongWeight, node: Node, count: float) -> list[Returned]:
    """Where plain Python had a count before an operation, of those that fit best the first first.

    Those fit that gave it to a field which is read, that had all numbers of the tensor or only
    some of them, and whose number is too large for a size.
    """
    before = [*_before(weight, node, count)]
    beside = {*weight.operation(node).contents.values, count}

    def fit(one: Returned) -> tuple[bool, bool, bool]:
        has_same = beside.issuperset(one.numbers) or beside.issubset(one.numbers)
        return one.name is not None, has_same, one.is_measured or count > SMALL

    best = max(map(fit, before), default=None)
    return [one for one in before if fit(one) == best]


def _before(weight: WrongWeight, node: Node, count: float) -> Iterator[Returned]:
    """Yield all of them; what has been measured makes no tensor of whole numbers."""
    operation = weight.operation(node)
    is_whole = operation.name == GIVEN and not operation.contents.is_measured
    names = fields_read(operation.stack[:CALLING])
    for one in weight.chain.graph.traces[node.rank].returned:
        is_read = one.name is None or one.name in names
        is_before = one.place <= node.place and not (is_whole and one.is_measured)
        if is_read and is_before and one.has(count):
            yield one
