"""Text of others in GitHub's Markdown, as it is and without effect."""

from __future__ import annotations

import html
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

SIGNS = re.compile(r"[\\`*_{}\[\]#|~$]")
"""What Markdown, or GitHub in it, gives a meaning inside of a line."""

MENTION = "@\N{ZERO WIDTH SPACE}"
"""Looks like @ and notifies nobody, which an escaped @ does."""


def escape(text: str) -> str:
    """One line that reads as ``text`` does."""
    line = " ".join(text.split())
    escaped = SIGNS.sub(lambda sign: f"&#{ord(sign[0])};", html.escape(line, quote=False))
    return escaped.replace("@", MENTION)


def preformatted(lines: Iterable[str]) -> Iterator[str]:
    """Lines that stand as they are, in which nothing but HTML has a meaning."""
    yield "<pre>"
    for line in lines:
        yield html.escape(line, quote=False).replace("@", MENTION)
    yield "</pre>"


def row(cells: Iterable[str]) -> str:
    """A line of a table whose cells hold no Markdown."""
    return f"| {' | '.join(map(escape, cells))} |"
