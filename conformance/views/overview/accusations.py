"""The mistakes of the newest versions, each told once.

A mistake of a framework may be several causes of its reports: on each engine one, or under several
names. What is known of it by hand (`conformance.comparing.known`) says which are one mistake, and
its words go before those of any report.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from conformance.comparing.known import known
from conformance.findings.cause import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from conformance.comparing.expectations import KnownFailure, KnownMistake
    from conformance.findings.cause import Cause, Harm
    from conformance.views.overview.pages import CommittedReport

ISSUES = Path("reports/issues")


class Shown(NamedTuple):
    """A cause of a report."""

    version: CommittedReport
    cause: Cause
    place: int
    """Its place among the causes of the report, the worst first."""


@dataclass(frozen=True, kw_only=True)
class Accusation:
    """A mistake of a framework, with the causes that it is in its newest reports."""

    shown: tuple[Shown, ...]
    """The worst first."""

    entry: KnownMistake | KnownFailure | None
    """What is known of it; None if it was never held against the framework's source."""

    path: Path
    """Its bug report."""

    @property
    def worst(self) -> Shown:
        """The cause by which it is told."""
        return self.shown[0]

    @property
    def framework(self) -> str:
        """The framework's name."""
        return self.worst.version.report.adapter

    @property
    def harm(self) -> Harm:
        """What users lose by it."""
        return self.worst.cause.harm

    @property
    def sentence(self) -> str:
        """What is wrong."""
        return self.entry.reason if self.entry else self.worst.cause.statement

    @property
    def reach(self) -> str:
        """Who meets it."""
        return (self.entry and self.entry.reach) or str(self.worst.cause.reach)

    @property
    def engines(self) -> list[str]:
        """The engines whose reports show it."""
        return [*dict.fromkeys(one.version.report.engine for one in self.shown)]

    @property
    def rank(self) -> tuple[int, int, str, str]:
        """A sort key: the worst first."""
        return self.harm.rank, self.worst.place, self.framework, str(self.path)


def accusations(newest: Sequence[CommittedReport]) -> list[Accusation]:
    """Returns the mistakes of the newest versions, the worst over all frameworks first.

    Advice, and what a framework does on purpose, is no mistake.
    """
    groups: dict[object, list[Shown]] = defaultdict(list)
    entries = {}
    for shown in _shown(newest):
        entry = entry_of(shown)
        key = shown.version.report.adapter, entry or shown.cause.mistake
        groups[key].append(shown)
        entries[key] = entry
    accused = [
        (sorted(group, key=lambda one: (one.cause.harm.rank, one.place)), entries[key])
        for key, group in groups.items()
        if not _is_deliberate(entries[key])
    ]
    taken: Counter[str] = Counter()
    found = []
    for group, entry in accused:
        name = f"{group[0].version.report.adapter}-{group[0].cause.name}"
        taken[name] += 1
        number = f"-{taken[name]}" if taken[name] > 1 else ""
        path = ISSUES / f"{name}{number}.md"
        found.append(Accusation(shown=tuple(group), entry=entry, path=path))
    return sorted(found, key=lambda one: one.rank)


def entry_of(shown: Shown) -> KnownMistake | KnownFailure | None:
    """Returns what is known of a cause."""
    report = shown.version.report
    audited = known(report.adapter, report.engine)
    return None if audited is None else audited.of(shown.cause)


def _shown(newest: Sequence[CommittedReport]) -> Iterator[Shown]:
    """Yields the causes that are no advice."""
    for version in newest:
        for place, cause in enumerate(version.report.causes):
            if cause.severity is not Severity.ADVICE:
                yield Shown(version, cause, place)


def _is_deliberate(entry: KnownMistake | KnownFailure | None) -> bool:
    return entry is not None and entry.deliberate is not None
