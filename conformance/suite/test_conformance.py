"""One test for each finding; `conformance.plugin` supplies the cells and the ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from conformance.comparing.gate import Outcome
from conformance.plan.matrix import GeneratedCell, MatrixCell
from conformance.runs.options import command

if TYPE_CHECKING:
    from collections.abc import Callable

    from conformance.comparing.gate import Gate
    from conformance.findings.report import Header
    from conformance.judging.weights import Judgement
    from conformance.plan.matrix import AnyMatrixCell


def test_finding(
    cell: AnyMatrixCell,
    find: Callable[[AnyMatrixCell], Judgement],
    gate: Gate,
    report_header: Header,
) -> None:
    judgement = find(cell)
    finding = judgement.finding(cell.id, cell.depth)
    decision = gate.decision(finding, judgement.clues)
    if decision.outcome is Outcome.SKIPPED:
        pytest.skip(decision.words)
    if decision.outcome is Outcome.KNOWN:
        pytest.xfail(decision.words)
    if decision.outcome is Outcome.FAILS:
        again = f"to run it again: {command(report_header, finding)}"
        words = (decision.words, finding.message, _case(cell), again)
        pytest.fail("\n".join(filter(None, words)), pytrace=False)


def _case(cell: AnyMatrixCell) -> str | None:
    """Words on the purpose of a corpus case; generated cases are in the message instead."""
    if isinstance(cell, GeneratedCell):
        return None
    return (
        f"case: {cell.case.catches}"
        if isinstance(cell, MatrixCell)
        else f"log: {cell.log_case.says}"
    )
