"""What makes a run fail: all that is wrong, or only what is not known to be."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING

from conformance.diff import Kind, by_key, compare, difference, key
from conformance.diff_formats import as_text
from conformance.report import Verdict
from conformance.summary import WRONG, explain

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from conformance.diff import Key
    from conformance.expectations import Expectations
    from conformance.report import Finding, Report, Request


class Outcome(StrEnum):
    """What a finding does to the run."""

    PASSES = "passes"
    SKIPPED = "skipped"
    KNOWN = "known"
    """It is wrong, and was known to be."""

    FAILS = "fails"


@dataclass(frozen=True)
class Ruling:
    """An outcome, and in a line why."""

    outcome: Outcome
    words: str = ""


class Gate(ABC):
    """Rules on findings, each by itself."""

    @abstractmethod
    def ruling(self, finding: Finding) -> Ruling:
        """What one finding does to the run."""

    def lines(self, report: Report) -> Iterator[str]:
        """What there is to say of what was known, at the end of a run."""
        yield from ()

    def failing(self, report: Report) -> Iterator[Finding]:
        """The findings of a report that fail."""
        for finding in report.findings:
            if self.ruling(finding).outcome is Outcome.FAILS:
                yield finding


class Strict(Gate):
    """All that is wrong fails."""

    def ruling(self, finding: Finding) -> Ruling:
        """By the verdict alone."""
        if finding.verdict in WRONG:
            return Ruling(Outcome.FAILS, f"{finding.verdict}: {explain(finding)}")
        if finding.verdict is Verdict.UNSUPPORTED:
            return Ruling(Outcome.SKIPPED, f"unsupported: {finding.message}")
        return Ruling(Outcome.PASSES)


@dataclass(frozen=True)
class Expecting(Gate):
    """What is listed has to be wrong in the way that is listed; for the rest, all that is wrong."""

    expectations: Expectations

    def ruling(self, finding: Finding) -> Ruling:
        """By the entry that lists the finding, if one does."""
        entry = self.expectations.of(finding.id)
        if entry is None:
            return Strict().ruling(finding)
        objection = entry.objection(finding)
        if objection is None:
            return Ruling(Outcome.KNOWN, f"{entry.reason} ({entry.link})")
        found = f"; {explain(finding)}" if finding.verdict in WRONG else ""
        return Ruling(
            Outcome.FAILS,
            f"{self.expectations.path} lists it as {entry.verdict} ({entry.reason}), but"
            f" {objection}{found}",
        )

    def lines(self, report: Report) -> Iterator[str]:
        """How many findings were as listed, by reason, and what the file gets wrong."""
        known: Counter[str] = Counter()
        for finding in report.findings:
            ruling = self.ruling(finding)
            if ruling.outcome is Outcome.KNOWN:
                known[ruling.words] += 1
            elif ruling.outcome is Outcome.FAILS and self.expectations.of(finding.id):
                yield f"{finding.id}: {ruling.words}"
        for words, count in known.most_common():
            yield f"known ({count}): {words}"


@dataclass(frozen=True)
class Comparing(Gate):
    """What is worse than in an earlier report fails; what that has nothing of does not."""

    path: Path
    baseline: Report
    request: Request

    @cached_property
    def _findings(self) -> Mapping[Key, Finding]:
        return by_key(self.baseline)

    def ruling(self, finding: Finding) -> Ruling:
        """By the baseline's finding of the same."""
        before, name = self._findings.get(key(self.request, finding)), self.path.name
        alone = Strict().ruling(finding)
        if before is not None and compare(before, finding).kind is Kind.WORSE:
            words = f"worse than in {name} ({_state(before)}): {_state(finding)}"
            return Ruling(Outcome.FAILS, words)
        if alone.outcome is not Outcome.FAILS:
            return alone
        since = "not in" if before is None else "no worse than in"
        return Ruling(Outcome.KNOWN, f"{since} {name}: {alone.words}")

    def lines(self, report: Report) -> Iterator[str]:
        """What changed, and how to renew the baseline if that is due."""
        found = difference(self.baseline, report)
        yield f"compared with {self.path}:"
        yield from as_text(found)
        if report.complete and found.of(Kind.BETTER) and not found.worse:
            yield f"nothing is worse, and something better: renew {self.path} with this report"


def _state(finding: Finding) -> str:
    words = explain(finding)
    return f"{finding.verdict}: {words}" if words else str(finding.verdict)
