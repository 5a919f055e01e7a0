"""One test for each finding; `conformance.plugin` supplies the cells and the ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from conformance.report import Verdict
from conformance.reproduce import command
from conformance.settings import Cell, GeneratedCell
from conformance.summary import explain

if TYPE_CHECKING:
    from collections.abc import Callable

    from conformance.report import Finding, Header
    from conformance.settings import AnyCell


def test_finding(cell: AnyCell, find: Callable[[AnyCell], Finding], report_header: Header) -> None:
    finding = find(cell)
    again = f"to run it again: {command(report_header, finding)}"
    if finding.verdict is Verdict.UNSUPPORTED:
        pytest.skip(f"unsupported: {finding.message}")
    if finding.verdict is Verdict.CRASHED:
        pytest.fail(f"crashed: {finding.message}\n{again}", pytrace=False)
    if finding.verdict is Verdict.MISMATCH:
        pytest.fail(f"mismatch: {explain(finding)}\n{_case(cell, finding)}\n{again}", pytrace=False)


def _case(cell: AnyCell, finding: Finding) -> str | None:
    """What a failing case is meant to catch, or its text if it was generated."""
    if isinstance(cell, GeneratedCell):
        return finding.message
    return f"case: {cell.case.catches}" if isinstance(cell, Cell) else f"log: {cell.row.says}"
