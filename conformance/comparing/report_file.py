"""Makes reports of findings, writes them atomically to regular files, and reads them."""

from __future__ import annotations

import errno
import gzip
import json
import os
import stat
import zlib
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from conformance.findings.badness import failure
from conformance.findings.cause import Clues
from conformance.findings.errors import ReportFileError, UnreliableReportError
from conformance.findings.files import put
from conformance.findings.finding import Finding, first_problem
from conformance.findings.report import SCHEMA, Header, Report, Selection
from conformance.findings.sanitize import numberless
from conformance.findings.verdict import UNJUDGED, WRONG, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


WAY_OUT = "restore it, or run again what made it"

JOURNAL = ".journal"
"""The suffix of journals, which `conformance.comparing.journal` writes."""

LATEST = Path("reports") / "latest"
"""The folder of reports without ``--report``, relative to the folder that a run starts in."""

KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
}
"""Kinds of files that are not overwritten: a report would replace, or vanish in, a device, a pipe
or a socket."""


def load(path: Path) -> Report:
    """Read a report, or the journal of a run that was killed.

    Raises:
        ReportFileError: the file cannot be read, is not a whole report, or contradicts itself.
    """
    content = _read(path)
    if path.suffix == JOURNAL:
        return _read_journal(content.split(b"\n"), path)
    try:
        return Report.model_validate_json(content)
    except ValidationError as error:
        raise _refusal(path, content, error) from error


def last_run(folder: Path) -> Path:
    """The report of the last run that was started in a folder without ``--report``.

    Raises:
        ReportFileError: there is no such report.
    """
    found = [*(folder / LATEST).glob("*.json")]
    if not found:
        raise ReportFileError(f"no run has left a report in {folder / LATEST}", "name a report")
    return max(found, key=lambda path: path.stat().st_mtime)


def load_reliable(path: Path) -> Report:
    """Read a report whose verdicts must be reliable.

    Raises:
        ReportFileError: the file cannot be read, is not a whole report, or contradicts itself.
        UnreliableReportError: a fault of the harness stopped its run.
    """
    report = load(path)
    if report.fault is not None:
        raise UnreliableReportError(
            f"{path}: no verdict of this report can be relied on, as its run was stopped by a fault"
            f" of the harness: {report.fault}",
            "run it again once that is mended; rl-loss-conformance show has what was found",
        )
    return report


def _read(path: Path) -> bytes:
    """The content of a file, decompressed."""
    try:
        content = path.read_bytes()
        return gzip.decompress(content) if content.startswith(b"\x1f\x8b") else content
    except (OSError, EOFError, zlib.error) as error:
        words = getattr(error, "strerror", None) or error
        raise ReportFileError(f"{path} cannot be read: {words}", "give a report") from error


def _read_journal(lines: Sequence[bytes], path: Path) -> Report:
    """The incomplete report that a journal contains, up to its last whole line."""
    try:
        header = Header.model_validate_json(lines[0])
    except ValidationError as error:
        raise ReportFileError(f"{path} is no journal of this version", WAY_OUT) from error
    findings: dict[str, Finding] = {}
    clues: list[Clues] = []
    with suppress(ValidationError):  # the last line may be cut short
        for line in lines[1:]:
            if line.startswith(b'{"terms":'):
                clues.append(Clues.model_validate_json(line))
            else:
                finding = Finding.model_validate_json(line)
                findings[finding.id] = finding  # a finding may be recorded again
    selection = Selection(selected=len(findings) + 1, deselected=0)
    return assembled(header, [*findings.values()], clues, selection)


def write(report: Report, path: Path) -> None:
    """Write a report to ``path`` atomically, so that no reader sees a part of it.

    If the name ends in ``.gz``, the report is compressed, always to the same bytes.
    """
    content = report.to_json().encode()
    if path.suffix == ".gz":
        content = gzip.compress(content, mtime=0)
    put(content, path)


