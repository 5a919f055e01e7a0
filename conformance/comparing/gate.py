"""The rules by which a run fails: for everything wrong, or only for unknown mistakes."""

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
"""The largest number of parts that a message names."""


class Outcome(StrEnum):
    """The effect of a finding on the run."""

    PASSES = "passes"
    SKIPPED = "skipped"
    KNOWN = "known"
    """The finding is wrong, as expected."""

    FAILS = "fails"


@dataclass(frozen=True)
class GateDecision:
    """An outcome, and the reason in one line."""

    outcome: Outcome
    words: str = ""


class Gate(ABC):
    """Rules that decide which findings fail a run."""

    @abstractmethod
    def decision(self, finding: Finding, clues: Clues | None = None) -> GateDecision:
        """The effect of one finding on the run."""

    def lines(self, report: Report) -> Iterator[str]:
        """Lines on known mistakes, for the end of a run."""
        yield from ()

    def difference(self, report: Report) -> Difference | None:
        """The changes since an earlier report; None if there is no earlier report."""
        return None

    def refusal(self, cells: Sequence[AnyMatrixCell]) -> str | None:
        """The reason why the gate cannot judge these cells, with a hint; None if it can."""
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
        """Yield the findings of a report that fail the run."""
        for finding in report.findings:
            if self.decision(finding, report.clues_of(finding)).outcome is Outcome.FAILS:
                yield finding


class Strict(Gate):
    """Fails every finding that is wrong."""

    def decision(self, finding: Finding, clues: Clues | None = None) -> GateDecision:
        """Decides by the verdict only."""
        if finding.verdict in WRONG:
            return GateDecision(Outcome.FAILS, f"{finding.verdict}: {explain(finding)}")
        if finding.verdict in UNJUDGED:
            return GateDecision(Outcome.SKIPPED, f"{finding.verdict}: {failure(finding)}")
        return GateDecision(Outcome.PASSES)


@dataclass(frozen=True)
class Expecting(Gate):
    """Fails wrong findings that are not listed, and listed ones that no longer fail as listed."""

    expectations: Expectations

    def decision(self, finding: Finding, clues: Clues | None = None) -> GateDecision:
        """Decides by the failure that lists the finding, or by a mistake that explains it."""
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
        """Lines on wrong entries, and on the number of known findings for each reason."""
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
        """The reason for each finding whose cause has an entry, by the id of the finding."""
        entered = ((cause, self.expectations.of(cause)) for cause in reversed(report.causes))
        return {name: entry.why for cause, entry in entered if entry for name in cause.findings}

    @property
    def watched(self) -> frozenset[str]:
        """The names of the expected mistakes, whose absence must be recorded."""
        return self.expectations.names

    def objection(self, report: Report) -> str | None:
        """A message on a cause that no entry describes, or on an expected cause that is gone."""
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
    """Whether a cause may be the expected mistake: no finding of a report excludes it.

    A small plan may give a mistake the name of another mistake, if both have the same effect on all
    of the plan's layouts. ``left`` are the names that no finding excludes.
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
    """The names of a mistake that no finding excludes.

    A finding excludes a name if that mistake would show in it and does not. The mistake's condition
    must hold for the finding.
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

    Wrong findings that this report, the baseline, lacks are not known: whoever adds a layout, a
    case or a check to a run must renew the baseline. The baseline may have more findings than a
    run, but must have at least half of the run's findings.
    """

    path: Path
    baseline: Report
    request: Request

    @cached_property
    def _known(self) -> FindingsByKey:
        return FindingsByKey(self.baseline)

    def refusal(self, cells: Sequence[AnyMatrixCell]) -> str | None:
        """A message if the baseline has less than half of the findings that the run will make."""
        keys = [key(self.request, cell) for cell in cells]
        lacking = [one for one in keys if one not in self._known.findings]
        if 2 * len(lacking) <= len(keys):
            return None
        missing = Counter(part for one in lacking if (part := self._known.missing_part(one)))
        named = dict.fromkeys(f"{part.dimension} {part.value}" for part, _ in missing.most_common())
        nothing_of = f" (it has nothing of {', '.join([*named][:MOST_PARTS])})" if named else ""
        return (
            f"--baseline={self.path} has {len(keys) - len(lacking)} of the {len(keys)} findings of"
            f" this run, and needs at least half{nothing_of}; give a report of the same --depth,"
            " --layout, --modes and --checks, or choose what it has"
        )

    def decision(self, finding: Finding, clues: Clues | None = None) -> GateDecision:
        """Decides by the baseline's finding on the same subject."""
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
        """The baseline's finding on the same subject; None if there is none to compare."""
        before = self._known.findings.get(key(self.request, finding))
        if before is None or Change(before, finding).kind is ChangeKind.UNSEEN_BEFORE:
            return None
        return before

    def difference(self, report: Report) -> Difference:
        """The changes since the baseline."""
        return difference(self.baseline, report)

    def lines(self, report: Report) -> Iterator[str]:
        """Lines on how much was compared, and on how to renew the baseline if it is outdated."""
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
