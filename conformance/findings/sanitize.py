"""Cleans every text from outside before it enters a report."""

from __future__ import annotations

import os
import re
import socket
import sys
from itertools import dropwhile
from pathlib import Path
from traceback import FrameSummary, TracebackException

_ESCAPE_SEQUENCE = re.compile(
    r"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]|\x1b[ -/]*[0-Z\\^-~]"
)
"""Sequences that colour a terminal's text, move its cursor (ECMA-48) or set its window's title."""

_UNREADABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
"""Control characters and lone surrogates."""

_NUMBERS = re.compile(r"\d+(, \d+)*")

_ONE_RANK = re.compile(r"\brank # (waits|is|has)\b")

_SEVERAL = {"waits": "wait", "is": "are", "has": "have"}

_OURS = tuple(
    f"{Path(__file__).parents[2] / package}{os.sep}" for package in ("adapters", "conformance")
)
"""The folders of this project's own packages."""

_LINE_OF_OURS = re.compile(r'(File "(?:adapters|conformance)/[^"]+"), line \d+,')


def sanitize(text: str, source: Path | None) -> str:
    """Returns a framework's text as plain text.

    Paths become relative to import folders, as a report must depend neither on a machine's folders
    nor on its name. Escape sequences are left out, and other control characters escaped.
    """
    text = _ESCAPE_SEQUENCE.sub("", text)
    folders = [*sys.path, str(source or "")]
    for folder in sorted(filter(None, folders), key=len, reverse=True):
        text = text.replace(f"{folder.rstrip(os.sep)}{os.sep}", "")
    text = re.sub(rf"\b{re.escape(socket.gethostname())}\b", "HOST", text)
    return _UNREADABLE.sub(lambda sign: sign[0].encode("unicode_escape").decode(), text)


def sanitized_traceback(error: BaseException, source: Path | None) -> str:
    """The traceback of an exception, without our frames that called the framework.

    Our frames that the framework called stay, without line numbers, so that our edits do not change
    reports.
    """
    described = TracebackException.from_exception(error)
    described.stack[:] = list(dropwhile(_is_ours, described.stack)) or described.stack
    return _LINE_OF_OURS.sub(r"\1,", sanitize("".join(described.format()), source))


def _is_ours(frame: FrameSummary) -> bool:
    return frame.filename.startswith(_OURS)


def first_line(text: str | None) -> str:
    """The first line that has a letter in it, in which messages usually state what is wrong."""
    lines = (line.strip() for line in (text or "").splitlines())
    return printable(next((line for line in lines if any(map(str.isalpha, line))), ""))


def numberless(text: str) -> str:
    """A text with # in place of numbers and lists of numbers: the same for all errors of one form.

    ``rank 1 waits`` and ``ranks 0, 1 wait`` become the same text.
    """
    return _ONE_RANK.sub(
        lambda found: f"ranks # {_SEVERAL[found.group(1)]}", _NUMBERS.sub("#", text)
    )


def printable(text: str) -> str:
    """A text with unprintable characters replaced."""
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() else "\N{REPLACEMENT CHARACTER}" for sign in text)
