"""The command line: ``rl-loss-conformance COMMAND``.

A command imports what it needs when it runs, so that the quick ones start quickly.
"""

from __future__ import annotations

import argparse
import os
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

from adapters.contract import Depth
from conformance.findings.errors import ConformanceError
from conformance.findings.verdict import Check, Verdict
from conformance.ranks.hardware import MAX_RANKS
from reference.aggregation import Mode

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
    from enum import StrEnum

    from conformance.comparing.groups import FindingFilter
    from conformance.runs.registry import Entry

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

WORSE = 1

USAGE_ERROR = 2

OR_OF_THE_FRAMEWORK = ", which may be the framework's own mistake"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit status, 2 if the command cannot be carried out."""
    options = _parser().parse_args(arguments)
    try:
        return _print(options.lines(options))
    except ConformanceError as error:
        print(f"rl-loss-conformance: {error}", file=sys.stderr)
        return USAGE_ERROR
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nobody reads on
        return 0


def _print(lines: Iterator[str]) -> int:
    """Prints the lines as they come and returns what their generator does, or else 0."""
    while True:
        try:
            print(next(lines), flush=True)
        except StopIteration as end:
            return end.value or 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="rl-loss-conformance")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for add in (
        _add_adapters,
        _add_check_adapter,
        _add_cases,
        _add_plan,
        _add_history,
        _add_show,
        _add_diff,
        _add_html,
    ):
        add(commands)
    expect = commands.add_parser(
        "expect", help="a file for --expect with all that a report says is wrong, to be completed"
    )
    expect.add_argument("report", type=Path, metavar="REPORT")
    expect.set_defaults(lines=_expect)
    issue = commands.add_parser(
        "issue", help="a cause of a report as a bug report for the framework's tracker, in Markdown"
    )
    issue.add_argument("report", type=Path, metavar="REPORT")
    words = "its name or the beginning of it, or its place among the causes of the report"
    issue.add_argument("cause", metavar="CAUSE", help=words)
    issue.set_defaults(lines=_issue)
    return parser


def _add_adapters(commands: Commands) -> None:
    parser = commands.add_parser(
        "adapters", help="what can be checked here: frameworks found, their modes and engines"
    )
    parser.add_argument(
        "--source",
        action="append",
        default=[],
        type=_named_source,
        metavar="NAME=PATH[@REF]",
        help="where the framework of an adapter is (repeatable)",
    )
    parser.set_defaults(lines=_adapters)


def _add_check_adapter(commands: Commands) -> None:
    parser = commands.add_parser(
        "check-adapter",
        help="what an adapter that is being written gets wrong; exit status 0 nothing that can be"
        " seen, 1 something, 2 it cannot be loaded",
    )
    parser.add_argument("name", metavar="NAME|MODULE:CLASS", help="it, installed or not")
    parser.add_argument("--engine", metavar="NAME", help="training engine, where it has several")
    parser.add_argument("--source", metavar="PATH[@REF]|pypi:VERSION", help="the framework's code")
    parser.set_defaults(lines=_check_adapter)


def _add_cases(commands: Commands) -> None:
    parser = commands.add_parser(
        "cases", help="the corpus as a table: what each case catches and where that is known from"
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="show these, sample by sample")
    parser.set_defaults(lines=_cases)


def _add_plan(commands: Commands) -> None:
    parser = commands.add_parser(
        "plan", help="what the quick plan of an adapter looks at, and what each job of it is for"
    )
    parser.add_argument("--adapter", required=True, metavar="NAME|MODULE:CLASS")
    parser.add_argument("--engine", metavar="NAME")
    parser.add_argument("--max-ranks", type=int, default=MAX_RANKS, metavar="N")
    parser.set_defaults(lines=_plan)


def _add_history(commands: Commands) -> None:
    parser = commands.add_parser(
        "history", help="run commits of a framework one by one: verdicts and causes by commit"
    )
    parser.add_argument("--adapter", required=True, metavar="NAME")
    parser.add_argument(
        "--source", type=Path, metavar="PATH", help="a git repository of it, unless for releases"
    )
    parser.add_argument("--engine", metavar="NAME")
    parser.add_argument("--modes", metavar="MODE,…")
    parser.add_argument("--checks", metavar="CHECK,…", help="such as weights,metric (all)")
    parser.add_argument("--depth", default="step", metavar="DEPTH")
    parser.add_argument("--layout", action="append", default=[], metavar="LAYOUT")
    parser.add_argument(
        "--case", action="append", default=[], metavar="NAME", help="run it only (repeatable)"
    )
    parser.add_argument("--max-ranks", type=int, default=MAX_RANKS, metavar="N")
    parser.add_argument("--time-limit", type=float, default=120.0, metavar="S")
    _add_format(parser, "text", "markdown")
    parser.add_argument(
        "--reports", type=Path, metavar="FOLDER", help="keep the reports of all commits there"
    )
    parser.add_argument(
        "refs",
        nargs="+",
        metavar="REF",
        help="commits, tags, branches, pull-request refs, ranges such as OLDER..NEWER, and releases"
        " such as pypi:1.9.2",
    )
    parser.set_defaults(lines=_history)


def _add_show(commands: Commands) -> None:
    parser = commands.add_parser(
        "show", help="a report in short: the causes of what is wrong, verdicts by check and mode"
    )
    parser.add_argument("report", type=Path, metavar="REPORT")
    _add_filter(parser, Check, Mode, Verdict)
    _add_format(parser, "text", "markdown", "json")
    parser.set_defaults(lines=_show)


def _add_diff(commands: Commands) -> None:
    parser = commands.add_parser(
        "diff",
        help="what changed between two reports; exit status 0 nothing is worse, 1 something is, 2"
        " they could not be compared",
    )
    parser.add_argument("old", type=Path, metavar="OLD")
    parser.add_argument("new", type=Path, metavar="NEW")
    _add_filter(parser, Check, Mode)
    parser.add_argument(
        "--all", action="store_true", help="of text: every finding, not one of each group"
    )
    _add_format(parser, "text", "markdown", "json")
    parser.set_defaults(lines=_diff, verdict=frozenset())


def _add_html(commands: Commands) -> None:
    parser = commands.add_parser(
        "html", help="reports as one web page that needs nothing else: causes, matrix, pictures"
    )
    words = "several of one framework are a timeline, in this order"
    parser.add_argument("reports", nargs="+", type=Path, metavar="REPORT", help=words)
    parser.add_argument("-o", "--output", required=True, type=Path, metavar="FILE")
    parser.set_defaults(lines=_html)


def _add_filter(parser: argparse.ArgumentParser, *fields: type[StrEnum]) -> None:
    for field in fields:
        parser.add_argument(
            f"--{field.__name__.lower()}",
            type=_several(field),
            metavar=f"{field.__name__.upper()},…",
            default=frozenset(),
        )


def _add_format(parser: argparse.ArgumentParser, *formats: str) -> None:
    parser.add_argument("--format", choices=formats, default=formats[0])


def _several(names: type[StrEnum]) -> Callable[[str], frozenset[StrEnum]]:
    """Returns a parser of names with commas between them."""

    def read(text: str) -> frozenset[StrEnum]:
        try:
            return frozenset(map(names, text.split(",")))
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{error}; choose from {', '.join(names)}") from None

    return read


def _named_source(text: str) -> tuple[str, str]:
    name, equals, source = text.partition("=")
    if not (name and equals and source):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME=PATH or NAME=PATH@REF")
    return name, source


def _adapters(options: argparse.Namespace) -> Iterator[str]:
    from conformance.runs.registry import inventory

    for entry in inventory(dict(options.source)):
        default = ", default" if entry.is_default else ""
        yield f"{entry.adapter.name} (engine {entry.adapter.engine}{default})"
        for name, value in _properties(entry):
            lines = textwrap.wrap(value, width=84, break_on_hyphens=False)
            yield textwrap.indent("\n".join(lines), " " * 16).replace(" " * 16, f"  {name:<14}", 1)
        yield ""


def _properties(entry: Entry) -> Iterator[tuple[str, str]]:
    """Yields the names and values of what is known about one engine of an adapter."""
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
            _list(f"{name}: {value}" for name, value in vars(known.conventions).items()),
        )
        yield "stub packages", _list(known.stubs)
        for departure in known.departures:
            yield departure.kind.replace("_", " "), f"{departure.what}: {departure.why}"
        layouts = entry.adapter.layouts()
        ranks = max(layout.world_size for layout in layouts)
        yield "layouts", f"{len(layouts)}, on up to {ranks} ranks"


def _list(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"


def _check_adapter(options: argparse.Namespace) -> Generator[str, None, int]:
    from conformance.checker.check import AdapterCheck

    check = AdapterCheck(options.name, options.engine, options.source)
    wrong = False
    for complaint in check.complaints():
        wrong = True
        yield f"{complaint.name}{'' if complaint.of_adapter else OR_OF_THE_FRAMEWORK}"
        yield f"  in {complaint.where}"
        yield from _wrapped(complaint.words)
        yield ""
    for line in check.summary():
        yield from _wrapped(line, indent="")
    return WORSE if wrong else 0


def _wrapped(text: str, indent: str = "  ") -> Iterator[str]:
    """Yields the lines of a text, each wrapped in lines that are indented as it is."""
    for line in text.splitlines():
        words = line.lstrip()
        inner = indent + line[: len(line) - len(words)]
        lines = textwrap.wrap(words, 98, break_long_words=False, break_on_hyphens=False)
        yield from (f"{inner}{each}" for each in lines)


def _cases(options: argparse.Namespace) -> Iterator[str]:
    from conformance.views import listing

    if not options.names:
        yield from listing.table()
    for number, case in enumerate([listing.find(name) for name in options.names]):
        if number:
            yield ""
        yield from listing.detail(case)


def _plan(options: argparse.Namespace) -> Iterator[str]:
    from conformance.plan.plan import Plan
    from conformance.runs.registry import create
    from conformance.views import listing

    layouts = create(options.adapter, options.engine).layouts()
    fitting = tuple(layout for layout in layouts if layout.world_size <= options.max_ranks)
    return listing.plan_table(Plan.quick(fitting))


def _history(options: argparse.Namespace) -> Iterator[str]:
    """Yields the table once all commits have run; progress goes to the error stream."""
    from conformance.runs import history
    from conformance.views import history_table

    selection = history.Selection(
        adapter=options.adapter,
        repository=options.source and options.source.resolve(),
        engine=options.engine,
        modes=options.modes,
        checks=options.checks,
        depth=options.depth,
        layouts=tuple(options.layout),
        cases=tuple(options.case),
        max_ranks=options.max_ranks,
        time_limit=options.time_limit,
    )
    commits = history.find_commits(selection, options.refs)
    if options.reports is not None:
        history.require_folder(options.reports, selection, commits)
    rows: list[history.Row] = []
    for number, commit in enumerate(commits, 1):
        print(f"{number} of {len(commits)}: {commit.ref}", file=sys.stderr, flush=True)
        rows += history.run(selection, [commit], options.reports)
    yield from getattr(history_table, f"as_{options.format}")(rows)


def _html(options: argparse.Namespace) -> Iterator[str]:
    from conformance.comparing.report_file import load
    from conformance.views.web import page

    page.write(map(load, options.reports), options.output)
    yield f"page: {options.output}"


def _expect(options: argparse.Namespace) -> Iterator[str]:
    from conformance.comparing.expectations import draft
    from conformance.comparing.report_file import load

    return draft(load(options.report))


def _issue(options: argparse.Namespace) -> Iterator[str]:
    from conformance.comparing.groups import find_cause
    from conformance.comparing.report_file import load
    from conformance.views import issue

    report = load(options.report)
    yield from issue.as_markdown(report, find_cause(report, options.cause))


def _filter(options: argparse.Namespace) -> FindingFilter:
    from conformance.comparing.groups import FindingFilter

    return FindingFilter(verdicts=options.verdict, modes=options.mode, checks=options.check)


def _diff(options: argparse.Namespace) -> Generator[str, None, int]:
    from conformance.comparing.diff import load_difference
    from conformance.views import diff_formats

    found = load_difference(options.old, options.new, _filter(options))
    if options.all and options.format == "text":
        yield from diff_formats.as_text(found, diff_formats.ALL)
    else:
        yield from getattr(diff_formats, f"as_{options.format}")(found)
    return WORSE if found.worse else 0


def _show(options: argparse.Namespace) -> Iterator[str]:
    from conformance.comparing.report_file import load
    from conformance.views import report_formats

    report = _filter(options).of(load(options.report))
    yield from getattr(report_formats, f"as_{options.format}")(report)


if __name__ == "__main__":
    sys.exit(main())
