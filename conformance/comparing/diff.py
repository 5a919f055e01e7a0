"""The changes between two reports: every finding is in exactly one `Change`, of one `ChangeKind`.

Findings are compared one by one, by their subject (`Key`), never by counts. The order of verdicts,
from best to worst:

1. ``conforms`` and ``advice``, which breaks no promise, and ``refused`` where bad input has to be
refused (`Finding.is_rightly_refused`).
2. ``refused`` and ``unsupported``: nothing is trained, and the failure is explicit. A framework
that refuses a step which it used to reduce wrongly has become better.
3. ``mismatch``: training goes on with wrong weights. Of two mismatches, the one that is off by the
larger factor is worse, whether too large or too small (`conformance.findings.badness`).
4. ``crashed``: nothing is trained, without a decision of the framework, and errors in the weights
are hidden.

A finding that was wrong and is ``unsupported`` now has not become better, since it was not run
again. The same holds for a finding that is ``not_driven`` on one of the sides.

A finding on a check, mode, depth, layout or case that only one report covers says nothing about the
other report's code. Such findings are kept apart, and so are findings that only one report has
although both reports cover their check, mode, depth, layout and case.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from conformance.comparing.report_file import load_reliable
from conformance.findings.badness import failure, growth
from conformance.findings.errors import NothingToCompareError
from conformance.findings.finding import GENERATED
from conformance.findings.report import PlanSize
from conformance.findings.sanitize import numberless
from conformance.findings.verdict import UNJUDGED, WRONG, Check, Verdict
from reference.aggregation import Mode

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from conformance.findings.finding import Finding
    from conformance.findings.groups import FindingFilter
    from conformance.findings.report import Report, Request
    from conformance.plan.matrix import AnyMatrixCell


class ChangeKind(StrEnum):
    """Fates of a finding, the one that needs attention first."""

    WORSE = "worse"
    BETTER = "better"
    OTHER_DIAGNOSIS = "other_diagnosis"
    """As wrong as before, by another mistake or another crash."""

    CHANGED = "sideways"
    """Another verdict of the same rank, or wrong in both reports without errors to compare."""

    UNSEEN = "not_looked_at_again"
    """OLD judged the finding, and NEW did not."""

    UNSEEN_BEFORE = "not_looked_at_before"
    """NEW judged the finding, and OLD did not."""

    VANISHED = "vanished"
    """Only OLD has it, although NEW covers its check, mode, depth, layout and case."""

    APPEARED = "appeared"
    """Only NEW has it, although OLD covers its check, mode, depth, layout and case."""

    ONLY_OLD = "only_old"
    """It belongs to a part of the suite from which NEW has no finding."""

    ONLY_NEW = "only_new"
    """It belongs to a part of the suite from which OLD has no finding."""

    SAME = "same"


class Slice(NamedTuple):
    """A whole check, or the part of it with one value of a dimension, such as one layout."""

    check: Check
    dimension: str
    value: str


class Key(NamedTuple):
    """The subject of a finding; findings with the same key are compared.

    It distinguishes subjects that have the same name in two runs: generated cases made with other
    options, and `constant` with another divisor.
    """

    check: Check
    subject: str
    depth: str
    mode: str
    layout: str
    case: str

    def parts(self) -> Iterator[Slice]:
        """The parts that it belongs to, the largest first."""
        for dimension in self._fields:
            yield Slice(self.check, dimension, getattr(self, dimension))


@dataclass(frozen=True)
class Change:
    """A finding of one report, or of both, and its fate.

    ``part`` is the part of the suite that the other report lacks, if the finding is alone for that
    reason.
    """

    old: Finding | None
    new: Finding | None
    part: Slice | None = None

    @cached_property
    def kind(self) -> ChangeKind:
        """The kind of change."""
        if self.old is None:
            return ChangeKind.ONLY_NEW if self.part else ChangeKind.APPEARED
        if self.new is None:
            return ChangeKind.ONLY_OLD if self.part else ChangeKind.VANISHED
        return _kind(self.old, self.new)

    @property
    def finding(self) -> Finding:
        """The new finding, or the old one if there is no new one."""
        finding = self.new or self.old
        assert finding is not None
        return finding


class State(NamedTuple):
    """A verdict, with the name of the mistake or the words of the failure if it is wrong."""

    verdict: Verdict
    cause: str

    @classmethod
    def of(cls, finding: Finding) -> State:
        """The state of a finding."""
        if finding.diagnosis is not None:
            return cls(finding.verdict, finding.diagnosis.name)
        return cls(finding.verdict, failure(finding) if finding.verdict in WRONG else "")

    @property
    def form(self) -> State:
        """The state without numbers in the words of a failure, such as line numbers."""
        is_failure = self.verdict in (Verdict.CRASHED, Verdict.DECLINED)
        return self._replace(cause=numberless(self.cause)) if is_failure else self


class Group(NamedTuple):
    """Changes that all have one state before and one state after."""

    kind: ChangeKind
    before: State | None
    after: State | None
    changes: tuple[Change, ...]

    @property
    def subjects(self) -> dict[str, int]:
        """The number of changes by check, or by subject of a check, the largest first."""
        return dict(Counter(change.finding.identity.slug for change in self.changes).most_common())

    @property
    def modes(self) -> dict[Mode, int]:
        """The number of changes by mode."""
        counts = Counter(change.finding.mode for change in self.changes)
        return {mode: counts[mode] for mode in Mode if counts[mode]}

    @property
    def example(self) -> Change:
        """The change whose finding needs the fewest ranks."""
        return min(
            self.changes,
            key=lambda change: (change.finding.layout.world_size, change.finding.id),
        )


class SettingChange(NamedTuple):
    """An option, a convention or a property of the environment that differs."""

    section: str
    name: str
    old: str | None
    new: str | None


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Two reports and the changes between them, ordered by the findings' keys."""

    old: Report
    new: Report
    changes: tuple[Change, ...]

    def of(self, kind: ChangeKind) -> tuple[Change, ...]:
        """The changes of one kind."""
        return tuple(change for change in self.changes if change.kind is kind)

    @property
    def worse(self) -> tuple[Change, ...]:
        """The changes for the worse, which make a gate fail the run."""
        return self.of(ChangeKind.WORSE)

    @property
    def compared(self) -> int:
        """The number of findings that both reports have."""
        return sum(change.old is not None and change.new is not None for change in self.changes)

    @property
    def is_of_one_framework(self) -> bool:
        """Whether both reports are about the same framework, so that one may be the later."""
        return (self.old.adapter, self.old.engine) == (self.new.adapter, self.new.engine)

    @property
    def same_source(self) -> str | None:
        """The commit, or else the version, that both reports are about; None if they differ.

        A checkout with uncommitted changes counts as no commit.
        """
        old, new = self.old.source, self.new.source
        if not self.is_of_one_framework or old.dirty or new.dirty:
            return None
        if old.revision is not None and old.revision == new.revision:
            return f"commit, {old.revision}"
        if old.revision is new.revision is None and old.version == new.version:
            return f"version, {old.version}"
        return None

    @property
    def settings(self) -> tuple[SettingChange, ...]:
        """Options, conventions and environment that differ."""
        olds, news = _settings(self.old), _settings(self.new)
        both = [
            SettingChange(section, name, olds[section].get(name), news[section].get(name))
            for section in olds
            for name in olds[section] | news[section]
        ]
        return tuple(setting for setting in both if setting.old != setting.new)

    def groups(self) -> list[Group]:
        """All changes except in parts that one report lacks, by kind, the largest groups first."""
        alike: dict[tuple[ChangeKind, State | None, State | None], list[Change]] = defaultdict(list)
        for change in self.changes:
            if change.kind is not ChangeKind.SAME and change.part is None:
                before, after = (State.of(one) if one else None for one in (change.old, change.new))
                alike[change.kind, before, after].append(change)
        groups = [Group(*likeness, tuple(changes)) for likeness, changes in alike.items()]
        order = list(ChangeKind)
        return sorted(groups, key=lambda group: (order.index(group.kind), -len(group.changes)))

    def parts(self, kind: ChangeKind) -> dict[Slice, int]:
        """The parts that only one report covers, with numbers of findings, the largest first."""
        counts = Counter(change.part for change in self.of(kind) if change.part is not None)
        return dict(counts.most_common())


