"""The command line: ``rl-loss-conformance COMMAND``."""

from __future__ import annotations

import argparse
import os
import sys
import textwrap
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from adapters.contract import Depth
from conformance.comparing import expectations
from conformance.comparing.diff import load_difference
from conformance.comparing.groups import FindingFilter
from conformance.comparing.report_file import load
from conformance.corpus.cases import ALL_CASES
from conformance.findings.errors import ConformanceError
from conformance.findings.verdict import Check, Verdict
from conformance.ranks.hardware import MAX_RANKS
from conformance.runs import history, registry
from conformance.views import diff_formats, history_table, listing, page, show
from reference.aggregation import Mode

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
    from enum import StrEnum

    from adapters.contract import Description
    from adapters.toolkit.source import Source
    from conformance.comparing.diff import Difference

WORSE = 1

USAGE_ERROR = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit status is 0, or 2 for a command that cannot be carried out."""
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
    """Print the lines as they come; the exit status is what their generator returns, or else 0."""
    while True:
        try:
            print(next(lines), flush=True)
        except StopIteration as end:
            return end.value or 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="rl-loss-conformance")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    adapters = commands.add_parser(
        "adapters", help="what can be checked here: frameworks found, their modes and engines"
    )
    adapters.add_argument(
        "--source",
        action="append",
        default=[],
        type=_named_source,
        metavar="NAME=PATH[@REF]",
        help="where the framework of an adapter is (repeatable)",
    )
    adapters.set_defaults(lines=lambda options: _adapters(dict(options.source)))
    cases = commands.add_parser(
        "cases", help="the corpus as a table: what each case catches and where that is known from"
    )
    cases.add_argument("names", nargs="*", metavar="NAME", help="show these, sample by sample")
    cases.set_defaults(lines=lambda options: _cases(options.names))
    _add_history(commands)
    _add_show(commands)
    _add_diff(commands)
    _add_html(commands)
    expect = commands.add_parser(
        "expect", help="a file for --expect with all that a report says is wrong, to be completed"
    )
    expect.add_argument("report", type=Path, metavar="REPORT")
    expect.set_defaults(lines=lambda options: expectations.draft(load(options.report)))
    return parser


def _add_history(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "history", help="run commits of a framework one by one: verdicts by commit and mode"
    )
    parser.add_argument("--adapter", required=True, metavar="NAME")
    parser.add_argument(
        "--source", required=True, type=Path, metavar="PATH", help="a git repository of it"
    )
    parser.add_argument("--engine", metavar="NAME")
    parser.add_argument("--modes", metavar="MODE,…")
    parser.add_argument("--depth", default="step", metavar="DEPTH")
    parser.add_argument("--layout", action="append", default=[], metavar="LAYOUT")
    parser.add_argument(
        "--case", action="append", default=[], metavar="NAME", help="run it only (repeatable)"
    )
    parser.add_argument("--max-ranks", type=int, default=MAX_RANKS, metavar="N")
    parser.add_argument("--time-limit", type=float, default=120.0, metavar="S")
    parser.add_argument("--format", choices=("text", "markdown"), default="text")
    parser.add_argument(
        "--reports", type=Path, metavar="FOLDER", help="keep the reports of all commits there"
    )
    parser.add_argument(
        "refs", nargs="+", metavar="REF", help="commits, tags, branches, pull-request refs"
    )
    parser.set_defaults(lines=_history)


def _add_show(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "show", help="a report in short: verdicts by check and mode, what is wrong by mistake"
    )
    parser.add_argument("report", type=Path, metavar="REPORT")
    _add_choice(parser)
    parser.add_argument("--verdict", type=_several(Verdict), metavar="VERDICT,…")
    parser.add_argument("--format", choices=("text", "markdown", "json"), default="text")
    parser.set_defaults(lines=_show)


def _add_diff(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "diff",
        help="what changed between two reports; exit status 0 nothing is worse, 1 something is, 2"
        " they could not be compared",
    )
    parser.add_argument("old", type=Path, metavar="OLD")
    parser.add_argument("new", type=Path, metavar="NEW")
    _add_choice(parser)
    parser.add_argument(
        "--all",
        action="store_const",
        const=diff_formats.ALL,
        default=diff_formats.GIST,
        dest="extent",
        help="of text: every finding, not one of each group",
    )
    parser.add_argument("--format", choices=("text", "markdown", "json"), default="text")
    parser.set_defaults(lines=_diff)


def _add_html(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "html", help="reports as one web page that needs nothing else: matrix, timelines, pictures"
    )
    parser.add_argument(
        "reports",
        nargs="+",
        type=Path,
        metavar="REPORT",
        help="several of one framework are a timeline, in this order",
    )
    parser.add_argument("-o", "--output", required=True, type=Path, metavar="FILE")
    parser.set_defaults(lines=_html)


def _add_choice(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--check", type=_several(Check), metavar="CHECK,…")
    parser.add_argument("--mode", type=_several(Mode), metavar="MODE,…")


def _several(names: type[StrEnum]) -> Callable[[str], frozenset[StrEnum]]:
    """Reads names with commas between them."""

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


def _adapters(sources: dict[str, str]) -> Iterator[str]:
    for entry in registry.inventory(sources):
        default = ", default" if entry.is_default else ""
        yield f"{entry.adapter.name} (engine {entry.adapter.engine}{default})"
        if entry.source is not None:
            yield _row("source", _source(entry.source))
        if entry.problem is not None:
            yield _row("problem", entry.problem)
        if entry.description is not None:
            yield from _description(entry.description)
            layouts = entry.adapter.layouts()
            ranks = max(layout.world_size for layout in layouts)
            yield _row("layouts", f"{len(layouts)}, on up to {ranks} ranks")
        yield ""


def _cases(names: Sequence[str]) -> Iterator[str]:
    if not names:
        yield from listing.table(ALL_CASES)
    for number, case in enumerate([listing.find(name) for name in names]):
        if number:
            yield ""
        yield from listing.detail(case)


def _history(options: argparse.Namespace) -> Iterator[str]:
    """The table, once all have run; what is running is said on the error stream."""
    selection = history.Selection(
        adapter=options.adapter,
        repository=options.source.resolve(),
        engine=options.engine,
        modes=options.modes,
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
    yield from history_table.table(rows, options.format)


def _html(options: argparse.Namespace) -> Iterator[str]:
    page.write(map(load, options.reports), options.output)
    yield f"page: {options.output}"


def _choice(options: argparse.Namespace) -> FindingFilter:
    return FindingFilter(modes=options.mode or frozenset(), checks=options.check or frozenset())


def _diff(options: argparse.Namespace) -> Generator[str, None, int]:
    found = load_difference(options.old, options.new, _choice(options))
    formats: dict[str, Callable[[Difference], Iterator[str]]] = {
        "text": partial(diff_formats.as_text, extent=options.extent),
        "markdown": diff_formats.as_markdown,
        "json": diff_formats.as_json,
    }
    yield from formats[options.format](found)
    return WORSE if found.worse else 0


def _show(options: argparse.Namespace) -> Iterator[str]:
    choice = replace(_choice(options), verdicts=options.verdict or frozenset())
    report = choice.of(load(options.report))
    formats = {"text": show.as_text, "markdown": show.as_markdown, "json": show.as_json}
    yield from formats[options.format](report)


def _source(source: Source) -> str:
    parts = [source.kind, source.version, source.ref, source.revision]
    return " ".join(part for part in parts if part) + (" (dirty)" if source.dirty else "")


def _description(description: Description) -> Iterator[str]:
    yield _row("modes", _list(mode for mode in Mode if mode in description.modes))
    yield _row("depths", _list(depth for depth in Depth if depth in description.depths))
    yield _row("options", _list(sorted(description.options)))
    conventions = vars(description.conventions)
    yield _row("conventions", ", ".join(f"{name}: {value}" for name, value in conventions.items()))
    yield _row("stood in for", _list(description.stubs))
    for departure in description.departures:
        yield _row(departure.kind.replace("_", " "), f"{departure.what}: {departure.why}")


def _list(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"


def _row(name: str, value: str) -> str:
    return textwrap.fill(
        value,
        width=100,
        initial_indent=f"  {name:<14}",
        subsequent_indent=" " * 16,
        break_on_hyphens=False,
    )


if __name__ == "__main__":
    sys.exit(main())
