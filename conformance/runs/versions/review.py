"""Runs the jobs that a change affects on a version and on its base, within a time budget."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from adapters.contract import Layout
from conformance.comparing import journal, report_file
from conformance.comparing.reviewed import worse
from conformance.findings import files
from conformance.findings.errors import NothingToCompareError, ReportFileError, ReportPathError
from conformance.findings.verdict import UNJUDGED, Check
from conformance.plan.plan import Plan
from conformance.plan.telling import Jobs, Layouts
from conformance.ranks import changed as changed_statements
from conformance.runs import registry, review_task, settings
from conformance.runs.review_task import ReviewTask
from conformance.runs.versions import history
from conformance.runs.versions.history import CommitRuns, Row
from conformance.runs.versions.kept import Kept, merged
from conformance.sources.changes import (
    Versions,
    changed_lines,
    hunks_in_head,
    lines_in_head,
    root_in_head,
    versions,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from adapters.contract import Adapter
    from conformance.findings.finding import Finding
    from conformance.findings.report import Report
    from conformance.ranks.changed import Place
    from conformance.sources.source import Commit

POLL = 0.5
"""Seconds between two checks of the runs' progress."""

SECONDS_TO_END = 3.0
"""The seconds that a run has to end before it is killed; its findings are then in its journal."""

OF_FINDINGS = 0.6
"""The share of the budget after which causes are traced, if a finding is worse by then."""

OF_A_VERDICT = 0.5
"""The share of the budget that is reserved for the time after both runs' first finding."""

NAMES = ("base.json", "head.json")
"""The file names of the two versions' reports, if they are kept."""

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, kw_only=True)
class Review:
    """The plan of a review: two versions, the lines that differ between them, and the settings."""

    adapter: Adapter
    versions: Versions
    changed: Mapping[str, str]
    """The hunks of each file."""

    lines: Mapping[str, list[int]]
    """The changed lines of the head, by absolute path."""

    hunks: Mapping[str, str]
    """The hunks of each file, by absolute path."""

    layouts: Layouts
    jobs: Jobs
    selection: CommitRuns

    @property
    def folder(self) -> str:
        """The folder of the package, relative to the workspace of a CI runner."""
        repository = self.versions.repository
        if repository is None:
            return ""
        inside = root_in_head(self.adapter, self.versions)
        workspace = Path(os.environ.get("GITHUB_WORKSPACE", repository)).resolve()
        below = repository.relative_to(workspace) if repository.is_relative_to(workspace) else ""
        return "" if (path := str(Path(below, inside))) == "." else path

    @property
    def places(self) -> set[Place]:
        """The changed statements of the head that a job can run."""
        return {
            place
            for name, lines in self.lines.items()
            for place in changed_statements.marks(Path(name), lines).places
        }


class Progress(NamedTuple):
    """The findings that the two runs have made so far."""

    head: list[Finding]
    base: dict[str, Finding]


@dataclass(frozen=True, kw_only=True)
class Ran:
    """The outcomes of the two versions, and the changed statements that no job of the head ran."""

    base: Row
    head: Row
    not_run: set[Place] = field(default_factory=set)
    is_cut_short: bool = False
    """Whether the runs were ended before they had made all their findings."""


def prepare(
    *,
    adapter: str,
    source: str,
    base: str | None = None,
    engine: str | None = None,
    layouts: Sequence[str] = (),
    checks: Collection[Check] = tuple(Check),
    modes: str | None = None,
    options: Sequence[str] = (),
) -> Review:
    """Find the two versions and choose the jobs; ``options`` are further options of both runs.

    Raises:
        ConformanceError: a version, an adapter or a layout does not exist.
    """
    driven = registry.create(adapter, engine)
    found = versions(source, base)
    changed = changed_lines(driven, found)
    chosen = Layouts(usual=tuple(map(Layout.parse, layouts))) if layouts else Layouts.of(driven)
    aggregations = settings.modes_of(modes)
    plan = Plan(layouts=chosen.usual, aggregations=aggregations, checks=frozenset(checks))
    selection = CommitRuns(
        adapter=adapter,
        repository=found.repository,
        engine=engine,
        options=(
            *([f"--engine={engine}"] if engine else []),
            *([f"--modes={modes}"] if modes else []),
            f"--checks={','.join(one for one in Check if one in checks)}",
            *options,
            *(f"--layout={layout}" for layout in (*chosen.usual, *chosen.special)),
        ),
    )
    return Review(
        adapter=driven,
        versions=found,
        changed=changed,
        lines=lines_in_head(driven, found, changed),
        hunks=hunks_in_head(driven, found, changed),
        layouts=chosen,
        jobs=Jobs(plan.driven_by(driven), driven, chosen),
        selection=selection,
    )


