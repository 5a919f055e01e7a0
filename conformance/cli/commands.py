"""The commands: generators that take the options and yield the lines to print.

A command imports its modules when it runs, so that quick commands start quickly.
"""

from __future__ import annotations

import os
import sys
import textwrap
import time
from pathlib import Path
from typing import TYPE_CHECKING

from conformance.findings.verdict import Check
from reference.aggregation import Mode

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Generator, Iterable, Iterator

    from conformance.findings.groups import FindingFilter
    from conformance.runs.registry import Entry
    from conformance.runs.versions.history import Row
    from conformance.runs.versions.review import Ran, Review
    from conformance.runs.versions.watch import Target
    from conformance.views.overview.committed import CommittedReport

WORSE = 1

NOT_RUN = 2
"""Exit status if a run could not report its findings."""

OF_EVERY_COMMIT = ("engine", "modes", "checks", "depth", "max-ranks", "time-limit")
"""Options of a run that a history passes on."""

OF_BOTH_VERSIONS = ("device", "backend", "time-limit")
"""Options of a run that a review passes on."""

OR_OF_THE_FRAMEWORK = ", which may be the framework's own mistake"


def adapters(options: argparse.Namespace) -> Iterator[str]:
    """Yields the adapters that can be run here, one engine after the other."""
    from conformance.runs.registry import inventory

    for entry in inventory(dict(options.source), options.names):
        default = ", default" if entry.is_default else ""
        yield f"{entry.adapter.name} (engine {entry.adapter.engine}{default})"
        for name, value in _properties(entry):
            lines = textwrap.wrap(value, width=84, break_on_hyphens=False)
            yield textwrap.indent("\n".join(lines), " " * 16).replace(" " * 16, f"  {name:<14}", 1)
        yield ""


def _properties(entry: Entry) -> Iterator[tuple[str, str]]:
    """Yields the names and values of the properties of one engine of an adapter."""
    from adapters.contract import Depth
    from conformance.findings.report import answers, sources

    if entry.source is not None:
        source = entry.source
        parts = [source.kind, source.version, source.ref, source.revision]
        yield "source", " ".join(filter(None, parts)) + (" (dirty)" if source.dirty else "")
    if entry.problem is not None:
        yield "problem", entry.problem
    if entry.description is not None:
        known = entry.description
        yield "modes", _list(mode for mode in Mode if mode in known.modes)
        yield "depths", _list(depth for depth in Depth if depth in known.depths)
        yield "options", _list(sorted(known.options))
        yield (
            "conventions",
            _list(
                f"{name}: {answer}"
                for name, answer in answers(known.conventions, sources(known.declared)).items()
            ),
        )
        yield "new options", _list(known.new_options)
        yield "stub packages", _list(known.stubs)
        for departure in known.departures:
            yield departure.kind.replace("_", " "), f"{departure.what}: {departure.why}"
        layouts = entry.adapter.layouts()
        ranks = max(layout.world_size for layout in layouts)
        yield "layouts", f"{len(layouts)}, on up to {ranks} ranks"


