"""Runs a list of commits, each in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING

from conformance.comparing import journal, report_file
from conformance.findings import files
from conformance.findings.errors import InvalidHistoryError, ReportFileError
from conformance.runs import registry
from conformance.runs.options import GITHUB_SUMMARY
from conformance.sources.source import SHORT, Commit, resolve
from conformance.sources.source import find_commits as commits_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from conformance.findings.report import Report

EXIT = "_pytest.outcomes.Exit: "
"""The prefix of the reason with which a pytest run was ended."""

ERROR = "ERROR: "
"""The prefix of the reason why a run has no verdict."""

FAILED = (3, 4)
"""Exit statuses of pytest if a run could not begin, or could not finish, for example because it
could not write its report."""


RUNNING: set[subprocess.Popen[str]] = set()
"""The processes of the runs that are under way."""


@dataclass(frozen=True, kw_only=True)
class CommitRuns:
    """The run to make at every commit; ``options`` are further pytest options, as typed."""

    adapter: str
    repository: Path | None = None
    engine: str | None = None
    options: tuple[str, ...] = ()

    def arguments(self, commit: Commit, report: Path) -> list[str]:
        """The pytest arguments of a commit's run, as a user would type them."""
        return [
            f"--adapter={self.adapter}",
            f"--source={commit.source(self.repository)}",
            *self.options,
            f"--report={report}",
        ]


@dataclass(frozen=True, kw_only=True)
class Row:
    """The outcome of one commit: a report, or the reason why there is no reliable report."""

    commit: Commit
    report: Report | None = None
    problem: str | None = None
    has_failed: bool = False
    """Whether the commit's run could not begin or could not write its report."""

    unreached: str | None = None
    """If the run was ended by its time limit, how far it had come, in words."""


def find_commits(selection: CommitRuns, refs: Sequence[str]) -> list[Commit]:
    """The commits of refs and ranges, after all checks that are possible before a run.

    Raises:
        ConformanceError: a commit cannot be run.
    """
    adapter = registry.create(selection.adapter, selection.engine)
    commits = [commit for ref in refs for commit in commits_of(selection.repository, ref)]
    for commit in commits:
        resolve(adapter, commit.source(selection.repository))
    _collect(selection, commits[0])
    return commits


def _collect(selection: CommitRuns, commit: Commit) -> None:
    """Let pytest check all other options, which are the same for every commit."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = selection.arguments(commit, Path(folder) / "report.json")
        result = _pytest(folder, "--collect-only", *arguments)
    if result.returncode:
        raise InvalidHistoryError(last_words(result.stdout))


def run(
    selection: CommitRuns,
    commits: Iterable[Commit],
    reports: Path | None,
    seconds: float | None = None,
) -> Iterator[Row]:
    """Run one commit after another; keep their reports in a folder if one is given.

    A run that takes longer than ``seconds`` is ended, and its row has the findings made by then.
    """
    with tempfile.TemporaryDirectory() as scratch:
        folder = (reports or Path(scratch)).resolve()
        for commit in commits:
            path = _report_path(folder, selection, commit)
            yield run_one(selection, commit, path, scratch, seconds)


def require_folder(folder: Path, selection: CommitRuns, commits: Iterable[Commit]) -> None:
    """Require that the commits' reports can be written to a folder.

    Raises:
        InvalidHistoryError: the reports cannot be written there.
    """
    try:
        files.require_room(folder)
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
    selection: CommitRuns,
    commit: Commit,
    report: Path,
    scratch: str,
    seconds: float | None = None,
) -> Row:
    """Run one commit from an empty folder, and leave its report at the given path."""
    report.resolve().unlink(missing_ok=True)
    begun = time.monotonic()
    result = _pytest(scratch, *selection.arguments(commit, report), seconds=seconds)
    row = row_of(commit, report, result.stdout)
    is_complete = row.report is not None and row.report.complete
    if seconds is not None and time.monotonic() >= begun + seconds and not is_complete:
        return replace(row, problem=None, unreached=_unreached(row.report, seconds))
    return replace(row, has_failed=result.returncode in FAILED)


def _unreached(report: Report | None, seconds: float) -> str:
    """The number of findings that a run had made when its time was over, in words."""
    if report is None:
        return f"its {seconds:.0f} s ended before anything was run"
    done, wanted = len(report.findings), report.selection.selected
    return f"its {seconds:.0f} s ended after {done} of {wanted} findings"


def row_of(commit: Commit, report: Path, output: str) -> Row:
    """The outcome of a commit, by the report and the output of its run."""
    try:
        loaded = report_file.load(report)
    except ReportFileError:
        return Row(commit=commit, problem=last_words(output))
    if loaded.fault is not None:
        return Row(commit=commit, problem=f"fault of the harness: {loaded.fault}")
    problem = f"not driven: {loaded.not_driven}" if loaded.not_driven else None
    if not loaded.complete:
        problem = f"stopped early: {last_words(output)}"
    return Row(commit=commit, report=loaded, problem=problem)


def end_all() -> None:
    """Tell all runs that are under way to write their reports and end."""
    for process in [*RUNNING]:
        process.terminate()


def _pytest(
    folder: str, *arguments: str, seconds: float | None = None
) -> subprocess.CompletedProcess[str]:
    """Run pytest in a folder; after ``seconds``, tell it to write its report and end."""
    process = start(folder, subprocess.PIPE, *arguments)
    RUNNING.add(process)
    try:
        with process:
            try:
                output, _ = process.communicate(timeout=seconds)
            except subprocess.TimeoutExpired:
                process.terminate()
                output, _ = process.communicate()
    finally:
        RUNNING.discard(process)
    return subprocess.CompletedProcess(process.args, process.returncode, output)


def start(folder: str, output: int | IO[str], *arguments: str) -> subprocess.Popen[str]:
    """Start pytest in a folder without pytest settings, and without a summary on GitHub."""
    return subprocess.Popen(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments],
        cwd=folder,
        env={name: value for name, value in os.environ.items() if name != GITHUB_SUMMARY},
        stdout=output,
        stderr=subprocess.STDOUT,
        text=True,
    )


def last_words(output: str) -> str:
    """The reason that a run gives for its end, or else its last line with words.

    Lines of only ``=`` or ``!``, with which pytest underlines, are skipped.
    """
    lines = [line.strip("!= \t").removeprefix(EXIT) for line in output.splitlines()]
    reasons = [line.removeprefix(ERROR) for line in lines if line.startswith(ERROR)]
    said = [line for line in lines if line] or ["the run ended without any output"]
    return [*said, *reasons][-1]
