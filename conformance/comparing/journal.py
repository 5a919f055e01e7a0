"""Findings on disk as they arrive, and the report made of them at the end.

Each line of the journal is one JSON document: the header, then findings. It is written without
buffering, so a run that is killed loses at most the finding in flight; whoever next opens the
journal's report path turns what is there into a report.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from pydantic import ValidationError

from conformance.comparing.report_file import write
from conformance.comparing.writable import require_regular, require_regular_itself
from conformance.findings.errors import ReportPathError
from conformance.findings.finding import Finding
from conformance.findings.report import Header, Report, Selection

if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import FileIO
    from pathlib import Path


class Journal:
    """Collects the findings of one run for the report at ``path``, which no other run may write.

    Raises:
        ReportPathError: nothing can be written there, or another run is about to.
    """

    def __init__(self, path: Path) -> None:
        self._header: Header | None = None
        self._findings: list[Finding] = []
        self._is_whole = True
        with _refusals_said(path):
            self.path = destination(path)
            _try(self.path)
            self._file = _locked(self.path)
            _recover(self._file, self.path)

    def begin(self, header: Header) -> None:
        """Write what is known before the first finding. Later calls change nothing."""
        if self._header is None:
            self._header = header
            self._write(header.model_dump_json())

    def add(self, finding: Finding) -> None:
        """Record one finding."""
        self._findings.append(finding)
        self._write(finding.model_dump_json())

    def finish(self, selection: Selection) -> Report | None:
        """Write the report in one move and drop the journal; None if the run never began.

        Raises:
            ReportPathError: it cannot be written; what was found is kept in the journal.
        """
        report = None
        if self._header is not None:
            report = Report.assemble(self._header, self._findings, selection)
            try:
                write(report, self.path)
            except OSError as error:
                raise ReportPathError(
                    f"the report cannot be written to {self.path}: {error.strerror}",
                    "make room, and the next run for this file makes a report of"
                    f" {_journal_path(self.path).name}",
                ) from error
        _journal_path(self.path).unlink(missing_ok=True)
        self._file.close()
        return report

    def close(self) -> None:
        """Leave nothing where nothing was begun; what was begun stays to be recovered."""
        if self._header is None:
            _journal_path(self.path).unlink(missing_ok=True)
        self._file.close()

    def _write(self, line: str) -> None:
        """A line, as long as there is room; without, the report may still find some in the end."""
        if self._is_whole:
            try:
                data = line.encode() + b"\n"
                self._is_whole = self._file.write(data) == len(data)
            except OSError:
                self._is_whole = False


def destination(path: Path) -> Path:
    """Where a report for ``path`` is put: a symbolic link stays, and the file it names is replaced.

    Raises:
        OSError: neither a report nor a journal can be there.
    """
    require_regular(path)
    resolved = path.resolve()
    require_regular_itself(_journal_path(resolved))
    return resolved


@contextmanager
def _refusals_said(path: Path) -> Iterator[None]:
    """What the file system refuses before anything is found is no failure of the run."""
    try:
        yield
    except OSError as error:
        raise ReportPathError(
            f"no report can be written to {path}: {error.strerror}",
            "give another file with --report=FILE",
        ) from error


def _try(path: Path) -> None:
    """Write to a file of as long a name beside the report, as will be done in the end."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.") as file:
        file.write(b"\n")
        file.flush()


def _recover(file: FileIO, path: Path) -> None:
    """Make a report of what a journal holds, and empty it."""
    file.seek(0)
    report = _report_of(file.readall().split(b"\n"))
    if report is not None:
        write(report, path)
    file.truncate(0)


def _locked(path: Path) -> FileIO:
    """The journal for a report, which is this process's as long as it is open."""
    journal = _journal_path(path)
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
                return file
        file.close()  # its run came to its end in between, and has removed it


def _report_of(lines: list[bytes]) -> Report | None:
    """What a journal holds up to its last whole line."""
    try:
        header = Header.model_validate_json(lines[0])
    except ValidationError:
        return None
    findings = []
    for line in lines[1:]:
        try:
            findings.append(Finding.model_validate_json(line))
        except ValidationError:
            break
    return Report.assemble(header, findings, Selection(selected=len(findings) + 1, deselected=0))


def _journal_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.journal")
