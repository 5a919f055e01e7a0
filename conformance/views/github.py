"""What GitHub shows of a run: a page in the job's summary, and annotations for what failed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from conformance.comparing.groups import finding_groups
from conformance.views import markdown
from conformance.views.show import as_markdown

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from conformance.findings.finding import Finding
    from conformance.findings.report import Report

MOST_BYTES = 1_000_000
"""Of a step's summary; GitHub refuses one of more than 1 MiB whole."""

MOST_ANNOTATIONS = 10
"""Of a step and kind; GitHub leaves out others without a word."""


def add_summary(report: Report, more: Sequence[str], path: Path) -> None:
    """Append the report in short, and lines of text, to the summary of the job's step."""
    text = ["", *markdown.preformatted(more)] if more else []
    page = "\n".join([*as_markdown(report), *text]) + "\n"
    with path.open("ab") as file:
        file.write(page.encode()[:MOST_BYTES].decode(errors="ignore").encode())


def error_commands(failing: Sequence[Finding], objections: Sequence[str] = ()) -> Iterator[str]:
    """Commands to GitHub's runner: of the run as a whole, and of each mistake, the worst first."""
    for words in objections:
        yield f"::error::{_data(words)}"
    found = finding_groups(failing)
    for fault in found[:MOST_ANNOTATIONS]:
        title = f"{fault.name} ({len(fault.findings)})"
        words = f"{fault.example.id}: {fault.words}"
        yield f"::error title={_property(title)}::{_data(words)}"


def _data(text: str) -> str:
    """As the runner's own toolkit escapes a command's text."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
