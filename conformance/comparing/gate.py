"""The rules by which a run fails: for all that is wrong, or only for what is not known to be."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING

from conformance.comparing.diff import Change, ChangeKind, FindingsByKey, difference, key
from conformance.explain.conditions.facts import of_finding
from conformance.findings.badness import explain, failure
from conformance.findings.cause import Severity
from conformance.findings.verdict import UNJUDGED, WRONG, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from conformance.comparing.diff import Difference
    from conformance.comparing.expectations import Expectations, KnownMistake
    from conformance.findings.cause import Cause, Clues
    from conformance.findings.finding import Finding
    from conformance.findings.report import Report, Request
    from conformance.plan.matrix import AnyMatrixCell


MOST_PARTS = 3
"""The most parts that a complaint names."""


class Outcome(StrEnum):
    """The effect of a finding on the run."""

    PASSES = "passes"
    SKIPPED = "skipped"
    KNOWN = "known"
    """It is wrong, and was known to be."""

    FAILS = "fails"


@dataclass(frozen=True)
class GateDecision:
    """An outcome, and in a line why."""

    outcome: Outcome
    words: str = ""


class Gate(ABC):
    """Rules on findings, each by itself."""

    @abstractmethod
    def decision(self, finding: Finding, clues: Clues | None = None) -> GateDecision:
        """The effect of one finding on the run."""

    def lines(self, report: Report) -> Iterator[str]:
        """Lines on what was known, at the end of a run."""
        yield from ()

    def difference(self, report: Report) -> Difference | None:
        """The changes since an earlier report; None without one."""
        return None

    def refusal(self, cells: Sequence[AnyMatrixCell]) -> str | None:
        """The reason why a run's findings can hardly be ruled on, and the way out; or None."""
        return None

    def objection(self, report: Report) -> str | None:
        """The reason why the run fails although every finding passes; None if it does not."""
        found = report.findings
        if not found or any(one.verdict not in UNJUDGED for one in found):
            return None
        if report.not_driven is not None:
            return f"no verdicts, as nothing shows that this version is driven: {report.not_driven}"
        return (
            f"nothing was exercised: all {len(found)} findings are unsupported, by the adapter's"
            " declaration; choose modes, layouts and checks that it declares"
        )

    @property
    def watched(self) -> frozenset[str]:
        """Names of mistakes whose absence must be recorded."""
        return frozenset()

    def failing(self, report: Report) -> Iterator[Finding]:
        """The findings of a report that fail."""
        for finding in report.findings:
            if self.decision(finding, report.clues_of(finding)).outcome is Outcome.FAILS:
                yield finding


class Strict(Gate):
    """All that is wrong fails."""

    def decision(self, finding: Finding, clues: Clues | None = None) -> GateDecision:
        """By the verdict alone."""
        if finding.verdict in WRONG:
            return GateDecision(Outcome.FAILS, f"{finding.verdict}: {explain(finding)}")
        if finding.verdict in UNJUDGED:
            return GateDecision(Outcome.SKIPPED, f"{finding.verdict}: {failure(finding)}")
        return GateDecision(Outcome.PASSES)


@dataclass(frozen=True)
class Expecting(Gate):
    """Fails findings that are wrong and not listed, and listed ones that are no longer so wrong."""

    expectations: Expectations

    def decision(self, finding: Finding, clues: Clues | None = None) -> GateDecision:
        """By the failure that lists the finding, or by a mistake that explains it."""
        failure = self.expectations.failure_of(finding.id)
        if failure is None or finding.verdict is Verdict.NOT_DRIVEN:
            known = self.expectations.mistake_of(finding, clues) or (
                self.expectations.known_failure(finding)
            )
            if known is not None:
                return GateDecision(Outcome.KNOWN, known.why)
            return Strict().decision(finding)
        objection = failure.objection(finding)
        if objection is None:
            return GateDecision(Outcome.KNOWN, failure.why)
        found = f"; {explain(finding)}" if finding.verdict in WRONG else ""
        return GateDecision(
            Outcome.FAILS,
            f"{self.expectations.path} lists it as {failure.name} ({failure.reason}), but"
            f" {objection}{found}",
        )

    def lines(self, report: Report) -> Iterator[str]:
        """Lines on how many findings were as listed, by reason, and on what the file gets wrong."""
        known: Counter[str] = Counter()
        told = self._reasons(report)
        for finding in report.findings:
            decision = self.decision(finding, report.clues_of(finding))
            if decision.outcome is Outcome.KNOWN:
                known[told.get(finding.id, decision.words)] += 1
            elif decision.outcome is Outcome.FAILS and self.expectations.failure_of(finding.id):
                yield f"{finding.id}: {decision.words}"
        for words, count in known.most_common():
            yield f"known ({count}): {words}"

    def _reasons(self, report: Report) -> dict[str, str]:
        """The reasons of findings whose cause has an entry; a cause is told apart by more."""
        entered = ((cause, self.expectations.of(cause)) for cause in reversed(report.causes))
        return {name: entry.why for cause, entry in entered if entry for name in cause.findings}

    @property
    def watched(self) -> frozenset[str]:
        """The findings of the expected causes."""
        return self.expectations.names

    def objection(self, report: Report) -> str | None:
        """A cause that is not expected though its findings are alike, or one that is gone."""
        path = self.expectations.path
        left = [(one, _left(one, report)) for one in self.expectations.mistakes]
        for cause in report.causes:
            wanted = any(_may_be(cause, one, names, report) for one, names in left)
            entered = self.expectations.of(cause) is not None or all(
                self.expectations.failure_of(name) for name in cause.findings
            )
            if cause.severity is not Severity.ADVICE and not wanted and not entered:
                return f"{path} does not list this cause: {cause.statement} [{cause.name}]"
        for expected, names in left if self.expectations.is_strict else ():
            is_there = any(_may_be(cause, expected, names, report) for cause in report.causes)
            if not is_there and not names:
                listed = " and ".join(expected.names)
                return f"{path} lists {listed} ({expected.reason}): fixed; remove it"
        return super().objection(report)


