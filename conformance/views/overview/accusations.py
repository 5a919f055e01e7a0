"""The mistakes of the newest versions, each told once.

A mistake of a framework may be several causes of its reports: on each engine one, or under several
names. What is known of it by hand (`conformance.comparing.known`) says which are one mistake, and
its words go before those of any report.
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
    """Its place among the causes of the report, the worst first."""

    @property
    def rank(self) -> tuple[int, int, int]:
        """A sort key: the worst first, and of these the one with most findings."""
        return self.cause.harm.rank, -len(self.cause.findings), self.place

    @property
    def report(self) -> Report:
        """The report."""
        return self.version.report


@dataclass(frozen=True, kw_only=True)
class Accusation:
    """A mistake of a framework, with the causes that it is in its newest reports."""

    shown: tuple[Shown, ...]
    """The worst first."""

    entry: KnownMistake | KnownFailure | None
    """Its entry in `reports/known`; None if it has none."""

    path: Path
    """Its bug report."""

    @property
    def worst(self) -> Shown:
        """The cause by which it is told."""
        return self.shown[0]

    @property
    def framework(self) -> str:
        """The framework's name."""
        return self.worst.report.adapter

    @property
    def elsewhere(self) -> list[str]:
        """The other engines that show it, and how often."""
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
        """The line to change, in Markdown; without an entry, the first suspect."""
        if self.entry is None or self.entry.line is None:
            return code(self.worst.cause.where) if self.worst.cause.where else "–"
        file = PurePosixPath(self.entry.line).name
        return f"[`{file}`]({self.entry.address})" if self.entry.address else code(file)

    @property
    def upstream(self) -> str:
        """Its fate upstream, in Markdown."""
        if self.entry is None:
            return "not looked up"
        words = escape_markdown(self.entry.upstream)
        return f"[{words}]({self.entry.link})" if self.entry.link else words

    @property
    def rank(self) -> tuple[int, int, int, str, str]:
        """A sort key: the worst first, and of these what the plainest check sees."""
        checks = (FindingId.parse(name).check for name in self.worst.cause.findings)
        plainest = min(map([*Check].index, checks))
        return self.harm.rank, plainest, self.worst.place, self.framework, str(self.path)


def accusations(newest: Sequence[CommittedReport]) -> list[Accusation]:
    """Returns the mistakes of the newest versions, the worst over all frameworks first.

    Advice, and what a framework does on purpose, is no mistake.
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
    """Yields the causes that are no advice."""
    for version in newest:
        for place, cause in enumerate(version.report.causes):
            if cause.severity is not Severity.ADVICE:
                yield Shown(version, cause, place)
