"""The mistakes of the newest versions, each listed once.

A mistake of a framework may be several causes of its reports: one on each engine, or under several
names. The entries written by hand (`conformance.comparing.known`) say which causes are one mistake,
and their words replace those of reports.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

from conformance.comparing.known import entry_of
from conformance.findings.cause import Severity
from conformance.findings.finding import FindingId
from conformance.findings.verdict import Check
from conformance.views.formatting import code, escape_markdown
from conformance.views.overview.committed import REPORTS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from conformance.comparing.expectations import KnownFailure, KnownMistake
    from conformance.findings.cause import Cause, Harm
    from conformance.findings.report import Report
    from conformance.views.overview.committed import CommittedReport

ISSUES = REPORTS / "issues"


class Shown(NamedTuple):
    """A cause of a report."""

    version: CommittedReport
    cause: Cause
    place: int
    """Its index among the causes of the report, the worst first."""

    @property
    def rank(self) -> tuple[int, int, int]:
        """A sort key: the worst first, then the one with most findings."""
        return self.cause.harm.rank, -len(self.cause.findings), self.place

    @property
    def report(self) -> Report:
        """The report."""
        return self.version.report


@dataclass(frozen=True, kw_only=True)
class Accusation:
    """A mistake of a framework, with its causes in the newest reports."""

    shown: tuple[Shown, ...]
    """The causes in reports, the worst first."""

    entry: KnownMistake | KnownFailure | None
    """The mistake's entry in `reports/known`; None if there is none."""

    path: Path
    """The path of the bug report."""

    @property
    def worst(self) -> Shown:
        """The worst cause, which describes the mistake."""
        return self.shown[0]

    @property
    def framework(self) -> str:
        """The framework's name."""
        return self.worst.report.adapter

    @property
    def elsewhere(self) -> list[str]:
        """The other engines that show the mistake, with numbers of findings."""
        found: dict[str, set[str]] = defaultdict(set)
        for one in self.shown:
            if one.version is not self.worst.version:
                found[one.report.engine].update(one.cause.findings)
        return [f"{len(findings)} on engine {engine}" for engine, findings in found.items()]

    @property
    def harm(self) -> Harm:
        """The harm to users."""
        return self.worst.cause.harm

    @property
    def sentence(self) -> str:
        """The mistake, in Markdown."""
        return self.entry.reason if self.entry else escape_markdown(self.worst.cause.statement)

    @property
    def reach(self) -> str:
        """The users who meet it, in Markdown."""
        if self.entry is not None and self.entry.reach is not None:
            return self.entry.reach
        return escape_markdown(str(self.worst.cause.reach))

    @property
    def line(self) -> str:
        """The line to change, in Markdown; the first suspect if there is no entry."""
        if self.entry is None or self.entry.line is None:
            return code(self.worst.cause.where) if self.worst.cause.where else "–"
        file = PurePosixPath(self.entry.line).name
        return f"[`{file}`]({self.entry.address})" if self.entry.address else code(file)

    @property
    def upstream(self) -> str:
        """The state upstream, in Markdown."""
        if self.entry is None:
            return "not looked up"
        words = escape_markdown(self.entry.upstream)
        return f"[{words}]({self.entry.link})" if self.entry.link else words

    @property
    def rank(self) -> tuple[int, int, int, str, str]:
        """A sort key: the worst first, then mistakes that simpler checks show."""
        checks = (FindingId.parse(name).check for name in self.worst.cause.findings)
        plainest = min(map([*Check].index, checks))
        return self.harm.rank, plainest, self.worst.place, self.framework, str(self.path)


def accusations(newest: Sequence[CommittedReport]) -> list[Accusation]:
    """Returns the mistakes of the newest versions, the worst over all frameworks first.

    Advice and deliberate behaviour are not mistakes.
    """
    groups: dict[tuple[str, object], list[Shown]] = defaultdict(list)
    for shown in _shown(newest):
        named = entry_of(shown.report, shown.cause) or shown.cause.mistake
        groups[shown.report.adapter, named].append(shown)
    taken: Counter[str] = Counter()
    found = []
    for (framework, _), group in groups.items():
        worst_first = sorted(group, key=lambda one: one.rank)
        entry = entry_of(worst_first[0].report, worst_first[0].cause)
        if entry is not None and entry.deliberate is not None:
            continue
        name = f"{framework}-{worst_first[0].cause.name}"
        taken[name] += 1
        number = f"-{taken[name]}" if taken[name] > 1 else ""
        path = ISSUES / f"{name}{number}.md"
        found.append(Accusation(shown=tuple(worst_first), entry=entry, path=path))
    return sorted(found, key=lambda one: one.rank)


def _shown(newest: Sequence[CommittedReport]) -> Iterator[Shown]:
    """Yields the causes that are not advice."""
    for version in newest:
        for place, cause in enumerate(version.report.causes):
            if cause.severity is not Severity.ADVICE:
                yield Shown(version, cause, place)
