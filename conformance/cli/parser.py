"""The options of each command."""

from __future__ import annotations

import argparse
import re
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from conformance.cli import commands
from conformance.findings.verdict import Check, Verdict
from conformance.ranks.hardware import MAX_RANKS
from conformance.runs.options import OPTIONS
from reference import did_you_mean
from reference.aggregation import Mode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from enum import StrEnum

HELP = {
    "adapters": "what can be checked here: frameworks found, their modes and engines",
    "check-adapter": "check an adapter while writing it; the exit status is 0 without mistakes, 1"
    " with mistakes, and 2 if the adapter cannot be loaded",
    "cases": "the corpus as a table: the mistake that each case catches, and the rule's source",
    "plan": "the jobs of an adapter's quick plan, each with its checks and its reason",
    "trace": "the factors of a token's weight in one finding, each with the line that applied it",
    "review": "run a version and its base for two minutes, and say in one sentence what got worse;"
    " exit status 0 nothing did, 1 something did, 2 they could not be compared",
    "recipe": "which known mistakes reach a recipe of yours, and which numbers of its log are"
    " wrong; exit status 0 none, 1 some, 2 it cannot be read",
    "history": "run commits of a framework one by one: verdicts and causes by commit",
    "watch": "run every framework's main branch and newest release: a table in Markdown of what"
    " changed since the committed reports",
    "show": "a report in short: the causes of what is wrong, verdicts by check and mode",
    "diff": "what changed between two reports; exit status 0 nothing is worse, 1 something is, 2"
    " they could not be compared",
    "html": "reports as one web page that needs nothing else: causes, matrix, pictures",
    "convert": "the factor on the learning rate for a step that moves to another framework",
    "expect": "a draft of a file for --expect, with an entry for each cause of a report",
    "issue": "a cause of a report as a bug report for the framework's tracker, in Markdown",
}
"""All commands, each named after a function of `commands`."""


BUDGET = 120.0
"""Seconds that a review may take by default."""


class _Parser(argparse.ArgumentParser):
    """A parser that proposes the nearest valid choice for an invalid one."""

    def error(self, message: str) -> NoReturn:
        wrong = re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)", message)
        if wrong is not None:
            choices = re.findall(r"'(.*?)'", wrong[2])
            hint = did_you_mean(wrong[1], choices, f"choose from {', '.join(choices)}")
            message = f"{message[: wrong.start()]}{wrong[1]!r} is unknown; {hint}"
        super().error(message)


def parser() -> argparse.ArgumentParser:
    """Returns the parser of all commands; each command sets ``lines``."""
    parser = _Parser(prog="rl-loss-conformance")
    parser.add_argument(
        "--version", action="version", version=f"%(prog)s {version('rl-loss-conformance')}"
    )
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND")
    parsers = {name: subparsers.add_parser(name, help=words) for name, words in HELP.items()}
    for name, one in parsers.items():
        one.set_defaults(lines=getattr(commands, name.replace("-", "_")))
    _add_running(parsers)
    _add_trace(parsers["trace"])
    _add_review(parsers["review"])
    _add_recipe(parsers["recipe"])
    _add_history(parsers["history"])
    _add_watch(parsers["watch"])
    _add_reading(parsers)
    _add_convert(parsers["convert"])
    return parser


def _take(parser: argparse.ArgumentParser, *names: str, **changed: Any) -> None:
    """Add options of a run to a command, with some changes."""
    for name in names:
        parser.add_argument(f"--{name}", **{**OPTIONS[name], **changed})


def _add_running(parsers: Mapping[str, argparse.ArgumentParser]) -> None:
    """Add the options of the commands that run frameworks or list what can be run."""
    parsers["adapters"].add_argument("names", nargs="*", metavar="NAME", help="these alone")
    parsers["adapters"].add_argument(
        "--source",
        action="append",
        default=[],
        type=_named_source,
        metavar="NAME=PATH[@REF]",
        help="the place of an adapter's framework (repeatable)",
    )
    parsers["check-adapter"].add_argument(
        "name", metavar="NAME|MODULE:CLASS", help="it, installed or not"
    )
    _take(parsers["check-adapter"], "engine", "source")
    parsers["cases"].add_argument(
        "names", nargs="*", metavar="NAME", help="show these, sample by sample"
    )
    _take(parsers["plan"], "adapter", required=True, help=None)
    _take(parsers["plan"], "engine", "source")
    _take(parsers["plan"], "max-ranks", default=MAX_RANKS, help="leave out larger layouts (8)")


def _add_trace(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "finding",
        metavar="FINDING|FILE",
        help="its id, such as weights/token_mean/split_groups/dp2-cp1-mb2-thd, or its file",
    )
    _take(parser, "adapter", help="needed unless a file is given")
    _take(parser, "engine", "source", "modes", "time-limit")
    parser.add_argument(
        "--token",
        type=_token,
        metavar="SAMPLE:TOKEN",
        help="the token to trace, both counted from 0 (the token whose weight is most wrong)",
    )
    parser.add_argument(
        "--against", metavar="FINDING|FILE", help="one that conforms: list the factors that differ"
    )
    parser.add_argument("--all", action="store_true", help="in text: the whole tree")
    _add_format(parser, "text", "markdown", "json")


def _add_review(parser: argparse.ArgumentParser) -> None:
    _take(parser, "adapter", required=True, help=None)
    _take(
        parser,
        "source",
        required=True,
        help="the version: a working tree, a commit, a pull request's ref, or a release",
    )
    parser.add_argument(
        "--budget",
        type=float,
        default=BUDGET,
        metavar="SECONDS",
        help="end both runs after this time, and compare the findings that both have (120)",
    )
    parser.add_argument(
        "--base",
        metavar="REF|pypi:VERSION",
        help="the version to compare with (the commit where it left the default branch)",
    )
    _take(parser, "engine", "expect")
    _take(parser, "layout", help="run this layout instead of the two that are chosen (repeatable)")
    parser.add_argument("--checks", type=_several(Check), metavar="CHECK,…", default=frozenset())
    _take(parser, "modes", *commands.OF_BOTH_VERSIONS)
    _add_reports(parser)


