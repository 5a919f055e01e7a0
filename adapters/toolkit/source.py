"""Finds the source of a framework's code, down to the commit, without modifying it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import platformdirs

from adapters.toolkit.cache import made_once
from adapters.toolkit.wheel import released
from reference.errors import ConformanceError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from adapters.contract import Adapter


RELEASE = "pypi:"


class SourceError(ConformanceError):
    """A framework's source is not available as requested."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """The source of a framework's code.

    ``path`` is the folder to import from, None for an installed package. ``revision`` is a commit
    hash, ``version`` that of a distribution, installed or fetched.
    """

    kind: Literal["builtin", "installed", "checkout", "git", "pypi"]
    path: Path | None = None
    revision: str | None = None
    version: str | None = None
    ref: str | None = None
    dirty: bool = False


@dataclass(frozen=True, kw_only=True)
class Commit:
    """A commit of a repository and the ref that names it."""

    ref: str
    revision: str
    date: str
    subject: str


def find_commit(path: Path, ref: str) -> Commit:
    """The commit that a ref of the repository at ``path`` names; nothing is extracted.

    Raises:
        SourceError: there is no such repository or commit.
    """
    _repository(path)
    revision = _revision(path, ref)
    date, _, subject = (_git(path, "show", "-s", "--format=%cs %s", revision) or "").partition(" ")
    return Commit(ref=ref, revision=revision, date=date, subject=subject)


def resolve(adapter: Adapter, text: str | None) -> Source:
    """The source named by ``--source``: ``PATH``, ``PATH@REF``, ``pypi:VERSION``, or as installed.

    Raises:
        SourceError: there is no such source.
        WheelError: there is no such release, or it cannot be fetched.
    """
    if text is None:
        return _installed(adapter)
    if adapter.package is None:
        raise SourceError(
            f"{adapter.name} has no source of its own and got {text!r}", "leave --source out"
        )
    if text.startswith(RELEASE):
        return _release(adapter, text.removeprefix(RELEASE))
    path, ref = _split(text)
    top = _repository(path)
    if ref is None:
        return _checkout(adapter, path, top)
    return _at_ref(adapter, path, ref)


def _installed(adapter: Adapter) -> Source:
    if adapter.package is None:
        return Source(kind="builtin", version=importlib.metadata.version("rl-loss-conformance"))
    way_out = (
        f"give --source=PATH of a checkout, or PATH@REF of any git repository of {adapter.name}"
    )
    if adapter.distribution is None:
        if not _is_importable(adapter.package):
            raise SourceError(f"{adapter.name} is on no package registry", way_out)
        return Source(kind="installed", version=_version(adapter.package))
    try:
        version = importlib.metadata.version(adapter.distribution)
    except importlib.metadata.PackageNotFoundError:
        raise SourceError(
            f"{adapter.distribution} is not installed",
            f"pip install 'rl-loss-conformance[{adapter.name}]', or {way_out}",
        ) from None
    return Source(kind="installed", version=version)


def _is_importable(package: str) -> bool:
    """Whether Python finds a package; a folder without ``__init__.py`` may be any folder."""
    spec = importlib.util.find_spec(package)
    return spec is not None and spec.origin is not None


def _version(package: str) -> str | None:
    """The version of the distribution that installed a package; None if none has."""
    distributions = importlib.metadata.packages_distributions().get(package)
    return importlib.metadata.version(distributions[0]) if distributions else None


def _release(adapter: Adapter, version: str) -> Source:
    if adapter.distribution is None:
        raise SourceError(
            f"{adapter.name} is on no package registry", "give --source=PATH of a checkout"
        )
    path = released(adapter.distribution, version)
    return Source(kind="pypi", path=path, version=version)


def _split(text: str) -> tuple[Path, str | None]:
    """Split a text at the first ``@`` after an existing path."""
    for end in [len(text), *(i for i, character in enumerate(text) if character == "@")]:
        if Path(text[:end]).is_dir():
            return Path(text[:end]).resolve(), text[end + 1 :] if end < len(text) else None
    raise SourceError(f"source {text!r}: there is no such folder", "give PATH or PATH@REF")


def _repository(path: Path) -> Path:
    """The top folder of the work tree, or the git folder of a bare repository."""
    question = "--is-bare-repository"
    answer = _git(path, "rev-parse", question, check=False)
    if answer is None:
        raise SourceError(f"{path} is no git checkout", "clone the framework and give that folder")
    return path if answer == "true" else Path(_git(path, "rev-parse", "--show-toplevel") or path)


def _checkout(adapter: Adapter, path: Path, top: Path) -> Source:
    assert adapter.package is not None
    if not (path / adapter.package).is_dir():
        raise SourceError(
            f"{path} holds no package {adapter.package!r}",
            f"give the folder that contains it, or {top}@REF for a commit",
        )
    return Source(
        kind="checkout",
        path=path,
        revision=_git(path, "rev-parse", "--verify", "HEAD"),
        dirty=bool(_git(path, "status", "--porcelain")),
    )


def _at_ref(adapter: Adapter, repository: Path, ref: str) -> Source:
    revision = _revision(repository, ref)
    return Source(
        kind="git", path=_extracted(adapter, repository, revision), revision=revision, ref=ref
    )


def _revision(repository: Path, ref: str) -> str:
    revision = _git(
        repository,
        "rev-parse",
        "--verify",
        "--quiet",
        "--end-of-options",
        f"{ref}^{{commit}}",
        check=False,
    )
    if not revision:
        raise SourceError(
            f"{repository} has no commit {ref!r}",
            "name a commit, tag, branch or pull-request ref that was fetched"
            " (git fetch origin refs/pull/N/head:refs/pull/N/head)",
        )
    return revision


def _extracted(adapter: Adapter, repository: Path, revision: str) -> Path:
    """The folder of the commit's files in the cache, extracted once."""
    cache = platformdirs.user_cache_path("rl-loss-conformance") / adapter.name
    folder = cache / revision
    if folder.is_dir():  # without calling git
        return folder
    top_level = (_git(repository, "ls-tree", "--name-only", revision) or "").splitlines()
    paths = [name for name in adapter.tree if name in top_level]
    if adapter.package not in paths and adapter.tree:
        raise SourceError(f"{revision} of {repository} holds no package {adapter.package!r}")
    return made_once(folder, lambda new: _extract(repository, revision, paths, new))


def _extract(repository: Path, revision: str, paths: Sequence[str], folder: Path) -> None:
    command = ["git", "-C", str(repository), "archive", "--format=tar", revision, "--", *paths]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            with tarfile.open(fileobj=process.stdout, mode="r|") as archive:
                archive.extractall(folder, filter="data")
        except tarfile.TarError as error:
            reason = process.stderr.read().decode(errors="replace").strip() or str(error)
            raise SourceError(f"{revision} of {repository} cannot be read: {reason}") from error
    if process.returncode:
        raise SourceError(f"git archive of {revision} in {repository} failed")


def _git(repository: Path, *arguments: str, check: bool = True) -> str | None:
    """The output of git, or None if it fails and ``check`` is False."""
    environment = os.environ | {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0"}
    try:
        result = subprocess.run(
            ["git", "-C", str(repository), *arguments],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError:
        raise SourceError("git is not installed, and a source with a path needs it") from None
    if result.returncode:
        if check:
            raise SourceError(f"git in {repository}: {result.stderr.strip()}")
        return None
    return result.stdout.strip()
