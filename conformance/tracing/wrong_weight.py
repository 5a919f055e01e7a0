"""A wrong weight, with the chain of its factors and the reference's counts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from adapters.contract.objective import Metric
from conformance.tracing.columns import COEFFICIENTS
from conformance.tracing.graph import is_close
from conformance.tracing.right_counts import RightCounts

if TYPE_CHECKING:
    from conformance.findings.trace import Line, Operation
    from conformance.tracing.chain import Chain, Factor
    from conformance.tracing.graph import Node
    from conformance.tracing.traced import TracedJob


@dataclass(frozen=True, eq=False)
class WrongWeight:
    """The weight of a traced token, with the chain of its factors."""

    traced: TracedJob
    chain: Chain
    package: str | None
    """The framework's package, whose lines are suspected before those of its engine."""

    def is_own(self, line: Line) -> bool:
        """Whether a line is the framework's, and not its engine's."""
        return is_own(line, self.package)

    @cached_property
    def right(self) -> RightCounts:
        """The reference's counts for the token."""
        return RightCounts(self.traced.context, self.traced.place)

    @cached_property
    def off(self) -> float:
        """The ratio of the observed to the right weight; infinity if the right weight is 0."""
        expected = self.traced.expected
        return self.traced.observed / expected if expected else math.inf

    @property
    def is_off_by_size(self) -> bool:
        """Whether the weight is off by the number of ranks or micro-batches."""
        return self.right.is_size(self.off)

    @cached_property
    def factors(self) -> list[Factor]:
        """The factors that may be wrong, without the coefficient of the loss's term.

        If the token's gradient is right, the factors within the trained loss are left out. A term
        that is logged on its own has no coefficient.
        """
        trained = self.chain.graph.trained if self.traced.is_trained_right else ()
        found = [one for one in self.chain.factors if one.node not in trained]
        is_alone = self.traced.metric not in (None, Metric.LOSS)
        coefficient = 1.0 if is_alone else COEFFICIENTS.get(self.traced.column, 1.0)
        is_right = (n for n, one in enumerate(found) if is_close(one.value, coefficient))
        place = None if coefficient == 1 else next(is_right, None)
        return [one for n, one in enumerate(found) if n != place]

    def lines_of(self, names: tuple[str, ...]) -> set[Line]:
        """The lines that called operations whose names begin with one of ``names``."""
        operations = (one for trace in self.traced.traces for one in trace.operations)
        return {one.line for one in operations if one.line and one.name.startswith(names)}

    def operation(self, node: Node) -> Operation:
        """The operation of a node."""
        return self.chain.graph.operation(node)


def is_own(line: Line, package: str | None) -> bool:
    """Whether a line is in a framework's package, or no package is known."""
    return package is None or f"/{package}/" in line.file
