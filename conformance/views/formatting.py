"""Parts of views: counts of verdicts, tables of text, and GitHub's Markdown.

Text from outside is escaped, so that it has no effect in Markdown.
"""

from __future__ import annotations

import html
import re
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from jinja2 import (
    Environment,
    FileSystemLoader,
    StrictUndefined,
    pass_eval_context,
    select_autoescape,
)
from jinja2.ext import Extension
from markupsafe import Markup
from rich.console import Console
from rich.table import Table
from rich.text import Text

from conformance.findings.verdict import WRONG, Verdict
from reference.aggregation import Mode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from jinja2.nodes import EvalContext

    from conformance.findings.finding import Finding


TEMPLATES = Path(__file__).with_name("templates")

SPECIAL_CHARACTERS = re.compile(
    r"""
    [`*|~$]
    | \\(?=[!-/:-@\[-`{-~]|$)                   # an escape
    | (?<!\w)_+ | _+(?!\w)                      # inside of a word, an underscore is only that
    | <(?=[a-zA-Z/!?])                          # a tag or comment
    | &(?=\#?\w+;)                              # an entity
    | ](?=[(\[:])                               # the end of a link's text
    | ^(?:>|[\#=+-]+(?=\s|$)|\[(?=[ xX]\])|\d+(?=[.)](?:\s|$)))     # a quotation, heading or list
    """,
    re.VERBOSE,
)
"""Characters of a line that have a meaning in Markdown, or in GitHub's dialect of it."""

LINKING = re.compile(r"@|\#(?=\d)")
"""The beginning of GitHub's mentions of users, issues and pull requests."""

ZERO_WIDTH_SPACE = "\N{ZERO WIDTH SPACE}"
"""An invisible character. After an @ or # it keeps GitHub from linking, unlike a backslash."""

Row = TypeVar("Row")

SYMBOLS = {
    Verdict.CONFORMS: "ok",
    Verdict.MISMATCH: "MISMATCH",
    Verdict.REFUSED: "refused",
    Verdict.UNSUPPORTED: "unsupported",
    Verdict.DECLINED: "DECLINED",
    Verdict.CRASHED: "CRASHED",
    Verdict.ADVICE: "advice",
    Verdict.NOT_DRIVEN: "not driven",
}


