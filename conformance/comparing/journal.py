"""Findings on disk as they arrive, and the report made of them at the end.

Each line of the journal is one JSON document: the header, then findings. It is written without
buffering, so a run that is killed loses at most the finding in flight. `report_file.load` reads a
journal as an incomplete report. The next run for the same report renames and keeps the journal of a
killed run.
"""

from __future__ import annotations

import fcntl
import os
import re
import tempfile
from contextlib import contextmanager, suppress
from itertools import count
from types import MappingProxyType
from typing import TYPE_CHECKING

from conformance.comparing.report_file import (
    JOURNAL,
    assembled,
    load,
    require_regular,
    require_regular_itself,
    write,
)
from conformance.findings.errors import ReportFileError, ReportPathError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from io import FileIO
    from pathlib import Path

    from conformance.findings.cause import CauseTrace, Clues
    from conformance.findings.finding import Finding
    from conformance.findings.report import Header, Report, Selection


NO_TRACES: Mapping[str, CauseTrace] = MappingProxyType({})


FINDING = re.compile(rb'^\{"id":"([^"]+)"', re.MULTILINE)
"""The beginning of the line of a finding."""


def made(path: Path) -> list[str]:
    """The ids of the findings that a run for this report has made so far, in order."""
    try:
        return [found.decode() for found in FINDING.findall(_journal_path(path).read_bytes())]
    except FileNotFoundError:
        return []


def findings(path: Path) -> list[Finding]:
    """The findings that a run for this report has made so far, or else those of the report."""
    from conformance.findings.finding import Finding

    try:
        lines = _journal_path(path).read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        with suppress(ReportFileError):
            return load(path).findings
        return []
    return [Finding.model_validate_json(one) for one in lines if FINDING.match(one)]


def left(path: Path) -> Path | None:
    """The journal of a run for this report that did not end; None if there is none."""
    written = _journal_path(path)
    return written if written.exists() else None


def drop(path: Path) -> None:
    """Remove the journal of a run for this report that did not end."""
    _journal_path(path).unlink(missing_ok=True)


class Journal:
    """Collects the findings of one run for the report at ``path``, which no other run may write.

    ``kept`` is the path of the journal of an earlier run that was killed, if there is one. ``made``
    is the report once it is made, even if there is no room to write it.

    Raises:
        ReportPathError: the path cannot be written, or another run is writing it.
    """

    def __init__(self, path: Path) -> None:
        self._header: Header | None = None
        self._findings: list[Finding] = []
        self._clues: dict[str, tuple[int, Clues]] = {}
        self._is_whole = True
        self._written = 0
        self.made: Report | None = None
        with _refusals_said(path):
            self.path = destination(path)
            _try(self.path)
            self._file, self.kept = _open(self.path)

    @property
    def begun(self) -> bool:
        """Whether the header is written."""
        return self._header is not None

    def begin(self, header: Header) -> None:
        """Write what is known before the first finding."""
        self._header = header
        self._write(header.model_dump_json())

    def add(self, finding: Finding, clues: Clues | None = None) -> None:
        """Record one finding and its clues, which many findings share."""
        if clues is not None:
            line = clues.model_dump_json()
            if line not in self._clues:
                self._clues[line] = len(self._clues), clues
                self._write(line)
            finding = finding.model_copy(update={"clues": self._clues[line][0]})
        self._findings.append(finding)
        self._write(finding.model_dump_json())
        self._written += self._is_whole

    def replace(self, finding: Finding) -> None:
        """Record a finding in place of the earlier finding with the same id."""
        self._findings = [finding if one.id == finding.id else one for one in self._findings]
        self._write(finding.model_dump_json())

    def report(
        self,
        selection: Selection,
        watched: frozenset[str] = frozenset(),
        fault: str | None = None,
    ) -> Report | None:
        """The report of all findings so far; None if the run never began."""
        if self._header is None:
            return None
        clues = [clues for _, clues in self._clues.values()]
        return assembled(self._header, self._findings, clues, selection, watched, fault)

    def finish(
        self,
        selection: Selection,
        watched: frozenset[str] = frozenset(),
        fault: str | None = None,
        traces: Mapping[str, CauseTrace] = NO_TRACES,
    ) -> Report | None:
        """Write the report in one move and drop the journal; None if the run never began.

        Clues on ``watched`` mistakes are kept even if these mistakes do not occur. ``fault`` is the
        fault of the harness that stopped the run, and ``traces`` has the traces of causes, by the
        ids of their findings.

        Raises:
            ReportPathError: the report cannot be written; the journal keeps the findings.
        """
        report = self.report(selection, watched, fault)
        if report is not None:
            from conformance.explain.causes import with_traces  # imports numpy

            by_id = {finding.id: finding for finding in self._findings}
            traced = with_traces(report.causes, traces, by_id)
            self.made = report = report.model_copy(update={"causes": traced})
            self._write_report(report)
        _journal_path(self.path).unlink(missing_ok=True)
        self._file.close()
        return report

    def _write_report(self, report: Report) -> None:
        try:
            write(report, self.path)
        except OSError as error:
            count = len(self._findings)
            has = "what was found" if self._is_whole else f"{self._written} of {count} findings"
            raise ReportPathError(
                f"the report cannot be written to {self.path}: {error.strerror}",
                f"make room; {_journal_path(self.path).name} has {has}, and"
                " rl-loss-conformance show reads it",
            ) from error

    def close(self) -> None:
        """Close the journal, and remove it if the run never began."""
        if self._header is None:
            _journal_path(self.path).unlink(missing_ok=True)
        self._file.close()

    def _write(self, line: str) -> None:
        """Write a line if there is room; if not, there may be room for the report at the end."""
        if self._is_whole:
            try:
                data = line.encode() + b"\n"
                self._is_whole = self._file.write(data) == len(data)
            except OSError:
                self._is_whole = False


def destination(path: Path) -> Path:
    """The file to write for ``path``: the target, if ``path`` is a symbolic link.

    Raises:
        OSError: no report or no journal can be written there.
    """
    require_regular(path)
    resolved = path.resolve()
    require_regular_itself(_journal_path(resolved))
    return resolved


@contextmanager
def _refusals_said(path: Path) -> Iterator[None]:
    """Turn errors of the file system at the start of a run into errors of usage."""
    try:
        yield
    except OSError as error:
        raise ReportPathError(
            f"no report can be written to {path}: {error.strerror}",
            "give another file with --report=FILE",
        ) from error


def _try(path: Path) -> None:
    """Write to a scratch file next to the report, with a name as long as at the end of the run."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.") as file:
        file.write(b"\n")
        file.flush()


def _open(path: Path) -> tuple[FileIO, Path | None]:
    """Open the journal for a report, empty and locked; a killed run's journal gets another path."""
    journal, kept = _journal_path(path), None
    while True:
        file = journal.open("a+b", buffering=0)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise ReportPathError(
                f"another run is about to write {path}",
                "wait for its end, or give another file with --report=FILE",
            ) from None
        with suppress(FileNotFoundError):
            if os.fstat(file.fileno()).st_ino == journal.stat().st_ino:
                if not journal.stat().st_size:
                    return file, kept
                kept = journal.rename(_free_name(path))
        file.close()  # another run has replaced, renamed or removed this file


def _free_name(path: Path) -> Path:
    """An unused path for the journal of a killed run, next to its report."""
    names = (path.with_name(f"{path.name}.killed-{number}{JOURNAL}") for number in count(1))
    return next(name for name in names if not name.exists())


def _journal_path(path: Path) -> Path:
    return path.with_name(f"{path.name}{JOURNAL}")
