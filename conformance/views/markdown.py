"""GitHub's Markdown: templates, tables, and words of others that have no effect in it."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import TYPE_CHECKING

from jinja2 import (
    Environment,
    FileSystemLoader,
    StrictUndefined,
    pass_eval_context,
    select_autoescape,
)
from markupsafe import Markup

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from jinja2.nodes import EvalContext

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
"""Where Markdown, or GitHub's dialect of it, gives a meaning to characters of a line."""

LINKING = re.compile(r"@|\#(?=\d)")
"""How GitHub's mentions of users, issues and pull requests begin."""

ZERO_WIDTH_SPACE = "\N{ZERO WIDTH SPACE}"
"""Cannot be seen, and behind an @ or # it keeps GitHub from linking, which a backslash does not."""


def markdown_table(header: Sequence[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    """Yields the lines of a table whose cells are Markdown."""
    yield f"| {' | '.join(header)} |"
    yield f"|{'---|' * len(header)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def escape_markdown(text: str) -> str:
    """Returns one line of Markdown that reads as ``text``, rendered or not, with no other effect.

    Only what would have an effect is escaped, with a backslash.
    """
    return _unlinked(SPECIAL_CHARACTERS.sub(_escaped, " ".join(text.split())))


def _escaped(found: re.Match[str]) -> str:
    """Returns the characters with a backslash before each; that of a list's number is behind it."""
    characters = found[0]
    return f"{characters}\\" if characters.isdigit() else "".join(f"\\{one}" for one in characters)


def escape_html(text: str) -> str:
    """Returns a line for the inside of a block of HTML, in which Markdown has no effect."""
    return _unlinked(html.escape(" ".join(text.split()), quote=False))


def _unlinked(text: str) -> str:
    return LINKING.sub(rf"\g<0>{ZERO_WIDTH_SPACE}", text)


def code(text: str) -> str:
    """Returns one line of Markdown that shows ``text`` as code, in which nothing has an effect."""
    line = " ".join(text.split())
    ticks = "`" * (_longest_run("`", line) + 1)
    space = " " if "`" in line else ""
    return f"{ticks}{space}{line}{space}{ticks}" if line else ""


def preformatted(lines: Iterable[str]) -> Iterator[str]:
    """Yields Markdown that shows lines as they are, in which nothing has an effect."""
    shown = [*lines]
    fence = "`" * max(3, *(_longest_run("`", line) + 1 for line in shown), 0)
    yield f"{fence}text"
    yield from shown
    yield fence


def _longest_run(character: str, text: str) -> int:
    return max(map(len, re.findall(f"{re.escape(character)}+", text)), default=0)


def environment(**filters: Callable[..., str]) -> Environment:
    """Returns an environment for our templates: `md`, `code` and `table`, and further filters.

    Only HTML is escaped of its own accord: words of others in Markdown go through a filter.
    """
    found = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=select_autoescape(["html"]),
        finalize=_escaped_in_html,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    found.filters |= {"md": escape_markdown, "html": escape_html, "code": code, "table": _table}
    found.filters |= filters
    return found


@pass_eval_context
def _escaped_in_html(context: EvalContext, value: object) -> object:
    """Returns a value with all that has a meaning in HTML escaped, if the template is of HTML.

    Jinja would escape apostrophes as well, which makes sentences and commands hard to read in the
    page's source. They only end attributes in single quotes, and our templates have none.
    """
    if not context.autoescape or hasattr(value, "__html__"):
        return value
    return Markup(html.escape(str(value), quote=False).replace('"', "&quot;"))


def _table(rows: Iterable[Iterable[str]], header: Sequence[str]) -> str:
    return "\n".join(markdown_table(header, rows))
