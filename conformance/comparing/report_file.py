"""Reports as files: written in one move, and read, those of an older schema included."""

from __future__ import annotations

import gc
import gzip
import json
import os
import tempfile
import zlib
from collections import Counter
from contextlib import contextmanager, suppress
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from conformance.comparing.assembly import assembled
from conformance.findings.cause import Clues
from conformance.findings.errors import ReportFileError, UnreliableReportError
from conformance.findings.finding import Finding
from conformance.findings.report import SCHEMA, Header, Report, Selection

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    Document = dict[str, Any]

WAY_OUT = "restore it, or run again what made it"

JOURNAL = ".journal"
"""How the names of journals end, which `conformance.comparing.journal` writes."""


@contextmanager
def _garbage_collection_paused() -> Iterator[None]:
    """Saves a quarter of the time to read a report, which makes many objects and no garbage."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@_garbage_collection_paused()
def load(path: Path) -> Report:
    """Read a report, of this schema or an older one, or the journal of a run that was killed.

    Raises:
        ReportFileError: it cannot be read, is no whole report, or contradicts itself.
    """
    content = _read(path)
    if path.suffix == JOURNAL:
        return _of_journal(content.split(b"\n"), path)
    try:
        text = content.decode("utf-8")
        document = json.loads(text)
    except UnicodeDecodeError as error:
        raise ReportFileError(f"{path} is no report: it is no text", "give a report") from error
    except json.JSONDecodeError as error:
        raise ReportFileError(
            f"{path}, line {error.lineno}, is no JSON ({error.msg}): the file is cut short or was"
            " edited",
            WAY_OUT,
        ) from error
    migrated = _migrated(document, path)
    try:
        report = Report.model_validate(migrated)
    except ValidationError as error:
        raise ReportFileError(_complaint(path, text, migrated, error), WAY_OUT) from error
    if document["schema"] == SCHEMA:
        return report
    from conformance.explain.find import causes  # imports numpy

    return report.model_copy(update={"causes": causes(report.findings, [])})


def load_reliable(path: Path) -> Report:
    """Read a report from whose verdicts conclusions are drawn.

    Raises:
        ReportFileError: it cannot be read, is no whole report, or contradicts itself.
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


def _of_journal(lines: Sequence[bytes], path: Path) -> Report:
    """The incomplete report of a journal, up to its last whole line."""
    try:
        header = Header.model_validate_json(lines[0])
    except ValidationError as error:
        raise ReportFileError(f"{path} is no journal of this version", WAY_OUT) from error
    findings: list[Finding] = []
    clues: list[Clues] = []
    with suppress(ValidationError):  # the finding in flight
        for line in lines[1:]:
            if line.startswith(b'{"terms":'):
                clues.append(Clues.model_validate_json(line))
            else:
                findings.append(Finding.model_validate_json(line))
    return assembled(header, findings, clues, Selection(selected=len(findings) + 1, deselected=0))


def write(report: Report, path: Path) -> None:
    """Put a report at ``path`` in one move, so that no reader ever sees half of it.

    A name that ends in ``.gz`` has it compressed, always to the same bytes.
    """
    content = report.to_json().encode()
    if path.suffix == ".gz":
        content = gzip.compress(content, mtime=0)
    with tempfile.NamedTemporaryFile(
        dir=path.parent, prefix=f".{path.name}.", delete=False
    ) as file:
        try:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            Path(file.name).chmod(0o644)
            Path(file.name).replace(path)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise


def _from_1(document: Document) -> Document:
    """Reports said nothing of how cases were generated, nor how wrong weights look."""
    return {**document, "schema": "rl-loss-conformance/report/2"}


def _from_2(document: Document) -> Document:
    """Reports listed no departures, and one mean over micro-batches stood for that of tokens."""
    conventions = {
        name: "micro_batch_token_mean" if value == "micro_batch_mean" else value
        for name, value in document["conventions"].items()
    }
    return {**document, "schema": "rl-loss-conformance/report/3", "conventions": conventions}