def _refusal(path: Path, content: bytes, error: ValidationError) -> ReportFileError:
    """The first error in a file, and its place."""
    problem, (place, words) = error.errors()[0], first_problem(error)
    if problem["type"] == "json_invalid":
        return ReportFileError(f"{path} is no report ({words}): it is cut short or edited", WAY_OUT)
    document = json.loads(content)
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema != SCHEMA:
        return ReportFileError(
            f"{path} is not a report that this version of rl-loss-conformance reads: its field"
            f" schema is {schema!r}, not {SCHEMA!r}",
            "give a file that its --report wrote",
        )
    line = _line(content.decode(), document, problem["loc"])
    where = f"{path}, line {line}," if line else f"{path}:"
    words = (
        f"{where} {place or 'the report'}: {words}: the file was edited or is of another program"
    )
    return ReportFileError(words, WAY_OUT)


def _line(text: str, document: dict[str, Any], place: Sequence[int | str]) -> int | None:
    """The line number of a field or a finding, if the file has lines as `write` makes them."""
    match place:
        case ["findings", int(number), *_]:
            found = document["findings"][number]
            start = f'"id": {json.dumps(found.get("id"), ensure_ascii=False)}'
        case [str(name), *_]:
            start = f'"{name}":'
        case _:
            return None
    lines = enumerate(text.splitlines(), 1)
    return next((n for n, line in lines if line.lstrip(" {").startswith(start)), None)


def require_regular(path: Path) -> None:
    """Require ``path``, or the target of a symbolic link there, to be a regular file or free.

    Raises:
        OSError: something else is there, or the path cannot be examined.
    """
    _require(path, path.stat)


def require_regular_itself(path: Path) -> None:
    """Require ``path`` to be a regular file or free; links are refused, as we chose the name.

    Raises:
        OSError: something else is there, or the path cannot be examined.
    """
    _require(path, path.lstat)


def _require(path: Path, status: Callable[[], os.stat_result]) -> None:
    try:
        mode = status().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISREG(mode):
        kind = KINDS.get(stat.S_IFMT(mode), "no regular file")
        words = f"{path} is {kind}, and only regular files are written"
        raise OSError(errno.EINVAL, words, os.fspath(path))


def assembled(
    header: Header,
    findings: Sequence[Finding],
    clues: Sequence[Clues],
    selection: Selection,
    watched: frozenset[str] = frozenset(),
    fault: str | None = None,
) -> Report:
    """The report of findings in any order; ``clues`` are in the order of their arrival.

    Only clues about wrong findings or ``watched`` mistakes are kept.
    """
    from conformance.explain.causes import causes  # imports numpy, which is slow

    by_id = sorted(_credible(findings), key=lambda finding: finding.id)
    ordered, numbered = _numbered(by_id, clues, watched)
    found = causes(ordered, numbered, header.chosen_by)
    return Report.assemble(header, ordered, selection, found, numbered, fault)


def _credible(findings: Sequence[Finding]) -> Sequence[Finding]:
    """The findings, without verdicts if all of several steps ended in the same exception.

    In that case nothing shows that the adapter supports this version at all.
    """
    tried = [one for one in findings if not (one.is_of_bad_input or one.verdict in UNJUDGED)]
    failures = {(one.verdict, numberless(failure(one))) for one in tried}
    steps = {(one.mode, one.layout, one.case) for one in tried}
    if len(steps) < 2 or len(failures) > 1 or tried[0].verdict is not Verdict.CRASHED:
        return findings
    return [
        one.model_copy(update={"verdict": Verdict.NOT_DRIVEN}) if one in tried else one
        for one in findings
    ]


def _numbered(
    findings: Sequence[Finding], clues: Sequence[Clues], watched: frozenset[str]
) -> tuple[list[Finding], list[Clues]]:
    """The findings and the clues to keep, with the clues renumbered."""
    are_kept = watched or any(finding.verdict in WRONG for finding in findings)
    suspected = watched.union(*(one.suspects for one in clues))
    kept = [one.about(suspected) for one in clues]
    lines = [one.model_dump_json() for one in kept]
    places: dict[str, tuple[int, Clues]] = {}
    ordered = []
    for finding in findings:
        number = None
        if are_kept and finding.clues is not None:
            line = lines[finding.clues]
            number, _ = places.setdefault(line, (len(places), kept[finding.clues]))
        ordered.append(finding.model_copy(update={"clues": number}))
    return ordered, [one for _, one in places.values()]
