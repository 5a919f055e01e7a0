"""A cache of files that are fetched once and kept between runs."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def made_once(folder: Path, make: Callable[[Path], None]) -> Path:
    """Create a folder atomically if it is missing, and return it.

    ``make`` is called with the path of a folder to create.
    """
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        made = Path(scratch) / "made"
        make(made)
        try:
            made.rename(folder)
        except OSError:
            if not folder.is_dir():  # otherwise another run was faster
                raise
    return folder