SAID_BY_THE_ID = frozenset({"check", "subject", "mode", "case", "layout"})


def _from_3(document: Document) -> Document:
    """Findings said again what their ids say, and two things had other names."""
    environment = {
        "stubs" if name == "stand_ins" else name: value
        for name, value in document["environment"].items()
    }
    findings = [
        {name: value for name, value in finding.items() if name not in SAID_BY_THE_ID}
        | {"id": finding["id"].replace("auxiliary.together/", "auxiliary.combined/")}
        for finding in document["findings"]
    ]
    return {
        **document,
        "schema": "rl-loss-conformance/report/4",
        "environment": environment,
        "findings": sorted(findings, key=itemgetter("id")),
    }


DECLINED_A_CONFIGURATION = ("arguments.", "logging.", "sharding.")
"""How the ids of findings begin that are no ordinary steps."""


def _from_4(document: Document) -> Document:
    """An ordinary step that was declined was a mismatch."""
    findings = [_declined(finding) for finding in document["findings"]]
    modes = {mode: Counter(counts) for mode, counts in document["summary"]["modes"].items()}
    for finding in findings:
        if finding["verdict"] == "declined":
            modes[finding["id"].split("/")[1]].update(mismatch=-1, declined=1)
    summary = {"verdicts": +sum(modes.values(), Counter()), "modes": {m: +modes[m] for m in modes}}
    return {
        **document,
        "schema": "rl-loss-conformance/report/5",
        "findings": findings,
        "summary": summary,
    }


def _from_5(document: Document) -> Document:
    """Reports said nothing of causes."""
    return {**document, "schema": SCHEMA, "causes": [], "clues": []}


def _declined(finding: Document) -> Document:
    """The finding, with the verdict of an ordinary step that was declined if it is one."""
    name = (finding.get("diagnosis") or {}).get("name")
    if name != "refused_what_it_supports" or finding["id"].startswith(DECLINED_A_CONFIGURATION):
        return finding
    return {**finding, "verdict": "declined", "diagnosis": None}


MIGRATIONS: dict[str, Callable[[Document], Document]] = {
    "rl-loss-conformance/report/1": _from_1,
    "rl-loss-conformance/report/2": _from_2,
    "rl-loss-conformance/report/3": _from_3,
    "rl-loss-conformance/report/4": _from_4,
    "rl-loss-conformance/report/5": _from_5,
}
"""From each older schema to the next."""


def _migrated(document: object, path: Path) -> Document:
    schema = document.get("schema") if isinstance(document, dict) else None
    if not isinstance(document, dict) or not str(schema).startswith("rl-loss-conformance/report/"):
        raise ReportFileError(
            f"{path} is no report of rl-loss-conformance: its field schema is {schema!r}, not"
            f" {SCHEMA!r}",
            "give a file that --report wrote",
        )
    while document["schema"] in MIGRATIONS:
        document = MIGRATIONS[document["schema"]](document)
    if document["schema"] != SCHEMA:
        raise ReportFileError(
            f"{path} has schema {schema!r}, and this version reads up to {SCHEMA!r}",
            "install a newer rl-loss-conformance",
        )
    return document


def _complaint(path: Path, text: str, document: Document, error: ValidationError) -> str:
    """The first thing that is wrong, and where."""
    problem = error.errors()[0]
    place = problem["loc"]
    line = _line(text, document, place)
    where = f"{path}, line {line}," if line else f"{path}:"
    field = ".".join(map(str, place)) or "the report"
    words = problem["msg"].removeprefix("Value error, ")
    return f"{where} {field}: {words}: the file was edited or is of another program"


def _line(text: str, document: Document, place: Sequence[int | str]) -> int | None:
    """Where a field or a finding stands in the file, if its lines are as we write them."""
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