def _may_be(cause: Cause, expected: KnownMistake, left: frozenset[str], report: Report) -> bool:
    """Whether a cause is the expected one, or cannot be told from it by the findings of a report.

    A small plan may name a mistake by another that would give the same on all of its layouts:
    ``left`` are the names that no finding excludes.
    """
    if not expected.allows(cause):
        return False
    if cause.name in expected.names:
        return True
    explained = set(cause.findings)
    return all(
        clues is not None and any(len(parts) == 1 and left & parts[0] for parts in clues.by_mistake)
        for clues in (report.clues_of(one) for one in report.findings if one.id in explained)
    )


def _left(expected: KnownMistake, report: Report) -> frozenset[str]:
    """The names of a mistake without those that some finding would show, and does not.

    A finding would show it if the mistake's condition holds there.
    """
    excluding = (
        (finding, clues, name)
        for finding in report.findings
        if expected.covers(finding.id) and (clues := report.clues_of(finding)) is not None
        for name in clues.excluded
        if name.mistake in expected.names
    )
    condition = set(expected.condition or ())
    gone = {
        name.mistake
        for finding, clues, name in excluding
        if condition <= {*of_finding(finding, name.term), *clues.conditions}
    }
    return frozenset(expected.names) - gone


@dataclass(frozen=True)
class Comparing(Gate):
    """Fails findings that are worse than in an earlier report, or wrong and missing there.

    What the report lacks cannot be called known: whoever adds a layout, a case or a check to a run
    makes the baseline anew. It may hold more than a run looks at, and may not lack most of that.
    """

    path: Path
    baseline: Report
    request: Request

    @cached_property
    def _known(self) -> FindingsByKey:
        return FindingsByKey(self.baseline)

    def refusal(self, cells: Sequence[AnyMatrixCell]) -> str | None:
        """The baseline has to have at least half of what the run is about to find."""
        keys = [key(self.request, cell) for cell in cells]
        lacking = [one for one in keys if one not in self._known.findings]
        if 2 * len(lacking) <= len(keys):
            return None
        missing = Counter(part for one in lacking if (part := self._known.missing_part(one)))
        named = dict.fromkeys(f"{part.dimension} {part.value}" for part, _ in missing.most_common())
        nothing_of = f" (it has nothing of {', '.join([*named][:MOST_PARTS])})" if named else ""
        return (
            f"--baseline={self.path} has {len(keys) - len(lacking)} of the {len(keys)} findings of"
            f" this run, and at least half are to be compared{nothing_of}; give a report of the"
            " same --depth, --layout, --modes and --checks, or choose what it has"
        )

    def decision(self, finding: Finding, clues: Clues | None = None) -> GateDecision:
        """By the baseline's finding of the same."""
        before, name = self._before(finding), self.path.name
        alone = Strict().decision(finding)
        if before is not None and Change(before, finding).kind is ChangeKind.WORSE:
            words = f"worse than in {name} ({_state(before)}): {_state(finding)}"
            return GateDecision(Outcome.FAILS, words)
        if alone.outcome is not Outcome.FAILS:
            return alone
        if before is None:
            words = f"not looked at in {name}, so not known to be wrong: {alone.words}"
            return GateDecision(Outcome.FAILS, words)
        return GateDecision(Outcome.KNOWN, f"no worse than in {name}: {alone.words}")

    def _before(self, finding: Finding) -> Finding | None:
        """The baseline's finding of the same; None if it says nothing of this one."""
        before = self._known.findings.get(key(self.request, finding))
        if before is None or Change(before, finding).kind is ChangeKind.UNSEEN_BEFORE:
            return None
        return before

    def difference(self, report: Report) -> Difference:
        """The changes since the baseline."""
        return difference(self.baseline, report)

    def lines(self, report: Report) -> Iterator[str]:
        """Lines on how much was compared, and how to renew the baseline if that is due."""
        found = self.difference(report)
        yield (
            f"compared with {self.path}, which has {found.compared} of this run's"
            f" {len(report.findings)} findings"
        )
        unknown = sum(self._before(one) is None for one in self.failing(report))
        if unknown:
            yield (
                f"{unknown} wrong findings were not looked at in {self.path} and fail for that:"
                " make it anew with this run's selection"
            )
        elif report.complete and found.of(ChangeKind.BETTER) and not found.worse:
            yield f"nothing is worse, and something better: renew {self.path} with this report"


def _state(finding: Finding) -> str:
    words = explain(finding)
    return f"{finding.verdict}: {words}" if words else str(finding.verdict)