def load_difference(old: Path, new: Path, choice: FindingFilter) -> Difference:
    """Compare the chosen findings of two files.

    Raises:
        ReportFileError: a file cannot be read.
        UnreliableReportError: a fault of the harness stopped the run of a report.
        NothingToCompareError: no chosen finding is in both reports.
    """
    found = difference(choice.of(load_reliable(old)), choice.of(load_reliable(new)))
    if not found.compared:
        raise NothingToCompareError(
            f"{old} and {new} have nothing in common: no finding of one check, mode, depth, layout"
            " and case is in both",
            "give reports with the same selection, or fewer --checks and --modes",
        )
    return found


def difference(old: Report, new: Report) -> Difference:
    """Compare the findings of two reports."""
    olds, news = FindingsByKey(old), FindingsByKey(new)
    changes = []
    for key in sorted(olds.findings.keys() | news.findings.keys()):
        part = (news if key in olds.findings else olds).lacking(key)
        changes.append(Change(olds.findings.get(key), news.findings.get(key), part))
    return Difference(old=old, new=new, changes=tuple(changes))


class FindingsByKey:
    """The findings of a report by their subjects."""

    def __init__(self, report: Report) -> None:
        self.findings = {key(report.request, finding): finding for finding in report.findings}
        self._is_quick = report.request.plan is PlanSize.QUICK
        self._parts = {part for key in self.findings for part in key.parts()}

    def missing_part(self, key: Key) -> Slice | None:
        """The largest part with a key from which the report has no finding."""
        return next((part for part in key.parts() if part not in self._parts), None)

    def lacking(self, key: Key) -> Slice | None:
        """A part that the report lacks, or that its plan hardly covers; None if it has the key."""
        little = Slice(key.check, "plan", PlanSize.QUICK) if self._is_quick else None
        return None if key in self.findings else self.missing_part(key) or little


