"""One test for each finding; `conformance.plugin` supplies the cells and the ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from conformance.report import Verdict
from conformance.summary import explain

if TYPE_CHECKING:
    from collections.abc import Callable

    from conformance.report import Finding
    from conformance.settings import Cell


def test_finding(cell: Cell, find: Callable[[Cell], Finding]) -> None:
    finding = find(cell)
    if finding.verdict is Verdict.UNSUPPORTED:
        pytest.skip(f"unsupported: {finding.message}")
    if finding.verdict is Verdict.CRASHED:
        pytest.fail(f"crashed: {finding.message}", pytrace=False)
    if finding.verdict is Verdict.MISMATCH:
        pytest.fail(f"mismatch: {explain(finding)}\ncase: {cell.case.catches}", pytrace=False)
