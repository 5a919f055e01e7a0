"""Runs a version of a framework and its base on the jobs most likely to show the change."""

from __future__ import annotations

import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from adapters.contract import Layout
from adapters.toolkit.changes import Versions, changed_lines, versions
from conformance.comparing import journal
from conformance.explain.causes import causes
from conformance.findings.errors import NothingToCompareError
from conformance.findings.verdict import Check
from conformance.plan.telling import Telling, telling
from conformance.runs import registry, settings
from conformance.runs.versions import history
from conformance.runs.versions.history import CommitRuns, Row

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from adapters.contract import Adapter
    from conformance.findings.report import Report

POLL = 0.5
"""Seconds between two looks at how far the runs have come."""


@dataclass(frozen=True, kw_only=True)
class Review:
    """What is about to be run: two versions, the lines that differ, and what they are held to."""

    adapter: Adapter
    versions: Versions
    changed: Mapping[str, str]
    telling: Telling
    selection: CommitRuns


class Rows(NamedTuple):
    """What became of the two versions."""

    base: Row
    head: Row


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
    """Find the two versions and choose what to run; ``options`` are further ones of both runs.

    Raises:
        ConformanceError: a version, an adapter or a layout does not exist.
    """
    driven = registry.create(adapter, engine)
    found = versions(source, base)
    changed = changed_lines(driven, found)
    chosen = telling(
        driven, changed, [*map(Layout.parse, layouts)], checks, settings.modes_of(modes)
    )
    selection = CommitRuns(
        adapter=adapter,
        repository=found.repository,
        engine=engine,
        options=(
            *([f"--engine={engine}"] if engine else []),
            *([f"--modes={modes}"] if modes else []),
            *options,
            *(f"--layout={layout}" for layout in chosen.layouts),
            *("-k", " or ".join(f"[{cell.id}]" for cell in chosen.cells)),
        ),
    )
    return Review(
        adapter=driven, versions=found, changed=changed, telling=chosen, selection=selection
    )


def run(
    review: Review,
    reports: Path | None,
    budget: float,
    show: Callable[[Sequence[str], Sequence[str]], None],
) -> tuple[Rows, bool]:
    """Run both versions at once, and show the ids of what each has made, until both have ended.

    They are ended after ``budget`` seconds, or if the review is interrupted, which is returned as
    well. Their reports are kept in a folder, if one is given, as base.json and head.json.
    """
    until, is_interrupted = time.monotonic() + budget, False
    with (
        tempfile.TemporaryDirectory() as scratch,
        ThreadPoolExecutor(len(Rows._fields)) as threads,
    ):
        paths = [(reports or Path(scratch)).resolve() / f"{name}.json" for name in Rows._fields]
        commits = (review.versions.base, review.versions.head)
        running = [
            threads.submit(history.run_one, review.selection, commit, path, scratch, until)
            for commit, path in zip(commits, paths, strict=True)
        ]
        try:
            while wait(running, timeout=POLL).not_done:
                show(*map(journal.made, paths))
        except KeyboardInterrupt:
            is_interrupted = True
            history.end_all()
        return Rows(*(one.result() for one in running)), is_interrupted


def reports(rows: Rows) -> tuple[Report, Report]:
    """The reports of both versions, of the findings that both have if their time was over.

    Raises:
        NothingToCompareError: one of them could not be run, or not to its end.
    """
    for name, row in zip(rows._fields, rows, strict=True):
        if row.report is None and row.is_cut_short:
            raise NothingToCompareError(
                f"no verdict, as the {name}, {row.commit.ref}, was ended before its first finding",
                "give it more time with --budget=SECONDS",
            )
        if row.report is None or row.problem is not None:
            raise NothingToCompareError(
                f"no verdict, as the {name}, {row.commit.ref}, could not be run: {row.problem}"
            )
    base, head = rows.base.report, rows.head.report
    assert base is not None
    assert head is not None
    if rows.base.is_cut_short or rows.head.is_cut_short:
        return _among(base, head), _among(head, base)
    return base, head


def _among(report: Report, other: Report) -> Report:
    """A report of those findings that another has as well."""
    ids = {finding.id for finding in other.findings}
    findings = [finding for finding in report.findings if finding.id in ids]
    of_findings = causes(findings, report.clues, report.chosen_by)
    return report.model_copy(update={"findings": findings, "causes": of_findings, "complete": True})
