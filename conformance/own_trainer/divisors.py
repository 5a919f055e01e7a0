"""Finds the line that divides by a count over all ranks, if a wrapper also averages over ranks.

A trace blames the average, whose line is a call of `backward`. The line that a user has to change
is the division.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from conformance.tracing.graph import NEGLIGIBLE, is_close
from conformance.tracing.suspects.reasons import Suspect, of_lines
from conformance.tracing.wrong_weight import WrongWeight

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conformance.tracing.trace import Trace


def put_divisor_first(trace: Trace, package: str) -> Trace:
    """Put the dividing line first in a trace if the average over ranks is an extra factor."""
    return replace(trace, suspects=of_lines([*_divisor(trace, package), *trace.suspects]))


def _divisor(trace: Trace, package: str) -> Iterator[Suspect]:
    """Yield the last line of the user's code that divides before gradients are averaged."""
    dp = trace.job.job.layout.dp
    if trace.chain is None or dp == 1:
        return
    weight = WrongWeight(trace.job, trace.chain, package)
    operations = [(one.value, weight.operation(one.node)) for one in weight.factors]
    is_averaged = any(
        is_close(value, 1 / dp) and operation.backward_pass is not None
        for value, operation in operations
    )
    dividing = [
        (value, operation.line)
        for value, operation in operations
        if value < 1 - NEGLIGIBLE and operation.backward_pass is None
        if operation.line is not None and weight.is_own(operation.line)
    ]
    if is_averaged and dividing and is_close(weight.off, 1 / dp):
        value, line = dividing[-1]
        yield Suspect(
            line,
            f"divides by {1 / value:.6g}, and gradients are averaged over {dp} ranks after it:"
            f" multiply by {dp} as well",
        )
