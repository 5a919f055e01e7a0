"""Fetches a release of a framework from the package index without installing it."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import platformdirs

from adapters.toolkit.cache import made_once
from reference.errors import ConformanceError

VERSION = re.compile(r"[0-9][0-9A-Za-z.!+]*")


class WheelError(ConformanceError):
    """A release is not available."""


def released(distribution: str, version: str) -> Path:
    """The folder with a release's files, fetched once without its dependencies.

    Raises:
        WheelError: there is no such release, or it cannot be fetched.
    """
    if not VERSION.fullmatch(version):
        raise WheelError(f"version {version!r} of {distribution} is none", "give one such as 0.2.0")
    cache = platformdirs.user_cache_path("rl-loss-conformance") / distribution
    requirement = f"{distribution}=={version}"
    return made_once(cache / f"release-{version}", lambda folder: _unpack(requirement, folder))


def _unpack(requirement: str, folder: Path) -> None:
    with (
        tempfile.TemporaryDirectory() as scratch,
        zipfile.ZipFile(_downloaded(requirement, Path(scratch))) as archive,
    ):
        archive.extractall(folder)  # drops paths outside the folder


def _downloaded(requirement: str, folder: Path) -> Path:
    """Download a wheel with pip. Unlike a source distribution, it runs no code of its own."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    quiet = ["--quiet", "--disable-pip-version-check", "--dest", str(folder)]
    result = subprocess.run(
        [*command, *quiet, "--", requirement], capture_output=True, text=True, check=False
    )
    if result.returncode:
        errors = [line for line in result.stderr.splitlines() if line.startswith("ERROR: ")]
        reason = errors[-1].removeprefix("ERROR: ") if errors else result.stderr.strip()
        raise WheelError(
            f"{requirement} cannot be fetched: {reason}",
            "see to it that the package index has it, or give --source=PATH@REF of a clone",
        )
    [wheel] = folder.glob("*.whl")
    return wheel
