"""Suspects who gives a function a wrong count, where other callers of it give the right one."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from conformance.tracing.graph import is_close
from conformance.tracing.suspects.reasons import Ranked, Suspect, Why
from conformance.tracing.suspects.wrong_weight import OfWeight
from reference.aggregation import AuxiliaryAggregation

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from conformance.findings.trace import Line, Operation
    from conformance.tracing.chain import Factor
    from conformance.tracing.graph import Node


class OtherCalls(OfWeight):
    """Compares the call that made a weight wrong with other calls of the same line."""

    def suspects(self, factor: Factor) -> Iterator[Ranked]:
        """Yield the callers that divide by a count which is right elsewhere, and wrong here.

        Another call of the same line divides by this very tensor, and a third call by the right
        count. The callers are the lines by which its stack differs from that of the third. If the
        divisor is right nowhere, it was made wrong, and its callers are not to blame.
        """
        made = self._chain.operation(factor)
        value = 1 / factor.value
        needed = value * self._off
        is_forward = ".div" in made.name and made.backward_pass is None
        if not is_forward or not self._is_right_elsewhere(value):
            return
        others = [*self._others(factor)]
        for operand, node in enumerate(self._chain.graph.inputs(factor.node)):
            is_of_another = any(node.place in one.inputs for one in others)
            places = [at for at, held in enumerate(self._entries(node)) if is_close(held, value)]
            right = [
                one
                for one in others
                if operand < len(one.inputs)
                if _holds(self._entries(node._replace(place=one.inputs[operand])), places, needed)
            ]
            if is_of_another and right:
                words = f"divides by {value:.6g}, where another call divides by {needed:.6g}"
                yield from _callers(made, right, words)

    def _is_right_elsewhere(self, divisor: float) -> bool:
        """Whether it is the right divisor of another term, or of the mask before rejection."""
        traced = self.weight.traced
        own = traced.context
        policy = replace(own, aggregation=traced.job.aggregation, per_micro_batch=False)
        terms = own, policy, policy.of_term(AuxiliaryAggregation.WITH_TOKEN_MEAN)
        contexts = [*terms, *(one.before_rejection() for one in terms)]
        return any(is_close(divisor * float(one.expected[traced.place]), 1) for one in contexts)

    def _others(self, factor: Factor) -> Iterator[Operation]:
        """Yield what the line of a factor did on its rank when it was called from elsewhere."""
        made = self._chain.operation(factor)
        for one in self._chain.graph.traces[factor.node.rank].operations:
            if one.name == made.name and one.line == made.line and one.stack != made.stack:
                yield one

    def _entries(self, node: Node) -> Sequence[float]:
        """The entries of a tensor, or the largest one of a large tensor."""
        held = self.weight.operation(node).contents
        return held.values or (held.largest,)


def _holds(entries: Sequence[float], places: Iterable[int], number: float) -> bool:
    """Whether a number is at one of some places."""
    return any(is_close(entries[at], number) for at in places if at < len(entries))


def _callers(made: Operation, right: Iterable[Operation], words: str) -> Iterator[Ranked]:
    """Yield the callers of an operation that it does not share with the nearest right one."""
    nearest = max(_shared(made.stack, one.stack) for one in right)
    for place, line in enumerate(made.stack[nearest:] if nearest else ()):
        yield Ranked(Why.CALLED, -place, Suspect(line, words))


def _shared(one: Sequence[Line], other: Sequence[Line]) -> int:
    """How many lines two stacks share, from the innermost one on."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((n for n, (mine, theirs) in pairs if mine != theirs), min(len(one), len(other)))
