"""How far a run has come, in one line of the terminal that rich writes over and over."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from rich.console import Console
from rich.progress import Progress, TextColumn, TimeRemainingColumn

from conformance.findings.verdict import WRONG
from conformance.views.formatting import SYMBOLS

if TYPE_CHECKING:
    from conformance.findings.finding import Finding
    from conformance.findings.verdict import Verdict


class ProgressLine:
    """Counts findings instead of pytest's dots; a plugin, because pytest must be told so."""

    def __init__(self, console: Console, total: int, attribute: str) -> None:
        self._attribute = attribute
        self._wrong: Counter[Verdict] = Counter()
        self._line = Progress(
            TextColumn("{task.percentage:3.0f}%"),
            TextColumn("{task.completed} of {task.total}{task.description}"),
            TimeRemainingColumn(),
            TextColumn("left; {task.fields[layout]}"),
            console=console,
            auto_refresh=False,
            redirect_stdout=False,  # pytest captures both itself
            redirect_stderr=False,
            speed_estimate_period=math.inf,  # findings may take longer than any shorter one
        )
        self._task = self._line.add_task("", total=total, layout="")

    def show(self, finding: Finding) -> None:
        """Count a finding."""
        self._wrong[finding.verdict] += finding.verdict in WRONG
        wrong = "".join(f", {self._wrong[v]} {SYMBOLS[v]}" for v in WRONG if self._wrong[v])
        layout = str(finding.layout)
        self._line.start()
        self._line.update(self._task, advance=1, description=wrong, layout=layout, refresh=True)

    def pytest_sessionfinish(self) -> None:
        """Leave the line as it is before pytest goes on."""
        self._line.stop()

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """No letter for a finding, which hangs on its report by the name of ``attribute``."""
        if not hasattr(report, self._attribute):
            return None
        return "xfailed" if hasattr(report, "wasxfail") else report.outcome, "", ""


def progress_line(config: pytest.Config, total: int, attribute: str) -> ProgressLine | None:
    """The line, if there is a terminal and the user left pytest's verbosity alone."""
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if not isinstance(terminal, pytest.TerminalReporter) or not terminal.isatty:
        return None
    if config.get_verbosity():
        return None
    line = ProgressLine(Console(file=terminal._tw._file), total, attribute)
    config.pluginmanager.register(line, "conformance-progress")
    return line