def _add_recipe(parser: argparse.ArgumentParser) -> None:
    parser.usage = "rl-loss-conformance recipe --adapter=NAME [FILE] [OPTIONS] [-- WORDS]"
    parser.epilog = "WORDS are what the framework's own command would be given besides FILE."
    _take(parser, "adapter", required=True, help=None)
    parser.add_argument("file", nargs="?", type=Path, metavar="FILE", help="the recipe")
    parser.add_argument(
        "--ranks", type=int, metavar="N", help="the GPUs of your run, if the recipe does not say"
    )
    _take(parser, "engine", "source")
    _take(parser, "max-ranks", default=4, help="processes to run it on, scaled down (4)")
    parser.add_argument(
        "--budget",
        type=float,
        default=90.0,
        metavar="SECONDS",
        help="seconds for the whole command, after which no finding begins (90)",
    )
    _add_format(parser, "text", "json", "html")


def _add_history(parser: argparse.ArgumentParser) -> None:
    _take(parser, "adapter", required=True, help=None)
    parser.add_argument(
        "--source", type=Path, metavar="PATH", help="a git repository of it, unless for releases"
    )
    _take(parser, *commands.OF_EVERY_COMMIT, "layout", "case")
    _add_format(parser, "text", "markdown")
    _add_reports(parser)
    parser.add_argument(
        "refs",
        nargs="+",
        metavar="REF",
        help="commits, tags, branches, pull-request refs, ranges such as OLDER..NEWER, and releases"
        " such as pypi:1.9.2",
    )


def _add_watch(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--sources",
        type=Path,
        required=True,
        metavar="FOLDER",
        help="a folder of git repositories, each named after its framework, such as SkyRL",
    )
    parser.add_argument(
        "--budget",
        type=float,
        default=1500.0,
        metavar="SECONDS",
        help="seconds for all versions together; each gets an equal share, and the table says"
        " what was not reached (1500)",
    )
    _add_reports(parser)
    parser.add_argument("names", nargs="*", metavar="NAME", help="watch these adapters only")


def _add_reports(parser: argparse.ArgumentParser) -> None:
    words = "a folder in which to keep the reports of all commits"
    parser.add_argument("--reports", type=Path, metavar="FOLDER", help=words)


def _add_reading(parsers: Mapping[str, argparse.ArgumentParser]) -> None:
    """Add the options of the commands that read reports."""
    parsers["show"].add_argument(
        "report", nargs="?", type=Path, metavar="REPORT", help="(that of the last run here)"
    )
    _add_filter(parsers["show"], Check, Mode, Verdict)
    _add_format(parsers["show"], "text", "markdown", "json")
    _add_paths(parsers["diff"], "old", "new")
    _add_filter(parsers["diff"], Check, Mode)
    parsers["diff"].add_argument(
        "--all", action="store_true", help="in text: every finding, instead of one of each group"
    )
    _add_format(parsers["diff"], "text", "markdown", "json")
    parsers["diff"].set_defaults(verdicts=frozenset())
    words = "several reports of one framework are a timeline, in this order"
    parsers["html"].add_argument("reports", nargs="+", type=Path, metavar="REPORT", help=words)
    parsers["html"].add_argument("-o", "--output", required=True, type=Path, metavar="FILE")
    _add_paths(parsers["expect"], "report")
    _add_paths(parsers["issue"], "report")
    words = "its name, a prefix of it, or its number in the list of causes of the report"
    parsers["issue"].add_argument("cause", metavar="CAUSE", help=words)


def _add_convert(parser: argparse.ArgumentParser) -> None:
    for option, name in (("--from", "before"), ("--to", "after")):
        parser.add_argument(
            option,
            required=True,
            dest=name,
            metavar="FRAMEWORK:NAME",
            help="a reduction by the framework's own name, such as verl:token-mean; for an engine"
            " other than the default, FRAMEWORK/ENGINE:NAME",
        )
    parser.add_argument("step", type=Path, metavar="STEP.json", help="as for --case-file")


def _add_paths(parser: argparse.ArgumentParser, *names: str) -> None:
    for name in names:
        parser.add_argument(name, type=Path, metavar=name.upper())


def _add_filter(parser: argparse.ArgumentParser, *fields: type[StrEnum]) -> None:
    for field in fields:
        parser.add_argument(
            f"--{field.__name__.lower()}s",
            type=_several(field),
            metavar=f"{field.__name__.upper()},…",
            default=frozenset(),
        )


def _add_format(parser: argparse.ArgumentParser, *formats: str) -> None:
    parser.add_argument("--format", choices=formats, default=formats[0])


def _several(names: type[StrEnum]) -> Callable[[str], frozenset[StrEnum]]:
    """Returns a parser of comma-separated names."""

    def read(text: str) -> frozenset[StrEnum]:
        try:
            return frozenset(map(names, text.split(",")))
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{error}; choose from {', '.join(names)}") from None

    return read


def _token(text: str) -> tuple[int, int]:
    sample, colon, token = text.partition(":")
    if not (colon and sample.isdecimal() and token.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form SAMPLE:TOKEN, such as 0:2")
    return int(sample), int(token)


def _named_source(text: str) -> tuple[str, str]:
    name, equals, source = text.partition("=")
    if not (name and equals and source):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME=PATH or NAME=PATH@REF")
    return name, source
