"""How far a run has come, in one line of the terminal that is written over and over."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from conformance.findings.verdict import WRONG
from conformance.views.summary import SYMBOLS

if TYPE_CHECKING:
    from collections.abc import Callable

    from conformance.findings.finding import Finding
    from conformance.findings.verdict import Verdict


@dataclass
class Progress:
    """Counts the findings of a run of ``total``."""

    total: int
    clock: Callable[[], float] = time.monotonic
    _start: float | None = None
    _done: int = 0
    _wrong: Counter[Verdict] = field(default_factory=Counter)

    def line(self, finding: Finding) -> str:
        """What to say once this one, too, was found."""
        now = self.clock()
        if self._start is None:
            self._start = now
        self._done += 1
        self._wrong[finding.verdict] += finding.verdict in WRONG
        wrong = "".join(f", {self._wrong[v]} {SYMBOLS[v]}" for v in WRONG if self._wrong[v])
        share = self._done / self.total
        return (
            f"{share:4.0%} {self._done} of {self.total}{wrong}{self._left(now)}; {finding.layout}"
        )

    def _left(self, now: float) -> str:
        """At the pace so far, which the first finding alone does not tell."""
        assert self._start is not None
        if self._done < 2:
            return ""
        pace = (now - self._start) / (self._done - 1)
        return f", {timedelta(seconds=round(pace * (self.total - self._done)))} left"


class ProgressLine:
    """Writes it in the place of pytest's dots; a plugin, as pytest has to be told."""

    def __init__(self, terminal: pytest.TerminalReporter, total: int, attribute: str) -> None:
        self._terminal = terminal
        self._progress = Progress(total)
        self._attribute = attribute

    def show(self, finding: Finding) -> None:
        """Write over what stands there."""
        width = self._terminal._tw.fullwidth - 1  # what `rewrite` itself goes by
        self._terminal.rewrite(self._progress.line(finding)[:width], erase=True)

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """No letter for a finding, which hangs on its report by the name of ``attribute``."""
        if not hasattr(report, self._attribute):
            return None
        return "xfailed" if hasattr(report, "wasxfail") else report.outcome, "", ""


def progress_line(config: pytest.Config, total: int, attribute: str) -> ProgressLine | None:
    """A line where there is a terminal and nobody asked for more or less than pytest's dots."""
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if not isinstance(terminal, pytest.TerminalReporter) or not terminal.isatty:
        return None
    if config.get_verbosity():
        return None
    line = ProgressLine(terminal, total, attribute)
    config.pluginmanager.register(line, "conformance-progress")
    return line