def key(request: Request, of: Finding | AnyMatrixCell) -> Key:
    """The subject of a finding, or of a cell that will give one."""
    subject, mode, rest = of.id.split("/", 2)
    case, _, layout = rest.rpartition("/")
    if mode == Mode.CONSTANT and request.divisor is not None:
        mode = f"{mode}:{request.divisor!r}"
    if case == GENERATED:
        case = f"{case} ({request.examples} examples of seed {request.seed})"
    check = Check(subject.partition(".")[0])
    return Key(check=check, subject=subject, depth=of.depth, mode=mode, layout=layout, case=case)


def _kind(old: Finding, new: Finding) -> ChangeKind:
    if _says_nothing_of(new, old):
        return ChangeKind.UNSEEN
    if _says_nothing_of(old, new):
        return ChangeKind.UNSEEN_BEFORE
    if _rank(new) != _rank(old):
        return ChangeKind.WORSE if _rank(new) > _rank(old) else ChangeKind.BETTER
    if old.verdict is not new.verdict:
        return ChangeKind.CHANGED
    if old.verdict not in WRONG:
        return ChangeKind.SAME
    grown = growth(old, new)
    if grown:
        return ChangeKind.WORSE if grown > 0 else ChangeKind.BETTER
    if State.of(old).form != State.of(new).form:
        return ChangeKind.OTHER_DIAGNOSIS
    return ChangeKind.CHANGED if (old.error is None) != (new.error is None) else ChangeKind.SAME


def _says_nothing_of(finding: Finding, other: Finding) -> bool:
    """Whether a finding was not judged, so that it cannot be compared with one that was judged."""
    if other.verdict in UNJUDGED or finding.verdict not in UNJUDGED:
        return False
    return other.verdict in WRONG or finding.verdict is not Verdict.UNSUPPORTED


def _rank(finding: Finding) -> int:
    """The rank of a verdict from best to worst; 1 for refused, unsupported and not driven."""
    if finding.is_rightly_refused:
        return 0
    return {
        Verdict.CONFORMS: 0,
        Verdict.ADVICE: 0,
        Verdict.MISMATCH: 2,
        Verdict.DECLINED: 2,
        Verdict.CRASHED: 3,
    }.get(finding.verdict, 1)


def _settings(report: Report) -> dict[str, dict[str, str]]:
    """Settings by section and name, without unset ones."""
    environment = report.environment.model_dump()
    dependencies, stubs = environment.pop("dependencies"), environment.pop("stubs")
    sections = {
        "options": report.request.model_dump(),
        "conventions": vars(report.conventions),
        "environment": environment,
        "dependencies": dependencies,
        "stubs": dict.fromkeys(stubs, "stubbed"),
    }
    return {
        section: {name: str(value) for name, value in values.items() if value is not None}
        for section, values in sections.items()
    }
