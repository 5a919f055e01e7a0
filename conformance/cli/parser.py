"""The options of each command."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from conformance.cli import commands
from conformance.findings.verdict import Check, Verdict
from conformance.ranks.hardware import MAX_RANKS
from reference.aggregation import Mode

if TYPE_CHECKING:
    from collections.abc import Callable
    from enum import StrEnum

    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]


def parser() -> argparse.ArgumentParser:
    """Returns the parser of all commands, each of which sets ``lines``."""
    parser = argparse.ArgumentParser(prog="rl-loss-conformance")
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND")
    for add in (
        _add_adapters,
        _add_check_adapter,
        _add_cases,
        _add_plan,
        _add_history,
        _add_show,
        _add_diff,
        _add_html,
        _add_convert,
    ):
        add(subparsers)
    expect = subparsers.add_parser(
        "expect", help="a file for --expect with all that a report says is wrong, to be completed"
    )
    expect.add_argument("report", type=Path, metavar="REPORT")
    expect.set_defaults(lines=commands.expect)
    issue = subparsers.add_parser(
        "issue", help="a cause of a report as a bug report for the framework's tracker, in Markdown"
    )
    issue.add_argument("report", type=Path, metavar="REPORT")
    words = "its name or the beginning of it, or its place among the causes of the report"
    issue.add_argument("cause", metavar="CAUSE", help=words)
    issue.set_defaults(lines=commands.issue)
    return parser


def _add_adapters(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
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
    parser.set_defaults(lines=commands.adapters)


def _add_check_adapter(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "check-adapter",
        help="what an adapter that is being written gets wrong; exit status 0 nothing that can be"
        " seen, 1 something, 2 it cannot be loaded",
    )
    parser.add_argument("name", metavar="NAME|MODULE:CLASS", help="it, installed or not")
    parser.add_argument("--engine", metavar="NAME", help="training engine, where it has several")
    parser.add_argument("--source", metavar="PATH[@REF]|pypi:VERSION", help="the framework's code")
    parser.set_defaults(lines=commands.check_adapter)


def _add_cases(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "cases", help="the corpus as a table: what each case catches and where that is known from"
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="show these, sample by sample")
    parser.set_defaults(lines=commands.cases)


def _add_plan(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "plan", help="what the quick plan of an adapter looks at, and what each job of it is for"
    )
    parser.add_argument("--adapter", required=True, metavar="NAME|MODULE:CLASS")
    parser.add_argument("--engine", metavar="NAME")
    parser.add_argument("--max-ranks", type=int, default=MAX_RANKS, metavar="N")
    parser.set_defaults(lines=commands.plan)


def _add_history(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
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
    parser.set_defaults(lines=commands.history)


def _add_show(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "show", help="a report in short: the causes of what is wrong, verdicts by check and mode"
    )
    parser.add_argument("report", type=Path, metavar="REPORT")
    _add_filter(parser, Check, Mode, Verdict)
    _add_format(parser, "text", "markdown", "json")
    parser.set_defaults(lines=commands.show)


def _add_diff(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
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
    parser.set_defaults(lines=commands.diff, verdict=frozenset())


def _add_html(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "html", help="reports as one web page that needs nothing else: causes, matrix, pictures"
    )
    words = "several of one framework are a timeline, in this order"
    parser.add_argument("reports", nargs="+", type=Path, metavar="REPORT", help=words)
    parser.add_argument("-o", "--output", required=True, type=Path, metavar="FILE")
    parser.set_defaults(lines=commands.html)


def _add_convert(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "convert",
        help="the factor on the learning rate for a step that moves to another framework",
    )
    for option, name in (("--from", "before"), ("--to", "after")):
        parser.add_argument(
            option,
            required=True,
            dest=name,
            metavar="FRAMEWORK:NAME",
            help="a reduction by the framework's own name, such as verl:token-mean; of another"
            " engine than the default, FRAMEWORK/ENGINE:NAME",
        )
    parser.add_argument("step", type=Path, metavar="STEP.json", help="as for --case-file")
    parser.set_defaults(lines=commands.convert)


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
