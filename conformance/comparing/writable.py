"""What a file may be written to: a regular file, or nothing yet.

A device, a pipe or a socket would be replaced by a file, or would swallow what is written to it.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
}


def require_regular(path: Path) -> None:
    """See to it that a file can be written at ``path``, or where a symbolic link there leads to.

    Raises:
        OSError: something else is there, or it cannot be found out.
    """
    _require(path, path.stat)


def require_regular_itself(path: Path) -> None:
    """The same for a file whose name we have chosen, so that whoever left a link there chose ours.

    Raises:
        OSError: something else is there, or it cannot be found out.
    """
    _require(path, path.lstat)


def _require(path: Path, status: Callable[[], os.stat_result]) -> None:
    try:
        mode = status().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISREG(mode):
        kind = KINDS.get(stat.S_IFMT(mode), "no regular file")
        words = f"{path} is {kind}, and only regular files are written"
        raise OSError(errno.EINVAL, words, os.fspath(path))
