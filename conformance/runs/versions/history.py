"""A list of commits, each run in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from adapters.toolkit.source import SHORT, Commit, resolve
from adapters.toolkit.source import find_commits as commits_of
from conformance.comparing import journal, report_file
from conformance.findings.errors import InvalidHistoryError, ReportFileError
from conformance.runs import registry
from conformance.runs.options import GITHUB_SUMMARY

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from conformance.findings.report import Report

EXIT = "_pytest.outcomes.Exit: "
"""What pytest puts before the words with which a run was ended."""


ENDING = (signal.SIGTERM, signal.SIGHUP)
CUT_SHORT = (2, *(128 + one for one in ENDING), *(-one for one in ENDING))
"""The exit statuses of runs that were interrupted or ended, the last before they could say so."""

RUNNING: set[subprocess.Popen[str]] = set()
"""The runs that are under way."""


@dataclass(frozen=True, kw_only=True)
class CommitRuns:
    """The run to make at every commit; ``options`` are further pytest options, as typed."""

    adapter: str
    repository: Path | None = None
    engine: str | None = None
    options: tuple[str, ...] = ()

    def arguments(self, commit: Commit, report: Path) -> list[str]:
        """The run of a commit, as a user would type it after ``pytest``."""
        return [
            f"--adapter={self.adapter}",
            f"--source={commit.source(self.repository)}",
            *self.options,
            f"--report={report}",
        ]


@dataclass(frozen=True, kw_only=True)
class Row:
    """What became of one commit: a report, or the reason that there is none to rely on."""

    commit: Commit
    report: Report | None = None
    problem: str | None = None
    is_cut_short: bool = False
    """Whether the run was ended before its last finding, as its time was over."""


def find_commits(selection: CommitRuns, refs: Sequence[str]) -> list[Commit]:
    """The commits of refs and ranges, after all checks that are possible before a run.

    Raises:
        ConformanceError: one of them cannot be run.
    """
    adapter = registry.create(selection.adapter, selection.engine)
    commits = [commit for ref in refs for commit in commits_of(selection.repository, ref)]
    for commit in commits:
        resolve(adapter, commit.source(selection.repository))
    _collect(selection, commits[0])
    return commits


def _collect(selection: CommitRuns, commit: Commit) -> None:
    """Have pytest look at everything else, which is the same for every commit."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = selection.arguments(commit, Path(folder) / "report.json")
        result = _pytest(folder, "--collect-only", *arguments)
    if result.returncode:
        raise InvalidHistoryError(_last_words(result.stdout).removeprefix("ERROR: "))


def run(selection: CommitRuns, commits: Iterable[Commit], reports: Path | None) -> Iterator[Row]:
    """Run one commit after another; keep their reports in a folder if one is given."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = (reports or Path(scratch)).resolve()
        for commit in commits:
            yield run_one(selection, commit, _report_path(folder, selection, commit), scratch)


def require_folder(folder: Path, selection: CommitRuns, commits: Iterable[Commit]) -> None:
    """Require that a folder can keep the commits' reports.

    Raises:
        InvalidHistoryError: it cannot.
    """
    try:
        for commit in commits:
            journal.destination(_report_path(folder, selection, commit))
    except OSError as error:
        raise InvalidHistoryError(
            f"no reports can be kept in {folder}: {error.strerror}",
            "give another folder with --reports=FOLDER",
        ) from error


def _report_path(folder: Path, selection: CommitRuns, commit: Commit) -> Path:
    names = [selection.adapter, selection.engine, commit.revision[:SHORT]]
    return folder / f"{'-'.join(filter(None, names))}.json"


def run_one(
    selection: CommitRuns, commit: Commit, report: Path, scratch: str, until: float | None = None
) -> Row:
    """Run one commit from an empty folder; its report is left where it is asked for.

    ``until`` is when the run is ended that is still under way, by `time.monotonic`.
    """
    report.resolve().unlink(missing_ok=True)
    result = _pytest(scratch, *selection.arguments(commit, report), until=until)
    try:
        loaded = report_file.load(report)
    except ReportFileError:
        words, is_cut_short = _last_words(result.stdout), result.returncode in CUT_SHORT
        return Row(commit=commit, problem=words, is_cut_short=is_cut_short)
    if loaded.fault is not None:
        return Row(commit=commit, problem=f"fault of the harness: {loaded.fault}")
    problem = f"not driven: {loaded.not_driven}" if loaded.not_driven else None
    is_cut_short = not loaded.complete and until is not None and result.returncode in CUT_SHORT
    if not loaded.complete and not is_cut_short:
        problem = f"stopped early: {_last_words(result.stdout)}"
    return Row(commit=commit, report=loaded, problem=problem, is_cut_short=is_cut_short)


def end_all() -> None:
    """Have all runs that are under way write their reports and end."""
    for process in [*RUNNING]:
        process.terminate()


def _pytest(
    folder: str, *arguments: str, until: float | None = None
) -> subprocess.CompletedProcess[str]:
    """Run pytest in a folder without settings for it, and without its summary on GitHub."""
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments],
        cwd=folder,
        env={name: value for name, value in os.environ.items() if name != GITHUB_SUMMARY},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    RUNNING.add(process)
    try:
        with process:
            try:
                left = None if until is None else max(until - time.monotonic(), 0)
                output, _ = process.communicate(timeout=left)
            except subprocess.TimeoutExpired:
                process.terminate()
                output, _ = process.communicate()
    finally:
        RUNNING.discard(process)
    return subprocess.CompletedProcess(process.args, process.returncode, output)


def _last_words(output: str) -> str:
    """The last line that says something; pytest underlines with signs."""
    lines = [line.strip("!= \t").removeprefix(EXIT) for line in output.splitlines()]
    return next((line for line in reversed(lines) if line), "the run ended without a word")
