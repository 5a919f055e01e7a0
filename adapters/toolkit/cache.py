"""Files that are fetched once and kept between runs."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def made_once(folder: Path, make: Callable[[Path], None]) -> Path:
    """The folder, made with all that is in it if it is not there, so that none is ever half made.

    ``make`` is given the path of a folder to create.
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