def markdown_table(header: Sequence[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    """Yields the lines of a table whose cells are Markdown."""
    yield f"| {' | '.join(header)} |"
    yield f"|{'---|' * len(header)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def escape_markdown(text: str) -> str:
    """Returns one line of Markdown that reads as ``text``, rendered or not, without other effects.

    Only characters that would have an effect are escaped, with a backslash.
    """
    return _unlinked(SPECIAL_CHARACTERS.sub(_escaped, " ".join(text.split())))


def _escaped(found: re.Match[str]) -> str:
    """Returns the characters, each after a backslash, or a list's number before a backslash."""
    characters = found[0]
    return f"{characters}\\" if characters.isdigit() else "".join(f"\\{one}" for one in characters)


def escape_html(text: str) -> str:
    """Returns a line for a block of HTML, inside which Markdown has no effect."""
    return _unlinked(html.escape(" ".join(text.split()), quote=False))


def _unlinked(text: str) -> str:
    return LINKING.sub(rf"\g<0>{ZERO_WIDTH_SPACE}", text)


def code(text: str) -> str:
    """Returns one line of Markdown that shows ``text`` as code, so no character has an effect."""
    line = " ".join(text.split())
    ticks = "`" * (_longest_run("`", line) + 1)
    space = " " if "`" in line else ""
    return f"{ticks}{space}{line}{space}{ticks}" if line else ""


def preformatted(lines: Iterable[str]) -> Iterator[str]:
    """Yields a block of Markdown that shows lines unchanged, where no character has an effect."""
    shown = [*lines]
    fence = "`" * max(3, *(_longest_run("`", line) + 1 for line in shown), 0)
    yield f"{fence}text"
    yield from shown
    yield fence


def _longest_run(character: str, text: str) -> int:
    return max(map(len, re.findall(f"{re.escape(character)}+", text)), default=0)


class _Unindented(Extension):
    """Removes the indentation of HTML templates, which is a twentieth of a page."""

    def preprocess(self, source: str, name: str | None, filename: str | None = None) -> str:
        """The source of a template, without indentation if it is HTML."""
        is_html = name is not None and name.endswith(".html")
        return re.sub(r"^ +", "", source, flags=re.MULTILINE) if is_html else source


def environment(**filters: Callable[..., str]) -> Environment:
    """Returns an environment for our templates with the filters `md`, `code`, `table` and others.

    Only HTML is escaped automatically: text from outside in Markdown must go through a filter.
    """
    found = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=select_autoescape(["html"]),
        finalize=_escaped_in_html,
        undefined=StrictUndefined,
        extensions=[_Unindented],
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    found.filters |= {"md": escape_markdown, "html": escape_html, "code": code, "table": _table}
    found.filters |= {"with_code": _code_marked, **filters}
    return found


@pass_eval_context
def _escaped_in_html(context: EvalContext, value: object) -> object:
    """Returns a value with HTML's special characters escaped, if the template is HTML.

    Jinja would escape apostrophes as well, which makes sentences and commands hard to read in the
    page's source. Apostrophes only end attributes in single quotes, and our templates have none.
    """
    if not context.autoescape or hasattr(value, "__html__"):
        return value
    return Markup(html.escape(str(value), quote=False).replace('"', "&quot;"))


def _code_marked(markdown: str) -> Markup:
    """Returns words as HTML, with text between backticks as code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(markdown, quote=False)))


def _table(rows: Iterable[Iterable[str]], header: Sequence[str]) -> str:
    return "\n".join(markdown_table(header, rows))


def text_table(rows: Iterable[Iterable[str]]) -> list[str]:
    """Returns the lines of a table with columns as wide as their longest cell."""
    table = Table.grid(padding=(0, 2, 0, 0))
    for row in rows:
        table.add_row(*map(Text, row))
    console = Console(width=sys.maxsize)
    with console.capture() as captured:
        console.print(table)
    return [line.rstrip() for line in captured.get().splitlines()]


def verdict_words(verdicts: Mapping[Verdict, int]) -> dict[Verdict, str]:
    """Returns the count and symbol of each verdict that occurs, such as ``2 MISMATCH``."""
    return {v: f"{verdicts[v]} {SYMBOLS[v]}" for v in Verdict if verdicts.get(v)}


def verdict_matrix(
    findings: Iterable[Finding], field: str, rows: Iterable[Row]
) -> dict[Row, dict[Mode, Counter[Verdict]]]:
    """Counts verdicts by a field of the findings and by mode; counts of 0 are left out."""
    counts: dict[tuple[Row, Mode], Counter[Verdict]] = defaultdict(Counter)
    for finding in findings:
        counts[getattr(finding, field), finding.mode][finding.verdict] += 1
    matrix = {
        row: {mode: counts[row, mode] for mode in Mode if (row, mode) in counts} for row in rows
    }
    return {row: cells for row, cells in matrix.items() if cells}


def matrix_rows(
    heading: str, matrix: Mapping[Row, Mapping[Mode, Counter[Verdict]]], empty: str = ""
) -> list[list[str]]:
    """Returns a header and a row of texts for each row of a matrix of verdicts."""
    modes = [mode for mode in Mode if any(mode in cells for cells in matrix.values())]
    rows = [
        [str(row), *(_counts(cells[mode]) if mode in cells else empty for mode in modes)]
        for row, cells in matrix.items()
    ]
    return [[heading, *modes], *rows]


def _counts(verdicts: Counter[Verdict]) -> str:
    return ", ".join(verdict_words(verdicts).values())


@dataclass(frozen=True)
class Tally:
    """The numbers of findings that are wrong, right, refused and not judged."""

    verdicts: Counter[Verdict]
    rightly_refused: int

    @classmethod
    def of(cls, findings: Iterable[Finding]) -> Tally:
        """Counts findings."""
        found = [*findings]
        rightly_refused = sum(one.is_rightly_refused for one in found)
        return cls(Counter(one.verdict for one in found), rightly_refused)

    @property
    def wrong(self) -> int:
        """The number of mismatches, crashes, and ordinary steps declined against a promise."""
        return sum(self.verdicts[verdict] for verdict in WRONG)

    @property
    def right(self) -> int:
        """The number of findings that conform, or in which bad input is refused."""
        return self.verdicts[Verdict.CONFORMS] + self.rightly_refused

    @property
    def refused(self) -> int:
        """The number of ordinary steps that the framework refuses, so that no weights are known."""
        return self.verdicts[Verdict.REFUSED] - self.rightly_refused

    @property
    def seen(self) -> int:
        """The number of wrong, right and refused findings."""
        return self.wrong + self.right + self.refused