@contextmanager
def signals_noted() -> Iterator[threading.Event]:
    """An event, set by the first signal to end; signals that were ignored stay ignored."""
    noted = threading.Event()
    former = {sign: signal.getsignal(sign) for sign in SIGNALS}
    heard = [sign for sign, handler in former.items() if handler is not signal.SIG_IGN]
    for sign in heard:
        signal.signal(sign, lambda *_: noted.set())
    try:
        yield noted
    finally:
        for sign in heard:
            signal.signal(sign, former[sign])


class _Side:
    """The run of one version."""

    def __init__(
        self, review: Review, commit: Commit, report: Path, task: ReviewTask, scratch: Path
    ) -> None:
        self.commit = commit
        self.report = report
        self.path = scratch / f"{report.stem}.task.json"
        self._output = scratch / f"{report.stem}.txt"
        task.write(self.path)
        arguments = review.selection.arguments(commit, report)
        with self._output.open("w") as file:
            self._process = history.start(str(scratch), file, *arguments, f"--review={self.path}")

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def tell_to_end(self) -> None:
        if not self.has_ended:
            self._process.terminate()

    def row(self, latest: float) -> Row:
        """The outcome of the run; if it had to be killed, with the findings in its journal."""
        try:
            self._process.wait(max(latest - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        output = self._output.read_text("utf8", "replace")
        if self._process.poll() in history.FAILED:
            said = history.last_words(output)
            return Row(commit=self.commit, problem=said, has_failed=True)
        if (found := self._found()) is None:
            return history.row_of(self.commit, self.report, output)
        is_driven = {one.verdict for one in found.findings} - {*UNJUDGED}
        problem = None if is_driven else found.not_driven and f"not driven: {found.not_driven}"
        return Row(commit=self.commit, report=found, problem=problem)

    def _found(self) -> Report | None:
        """The report, or a report made from the journal, marked as complete with its findings."""
        journals = [one for one in (journal.left(self.report),) if one is not None]
        for path in (self.report, *journals):
            with suppress(ReportFileError):
                found = report_file.load(path)
                journal.drop(self.report)
                count = len(found.findings)
                selection = found.selection.model_copy(update={"selected": count})
                return found.model_copy(update={"selection": selection, "complete": True})
        return None


class _Both:
    """The runs of both versions; the base's run begins once it has a finding to make."""

    def __init__(self, review: Review, scratch: Path, trace_at: float) -> None:
        self._review = review
        self._scratch = scratch
        self._kept = Kept.of(review.adapter, review.versions.base, review.selection.options)
        self._known = self._kept.load()
        self._had = {} if self._known is None else {one.id: one for one in self._known.findings}
        self._paths = {name: scratch / f"{name}.json" for name in ("head", "base")}
        of_known = scratch / "known.json"
        if self._known is not None:
            report_file.write(self._known, of_known)
        layouts = review.layouts
        self._task = ReviewTask(
            usual=tuple(map(str, layouts.usual)), special=tuple(map(str, layouts.special))
        )
        for_head = replace(
            self._task,
            lines=review.lines,
            hunks=review.hunks,
            base=(str(of_known), str(self._paths["base"])),
            trace_at=trace_at,
        )
        self._base: _Side | None = None
        self.head = _Side(review, review.versions.head, self._paths["head"], for_head, scratch)

    def progress(self) -> Progress:
        """The findings that both runs have made so far."""
        head = journal.findings(self._paths["head"])
        base = self._had | {one.id: one for one in journal.findings(self._paths["base"])}
        if self._base is None and (self._known is None or {one.id for one in head} - {*base}):
            task = replace(self._task, follows=str(self._paths["head"]), kept=tuple(self._had))
            commit, path = self._review.versions.base, self._paths["base"]
            self._base = _Side(self._review, commit, path, task, self._scratch)
        return Progress(head, base)

    @property
    def have_ended(self) -> bool:
        """Whether both runs have ended, or one of them has ended without a report."""
        sides = self._sides
        are_lost = any(one.has_ended and not one.report.exists() for one in sides)
        return are_lost or all(one.has_ended for one in sides)

    @property
    def _sides(self) -> list[_Side]:
        return [one for one in (self.head, self._base) if one is not None]

    def tell_to_end(self) -> None:
        """Tell both runs to write their reports and end."""
        for one in self._sides:
            one.tell_to_end()

    def rows(self) -> tuple[Row, Row]:
        """The rows of base and head; the findings of the base are kept for later reviews."""
        latest = time.monotonic() + SECONDS_TO_END
        head = self.head.row(latest)
        base = Row(commit=self._review.versions.base)
        if self._base is not None:
            base = self._base.row(latest)
        if base.problem is not None and (self._known is None or base.report is not None):
            return base, head
        whole = merged(self._known, base.report)
        if whole is not None:
            self._kept.save(whole)
        return replace(base, report=whole, problem=None), head


def run(
    review: Review,
    until: float,
    is_ended: Callable[[], bool],
    show: Callable[[Progress], None],
) -> Ran:
    """Run both versions at the same time, and show their progress until both have ended.

    The runs are ended at ``until``, by `time.monotonic`, or once ``is_ended`` returns True. If a
    machine is so slow that starting takes most of this time, the runs get up to twice as much.
    """
    with tempfile.TemporaryDirectory() as folder:
        try:
            return _run(review, Path(folder), until, is_ended, show)
        except OSError as error:
            error.filename = error.filename or folder
            raise


def _run(
    review: Review,
    scratch: Path,
    until: float,
    is_ended: Callable[[], bool],
    show: Callable[[Progress], None],
) -> Ran:
    budget = until - time.monotonic()
    latest = until + budget
    both = _Both(review, scratch, time.time() + OF_FINDINGS * budget)
    try:
        both.progress()
        while time.monotonic() < until and not both.have_ended and not is_ended():
            show(progress := both.progress())
            if not any(one.id in progress.base for one in progress.head):
                until = min(latest, max(until, time.monotonic() + OF_A_VERDICT * budget))
            time.sleep(POLL)
        is_cut_short = not both.have_ended
    finally:
        both.tell_to_end()
    base, head = both.rows()
    before, after = (
        {one.id for one in row.report.findings} if row.report else set() for row in (base, head)
    )
    return Ran(
        base=base,
        head=head,
        not_run=review.places - review_task.ran(both.head.path),
        is_cut_short=is_cut_short or bool(after - before) or review_task.has_more(both.head.path),
    )


def require_folder(folder: Path) -> None:
    """Require that reports can be written to a folder, and remove the reports of earlier reviews.

    Raises:
        ReportPathError: the reports cannot be written there.
    """
    try:
        files.require_room(folder)
        for name in NAMES:
            (folder / name).unlink(missing_ok=True)
    except OSError as error:
        raise _not_kept(folder, error) from error


def keep(ran: Ran, folder: Path) -> ReportPathError | None:
    """Write the available reports to a folder; returns the error if one cannot be written."""
    try:
        for name, row in zip(NAMES, (ran.base, ran.head), strict=True):
            if row.report is not None:
                report_file.write(row.report, folder / name)
    except OSError as error:
        return _not_kept(folder, error)
    return None


def _not_kept(folder: Path, error: OSError) -> ReportPathError:
    words = f"no reports can be kept in {folder}: {error.strerror}"
    return ReportPathError(words, "give another folder with --reports=FOLDER")


def reports(ran: Ran) -> tuple[Report, Report]:
    """The reports of both versions, reduced to the findings that both have.

    Raises:
        NothingToCompareError: one of the versions could not be run.
    """
    both = (("base", ran.base), ("head", ran.head))
    for name, row in sorted(both, key=lambda one: not one[1].has_failed):  # the failed run first
        if row.report is None and ran.is_cut_short and not row.has_failed:
            raise NothingToCompareError(
                f"no verdict, as the {name}, {row.commit.ref}, was ended before its first finding",
                "give it more time with --budget=SECONDS",
            )
        if row.report is None or row.problem is not None:
            raise NothingToCompareError(
                f"no verdict, as the {name}, {row.commit.ref}, could not be run: {row.problem}"
            )
    base, head = ran.base.report, ran.head.report
    assert base is not None
    assert head is not None
    return _among(base, head), _among(head, base)


def _among(report: Report, other: Report) -> Report:
    """A report reduced to the findings that another report has as well."""
    ids = {finding.id for finding in other.findings}
    findings = [finding for finding in report.findings if finding.id in ids]
    found = [
        one.model_copy(update={"findings": kept})
        for one in report.causes
        if (kept := [name for name in one.findings if name in ids])
    ]
    return report.model_copy(update={"findings": findings, "causes": found, "complete": True})


def first_worse(progress: Progress) -> Finding | None:
    """The head's first finding that is worse than the base's."""
    return next(worse(progress.base, progress.head), None)
