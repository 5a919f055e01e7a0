"""Findings on disk as they arrive, and the report made of them at the end.

Each line of the journal is one JSON document: the header, then findings. It is written without
buffering, so a run that is killed loses at most the finding in flight; whoever next opens the
journal's report path turns what is there into a report.
"""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING

from pydantic import ValidationError

from conformance.report import Finding, Header, Report, Selection
from conformance.report_file import write

if TYPE_CHECKING:
    from io import FileIO
    from pathlib import Path


class ReportPathError(ValueError):
    """No report can be written where it was asked for."""


class Journal:
    """Collects the findings of one run for the report at ``path``.

    Raises:
        ReportPathError: nothing can be written there.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: FileIO | None = None
        self._header: Header | None = None
        self._findings: list[Finding] = []
        self._prepare()
        recover(path)

    def begin(self, header: Header) -> None:
        """Write what is known before the first finding. Later calls change nothing."""
        if self._header is None:
            self._header = header
            self._file = _journal_path(self.path).open("wb", buffering=0)
            self._write(header.model_dump_json())

    def add(self, finding: Finding) -> None:
        """Record one finding."""
        self._findings.append(finding)
        self._write(finding.model_dump_json())

    def finish(self, selection: Selection) -> Report | None:
        """Write the report in one move and drop the journal; None if the run never began."""
        if self._header is None:
            return None
        report = Report.assemble(self._header, self._findings, selection)
        write(report, self.path)
        assert self._file is not None
        self._file.close()
        _journal_path(self.path).unlink()
        return report

    def _write(self, line: str) -> None:
        assert self._file is not None
        self._file.write(line.encode() + b"\n")

    def _prepare(self) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.path.parent):
                pass
        except OSError as error:
            raise ReportPathError(
                f"no report can be written to {self.path}: {error.strerror};"
                " give a writable one with --report=FILE"
            ) from error
        if self.path.is_dir():
            raise ReportPathError(
                f"no report can be written to {self.path}: it is a folder;"
                " name a file in it with --report=FILE"
            )


def recover(path: Path) -> Report | None:
    """Turn the journal that a killed run left for ``path`` into a report; None if there is none."""
    journal = _journal_path(path)
    try:
        lines = journal.read_bytes().split(b"\n")
    except FileNotFoundError:
        return None
    report = _report_of(lines)
    if report is not None:
        write(report, path)
    journal.unlink()
    return report


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
