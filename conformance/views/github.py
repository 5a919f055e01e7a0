"""What GitHub shows of a run: a page in the job's summary, and annotations for what failed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from conformance.comparing.groups import finding_groups
from conformance.views.report_formats import as_markdown
from conformance.views.tables import preformatted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from conformance.findings.finding import Finding
    from conformance.findings.report import Report

MOST_BYTES = 1_000_000
"""Size of a step's summary; GitHub refuses one of more than 1 MiB altogether."""

MOST_ANNOTATIONS = 10
"""Annotations of one kind in a step; GitHub silently drops others."""


def add_summary(report: Report, more: Sequence[str], path: Path) -> None:
    """Appends the report as Markdown, and lines of text, to the summary of the job's step."""
    text = ["", *preformatted(more)] if more else []
    page = "\n".join([*as_markdown(report), *text]) + "\n"
    with path.open("ab") as file:
        file.write(page.encode()[:MOST_BYTES].decode(errors="ignore").encode())


def error_commands(
    report: Report, failing: Sequence[Finding], objections: Sequence[str] = ()
) -> Iterator[str]:
    """Yields runner commands that annotate the run and each cause, the worst first."""
    for words in objections:
        yield f"::error::{_data(words)}"
    found = finding_groups(report, failing)
    for group in found[:MOST_ANNOTATIONS]:
        title = f"{group.cause.name} ({len(group.findings)})"
        words = f"{group.example.id}: {group.cause.statement}"
        yield f"::error title={_property(title)}::{_data(words)}"


def _data(text: str) -> str:
    """Escapes a command's text as the runner's own toolkit does."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
