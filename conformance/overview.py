"""Committed reports side by side: what conforms where, and what is wrong.

``python -m conformance.overview`` writes the table into README.md, between its marks, and the list
of findings to reports/findings.md; both are made of the reports alone.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from conformance.report import Check, Finding, Report, Verdict
from conformance.report_file import load
from conformance.summary import WRONG, last_line
from reference.aggregation import Mode

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

REPORTS = Path("reports")
README = Path("README.md")
FINDINGS = REPORTS / "findings.md"

BEGIN = "<!-- what reports/ say; written by `python -m conformance.overview` -->\n"
END = "<!-- end of what reports/ say -->\n"

HEAD = """\
# Findings

What the reports in this folder say is wrong, a line for each mistake of a framework's engine and
check, with the versions that have it and one finding as an example. Written by
`python -m conformance.overview`. A *crash* has no diagnosis: its last line is quoted. Where in the
framework to look stands behind the words.

| framework | engine | check | modes | mistake | for example | versions |
|---|---|---|---|---|---|---|
"""


@dataclass(frozen=True, kw_only=True)
class Version:
    """A report, and what its version is called."""

    name: str
    report: Report


@dataclass(frozen=True, order=True)
class Mistake:
    """What findings of one kind have in common."""

    adapter: str
    engine: str
    check: Check
    name: str


def versions(folder: Path) -> list[Version]:
    """All committed reports, by framework, engine and version."""
    found = [
        Version(name=path.stem.removesuffix(f"-{report.engine}"), report=report)
        for path in sorted(folder.glob("*/*.json"))
        if path.parent.name != "latest"
        for report in [load(path)]
    ]
    return sorted(found, key=lambda one: (one.report.adapter, one.report.engine, one.name))


def table(found: Sequence[Version]) -> Iterator[str]:
    """A line for each report, a column for each check: how many findings are wrong, of how many."""
    yield f"| framework | engine | version | {' | '.join(Check)} |"
    yield f"|---|---|---|{'---|' * len(Check)}"
    for one in found:
        cells = [_cell([f for f in one.report.findings if f.check is check]) for check in Check]
        report = one.report
        yield f"| {report.adapter} | {report.engine} | {one.name} | {' | '.join(cells)} |"


def _cell(findings: Sequence[Finding]) -> str:
    seen = [finding for finding in findings if finding.verdict is not Verdict.UNSUPPORTED]
    wrong = sum(finding.verdict in WRONG for finding in seen)
    if not seen:
        return "–"
    return f"**{wrong}** of {len(seen)}" if wrong else f"ok ({len(seen)})"


def mistakes(found: Sequence[Version]) -> Iterator[str]:
    """A line for each mistake."""
    grouped: dict[Mistake, list[tuple[str, Finding]]] = defaultdict(list)
    for one in found:
        for finding in one.report.findings:
            if finding.verdict in WRONG:
                grouped[_mistake(one.report, finding)].append((one.name, finding))
    for mistake in sorted(grouped):
        yield _line(mistake, grouped[mistake])


def _mistake(report: Report, finding: Finding) -> Mistake:
    name = finding.diagnosis.name if finding.diagnosis else f"crash: {last_line(finding.message)}"
    return Mistake(report.adapter, report.engine, finding.check, name)


def _line(mistake: Mistake, found: Sequence[tuple[str, Finding]]) -> str:
    subjects = list(dict.fromkeys(finding.subject for _, finding in found if finding.subject))
    modes = [mode for mode in Mode if any(finding.mode is mode for _, finding in found)]
    counts = Counter(version for version, _ in found)
    example = min((finding for _, finding in found), key=lambda one: (len(_words(one)), one.id))
    place = f"; look at `{example.place}`" if example.place else ""
    cells = (
        mistake.adapter,
        mistake.engine,
        f"{mistake.check}{f': {_list(subjects)}' if subjects else ''}",
        _list(modes),
        f"`{mistake.name}`",
        f"`{example.id}`: {_words(example)}{place}",
        _list(f"{version} ({count})" for version, count in counts.items()),
    )
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _words(finding: Finding) -> str:
    return finding.diagnosis.explanation if finding.diagnosis else last_line(finding.message)


def _list(names: Iterable[str]) -> str:
    return ", ".join(names)


def pages(found: Sequence[Version], readme: str) -> tuple[str, str]:
    """README.md with its table anew, and reports/findings.md."""
    before, rest = readme.split(BEGIN)
    _, after = rest.split(END)
    listed = "".join(f"{line}\n" for line in mistakes(found))
    shown = "".join(f"{line}\n" for line in table(found))
    return f"{before}{BEGIN}{shown}{END}{after}", HEAD + listed


if __name__ == "__main__":
    readme, findings = pages(versions(REPORTS), README.read_text(encoding="utf-8"))
    README.write_text(readme, encoding="utf-8")
    FINDINGS.write_text(findings, encoding="utf-8")
