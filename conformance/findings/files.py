"""Writes files whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def put(content: bytes, path: Path) -> None:
    """Write a file atomically: if there is no room for the new content, the old file stays.

    Raises:
        OSError: the content cannot be written; the error's file name is ``path``.
    """
    scratch = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            dir=path.parent, prefix=f".{path.name}.", delete=False
        ) as file:
            scratch = Path(file.name)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        scratch.chmod(0o644)
        scratch.replace(path)
    except BaseException as error:
        if scratch is not None:
            scratch.unlink(missing_ok=True)
        if isinstance(error, OSError):
            error.filename, error.filename2 = os.fspath(path), None
        raise


def require_room(folder: Path) -> None:
    """Make a folder, and require that files can be written in it.

    Raises:
        OSError: no file can be written; the error's file name is ``folder``.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            file.write(b"\n")
    except OSError as error:
        error.filename = os.fspath(folder)
        raise
