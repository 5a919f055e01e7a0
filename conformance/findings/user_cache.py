"""The user's cache of numbers that depend on our code only, computed once on a machine."""

from __future__ import annotations

import hashlib
import json
import shutil
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import platformdirs

from conformance.findings.files import put

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[2]

OURS = ("adapters", "conformance", "reference")

MOST = 4
"""The number of versions of the code whose numbers are kept; the oldest are removed."""


def folder(name: str) -> Path:
    """The path of a folder of the cache, which may not exist."""
    return platformdirs.user_cache_path("rl-loss-conformance") / name


@cache
def digest_of_code() -> str:
    """A digest of the code that makes findings and explains them, and of its tables."""
    digest = hashlib.sha256()
    for package in OURS:
        for path in sorted((ROOT / package).rglob("*.*")):
            if path.suffix in (".py", ".toml"):
                digest.update(path.read_bytes())
    return digest.hexdigest()


def made_once(name: str, key: str, make: Callable[[], Any]) -> Any:
    """Return the value of ``make``, converted by JSON, from the cache if it is there.

    The value must depend only on the key, this project's code and NumPy. If the cache cannot be
    written, the value is computed each time.
    """
    of_code = folder(name) / f"{digest_of_code()[:16]}-{version('numpy')}"
    path = of_code / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"
    with suppress(OSError, ValueError):
        return json.loads(path.read_text("utf-8"))
    text = json.dumps(make())
    with suppress(OSError):
        put(text.encode(), path)
        _forget(of_code.parent)
    return json.loads(text)


def _forget(several: Path) -> None:
    """Remove the values of all but the latest versions of the code."""
    oldest_first = sorted(several.iterdir(), key=lambda one: one.stat().st_mtime)
    for one in oldest_first[:-MOST]:
        shutil.rmtree(one, ignore_errors=True)