def _list(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"


def check_adapter(options: argparse.Namespace) -> Generator[str, None, int]:
    """Yields all complaints about an adapter; returns 1 if any is the adapter's fault, else 0."""
    from conformance.checker.check import AdapterCheck

    check = AdapterCheck(options.name, options.engine, options.source)
    wrong = False
    for complaint in check.complaints():
        wrong = wrong or complaint.of_adapter
        yield f"{complaint.name}{'' if complaint.of_adapter else OR_OF_THE_FRAMEWORK}"
        yield f"  in {complaint.where}"
        yield from _wrapped(complaint.words)
        yield ""
    for line in check.summary():
        yield from _wrapped(line, indent="")
    return 0 if check.is_relied_on and not wrong else WORSE


def _wrapped(text: str, indent: str = "  ") -> Iterator[str]:
    """Yields the lines of a text, wrapped; continuation lines keep a line's own indentation."""
    for line in text.splitlines():
        words = line.lstrip()
        inner = indent + line[: len(line) - len(words)]
        lines = textwrap.wrap(words, 98, break_long_words=False, break_on_hyphens=False)
        yield from (f"{inner}{each}" for each in lines)


def cases(options: argparse.Namespace) -> Iterator[str]:
    """Yields the corpus as a table, or some of its cases sample by sample."""
    from conformance.views import listing

    if not options.names:
        yield from listing.table()
    for number, case in enumerate([listing.find(name) for name in options.names]):
        if number:
            yield ""
        yield from listing.detail(case)


def plan(options: argparse.Namespace) -> Iterator[str]:
    """Yields the jobs of an adapter's quick plan."""
    from conformance.findings.report import PlanSize
    from conformance.plan.plan import Plan
    from conformance.runs.registry import create, describe
    from conformance.views import listing

    adapter = create(options.adapter, options.engine)
    fitting = [one for one in adapter.layouts() if one.world_size <= options.max_ranks]
    return listing.plan_table(
        Plan(layouts=tuple(fitting), size=PlanSize.QUICK).driven_by(adapter),
        None if options.source is None else describe(adapter, options.source),
    )


def review(options: argparse.Namespace) -> Generator[str, None, int]:
    """Yields the changes of a version; returns 1 if anything is worse, else 0."""
    from conformance.comparing.known import expected as expectations_of
    from conformance.comparing.reviewed import Reviewed
    from conformance.plan.matrix import may_decline
    from conformance.runs.options import GITHUB_SUMMARY
    from conformance.runs.versions import review as runs
    from conformance.views import report_formats
    from conformance.views.versions import review as view

    start = time.monotonic()
    prepared = runs.prepare(
        adapter=options.adapter,
        source=options.source,
        base=options.base,
        engine=options.engine,
        layouts=options.layout,
        checks=options.checks or tuple(Check),
        modes=options.modes,
        options=_handed_on(options, OF_BOTH_VERSIONS),
    )
    adapter, by_id = prepared.adapter, prepared.jobs.by_id
    expected = options.expect and expectations_of(options.expect, adapter.name, adapter.engine)
    yield from view.begins(prepared, options.budget)
    if options.reports is not None:
        runs.require_folder(options.reports)
    with runs.signals_noted() as interrupted:
        ran = _run_both(prepared, options, start, interrupted.is_set)
        unkept = options.reports and runs.keep(ran, options.reports)
        base, head = runs.reports(ran)
        declined = {one.id for one in head.findings if may_decline(by_id[one.id])}
        found = Reviewed.of(base, head, declined, expected)
        lines = [*view.as_text(found, prepared.changed)]
        if ran.is_cut_short:
            lines[-1] += view.cut_short(found, time.monotonic() - start, options.budget)
        lines[-1] += view.not_looked_at(ran.not_run, prepared.changed)
        yield from ("", *lines)
        if interrupted.is_set():
            raise KeyboardInterrupt
    if (path := os.environ.get(GITHUB_SUMMARY)) is not None:
        yield from view.runner_commands(found, prepared.changed, prepared.folder)
        report_formats.add_summary(found.head, lines, Path(path))
    if unkept:
        raise unkept
    return WORSE if found.failing or found.objection else 0


def _run_both(
    prepared: Review, options: argparse.Namespace, start: float, is_ended: Callable[[], bool]
) -> Ran:
    """Runs both versions, and shows their progress."""
    from conformance.cli.progress import BudgetBar
    from conformance.runs.versions import review as runs
    from conformance.views.versions import review as view

    said: list[str] = []
    with BudgetBar(options.budget) as bar:

        def show(progress: runs.Progress) -> None:
            seconds = time.monotonic() - start
            bar.show(seconds, view.so_far(progress))
            if not said and (worse := runs.first_worse(progress)) is not None:
                said.append(view.first_worse(progress.base[worse.id], worse))
                bar.say(f"{seconds:.0f} s: {said[0]}")

        return runs.run(prepared, start + options.budget, is_ended, show)


def recipe(options: argparse.Namespace) -> Generator[str, None, int]:
    """Yields the answer about a recipe; returns 1 if anything in it is wrong, else 0."""
    from adapters.contract.recipe import Typed
    from conformance.recipes.answer import answered
    from conformance.views import recipe as view

    found = answered(
        options.adapter,
        Typed(file=options.file, words=options.words, ranks=options.ranks),
        engine=options.engine,
        source=options.source,
        most_ranks=options.max_ranks,
        budget=options.budget,
    )
    yield from getattr(view, f"as_{options.format}")(found)
    return 0 if found.is_right else WORSE


def _handed_on(options: argparse.Namespace, names: Iterable[str]) -> tuple[str, ...]:
    """The options with these names that are set, as typed."""
    given = {name: getattr(options, name.replace("-", "_")) for name in names}
    return tuple(f"--{name}={value}" for name, value in given.items() if value is not None)


def history(options: argparse.Namespace) -> Generator[str, None, int]:
    """Yields the table once all commits have run; returns 0 if all runs could report.

    Progress goes to the error stream.
    """
    from conformance.runs.versions import history as runs
    from conformance.views.versions import history_table

    selection = runs.CommitRuns(
        adapter=options.adapter,
        repository=options.source and options.source.resolve(),
        engine=options.engine,
        options=(
            *_handed_on(options, OF_EVERY_COMMIT),
            *(f"--layout={layout}" for layout in options.layout),
            *(f"--case={name}" for name in options.case),
        ),
    )
    commits = runs.find_commits(selection, options.refs)
    if options.reports is not None:
        runs.require_folder(options.reports, selection, commits)
    rows: list[runs.Row] = []
    for number, commit in enumerate(commits, 1):
        print(f"{number} of {len(commits)}: {commit.ref}", file=sys.stderr, flush=True)
        rows += runs.run(selection, [commit], options.reports)
    yield from getattr(history_table, f"as_{options.format}")(rows)
    return NOT_RUN if any(row.has_failed for row in rows) else 0


def trace(options: argparse.Namespace) -> Iterator[str]:
    """Yields the factors of a token's weight, each with its line."""
    from conformance.tracing import file
    from conformance.tracing.finding import trace_finding
    from conformance.views import traces

    names = [options.finding] if options.against is None else [options.finding, options.against]
    found = [
        file.read(Path(name), options.source and Path(options.source))
        if name.endswith(file.SUFFIX)
        else trace_finding(
            name,
            adapter=options.adapter,
            engine=options.engine,
            source=options.source,
            token=options.token,
            time_limit=options.time_limit,
            modes=options.modes,
        )
        for name in names
    ]
    yield from getattr(traces, f"as_{options.format}")(*found, whole=options.all)


def watch(options: argparse.Namespace) -> Iterator[str]:
    """Yields the table, a line as soon as its version has run; progress goes to the error stream.

    Each version gets an equal share of the remaining time, so unused time goes to later versions. A
    release is compared with the newest reported release, if there is one, and any other version
    with the newest report.
    """
    from conformance.runs.versions import watch as runs
    from conformance.views.overview import committed
    from conformance.views.versions.history_table import watch_table

    targets = runs.targets(options.names, options.sources)
    found = committed.versions(committed.REPORTS)
    newest = {one.framework: one for one in committed.newest(found)}
    released = newest | {one.framework: one for one in committed.newest(committed.releases(found))}

    until = time.monotonic() + options.budget

    def rows() -> Iterator[tuple[Target, Row, CommittedReport | None]]:
        for number, target in enumerate(targets, 1):
            seconds = (until - time.monotonic()) / (len(targets) - number + 1)
            print(f"{number} of {len(targets)}: {target}", file=sys.stderr, flush=True)
            reports = newest if target.newest is runs.Newest.MAIN else released
            reported = reports.get(target.framework)
            report = reported.report if reported else None
            yield target, runs.run(target, report, options.reports, max(seconds, 0)), reported

    return watch_table(rows())


def html(options: argparse.Namespace) -> Iterator[str]:
    """Writes a page and yields its path."""
    from conformance.comparing.report_file import load_reliable
    from conformance.views.web import page

    page.write(map(load_reliable, options.reports), options.output)
    yield f"page: {options.output}"


def expect(options: argparse.Namespace) -> Iterator[str]:
    """Yields the draft of a file of known faults, to be completed."""
    from conformance.comparing.expectations import draft
    from conformance.comparing.report_file import load_reliable

    return draft(load_reliable(options.report))


def issue(options: argparse.Namespace) -> Iterator[str]:
    """Yields a cause as a bug report."""
    from conformance.comparing.report_file import load_reliable
    from conformance.findings.groups import find_cause
    from conformance.views import issue as view

    report = load_reliable(options.report)
    yield from view.as_markdown(report, find_cause(report, options.cause))


def convert(options: argparse.Namespace) -> Iterator[str]:
    """Yields the effect on a step of moving from one framework's reduction to another's."""
    from conformance.comparing.reductions import find_reduction
    from conformance.corpus.case_file import load
    from conformance.views import conversion

    before, after = map(find_reduction, (options.before, options.after))
    return conversion.as_text(load(options.step), before, after)


def _filter(options: argparse.Namespace) -> FindingFilter:
    from conformance.findings.groups import FindingFilter

    return FindingFilter(verdicts=options.verdicts, modes=options.modes, checks=options.checks)


def diff(options: argparse.Namespace) -> Generator[str, None, int]:
    """Yields the changes between two reports; returns 1 if anything is worse, else 0."""
    from conformance.comparing.diff import load_difference
    from conformance.views.versions import diff_formats

    found = load_difference(options.old, options.new, _filter(options))
    if options.all and options.format == "text":
        yield from diff_formats.as_text(found, diff_formats.ALL)
    else:
        yield from getattr(diff_formats, f"as_{options.format}")(found)
    return WORSE if found.worse else 0


def show(options: argparse.Namespace) -> Iterator[str]:
    """Yields a summary of a report."""
    from conformance.comparing.report_file import last_run, load
    from conformance.views import report_formats

    report = _filter(options).of(load(options.report or last_run(Path.cwd())))
    yield from getattr(report_formats, f"as_{options.format}")(report)
