"""The places in plain Python of a number before a tensor was made of it, by its value."""

from __future__ import annotations

from typing import TYPE_CHECKING

from conformance.tracing.counts import COMMON, SMALL
from conformance.tracing.source import fields_read

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conformance.findings.trace import Returned
    from conformance.tracing.counts import Count
    from conformance.tracing.graph import Node
    from conformance.tracing.wrong_weight import WrongWeight

CALLING = 2
"""The most of the innermost lines that may name the field that a tensor is made of."""


def had_before(weight: WrongWeight, node: Node, count: Count) -> tuple[list[Returned], bool]:
    """The place in plain Python of a count before an operation, and whether it is told from a size.

    If the operation was handed the very number, these are told. Else those fit best that gave it to
    a field which is read, or had most numbers of the tensor and no others, or all of them.
    """
    if (had := weight.chain.graph.handed(node, count.value)) is not None:
        return [had], True
    operation = weight.operation(node)
    if not operation.is_given or count.parts or count.value <= COMMON:
        return [], False
    before = [*_before(weight, node, count.value)]
    beside = {*operation.contents.values, count.value}

    def fit(one: Returned) -> tuple[bool, int, bool]:
        shared = beside.intersection(one.numbers)
        has_all = shared in (beside, {*one.numbers})
        is_no_size = one.is_measured or count.value > SMALL
        return one.name is not None, len(shared) if has_all else 0, is_no_size

    in_field, shared, is_no_size = best = max(map(fit, before), default=(False, 0, False))
    is_telling = in_field or shared > 1 or is_no_size  # many a size is as small
    return [one for one in before if fit(one) == best], is_telling


def _before(weight: WrongWeight, node: Node, count: float) -> Iterator[Returned]:
    """Yield all of them; what has been measured makes no tensor of whole numbers."""
    operation = weight.operation(node)
    is_of_whole = operation.is_given and not operation.contents.is_measured
    names = fields_read(operation.stack[:CALLING])
    for one in weight.chain.graph.traces[node.rank].returned:
        is_read = one.name is None or one.name in names
        may_be = one.is_whole or not (is_of_whole or count.is_integer())
        is_of_kind = may_be and not (is_of_whole and one.is_measured)
        if is_read and is_of_kind and one.place <= node.place and one.has(count):
            yield one
