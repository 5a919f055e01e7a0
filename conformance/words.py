"""Words of a framework, as a report holds them: every text from outside comes in through here."""

from __future__ import annotations

import os
import re
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_UNREADABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
"""What steers a terminal, ends a C string or, as half a pair of UTF-16, is no character at all."""


def words(text: str, source: Path | None) -> str:
    """A framework's text, with files named from where they are imported and all of it readable.

    A report tells nothing of the folders of a machine, and reads the same on every one.
    """
    folders = [*sys.path, str(source or "")]
    for folder in sorted(filter(None, folders), key=len, reverse=True):
        text = text.replace(f"{folder.rstrip(os.sep)}{os.sep}", "")
    return _UNREADABLE.sub(lambda sign: sign[0].encode("unicode_escape").decode(), text)
