"""Finds the source of a framework's code, down to the commit or release, without modifying it.

Commits and releases are put into a cache once and kept between runs.
"""

from __future__ import annotations

import atexit
import errno
import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import platformdirs
from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from reference import ConformanceError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from adapters.contract import Adapter

RELEASE = "pypi:"
VERSION = re.compile(r"[0-9][0-9A-Za-z.!+]*")
PROJECT = "pyproject.toml"
# Length of the short hash of a commit that no ref names.
SHORT = 10
# Environment variable by which a run tells its processes the folder that replaces the user's cache.
OF_RUN = "RL_LOSS_CONFORMANCE_CACHE_OF_RUN"
# Errors of the operating system if a folder cannot be written to.
UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM)


class SourceError(ConformanceError):
    """A framework's source is not available as requested."""


class WheelError(ConformanceError):
    """A release is not available."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """The source of a framework's code.

    ``path`` is the folder to import from, None for an installed package. ``revision`` is a commit
    hash, ``version`` the version of an installed or fetched distribution.
    """

    kind: Literal["builtin", "installed", "checkout", "git", "pypi"]
    path: Path | None = None
    revision: str | None = None
    version: str | None = None
    ref: str | None = None
    dirty: bool = False


@dataclass(frozen=True, kw_only=True)
class Commit:
    """A repository's commit and the ref that names it; or a release, without date and subject."""

    ref: str
    revision: str
    date: str
    subject: str

    def source(self, repository: Path | None) -> str:
        """The commit's source as text for ``--source``; without a revision, the working tree's."""
        if self.ref.startswith(RELEASE):
            return self.ref
        return f"{repository}@{self.revision}" if self.revision else str(repository)


def find_commit(path: Path, ref: str) -> Commit:
    """The commit that a ref of a repository names; raises `SourceError` if there is none."""
    _require_repository(path)
    return _commit(path, ref, _revision(path, ref))


def find_commits(path: Path | None, text: str) -> list[Commit]:
    """The commit that a ref names, or the commits of a range such as ``A..B``, the oldest first.

    ``pypi:VERSION`` names a release, and needs no repository. Raises `SourceError` if there is no
    commit.
    """
    if text.startswith(RELEASE):
        return [Commit(ref=text, revision=text.removeprefix(RELEASE), date="", subject="")]
    if path is None:
        raise SourceError(f"{text!r} is no release", "give its repository, --source=PATH")
    if ".." not in text:  # a ref cannot contain ".."
        return [find_commit(path, text)]
    _require_repository(path)
    way_out = "give a range as git rev-list takes it, such as OLDER..NEWER"
    error = SourceError(f"{path} has no commits {text!r}", way_out)
    question = ("rev-list", "--reverse", "--topo-order", "--end-of-options", text, "--")
    revisions = git(path, *question, error=error).split()
    if not revisions:
        raise error
    return [_commit(path, revision[:SHORT], revision) for revision in revisions]


def newest_release(adapter: Adapter, repository: Path | None) -> Commit:
    """The newest release, except pre-releases, in the package index or among a repository's tags.

    Raises `SourceError` or `WheelError` if there is no release.
    """
    prefix = adapter.release_tags
    tags = git(repository, "tag", "--list", f"{prefix}*").split() if repository else []
    versions = [(_final_version(tag.removeprefix(prefix)), tag) for tag in tags]
    releases = [(version, tag) for version, tag in versions if version]
    if adapter.distribution is not None:
        published = _newest_published(adapter.distribution)
        releases += [(Version(published), f"{RELEASE}{published}")]
    if not releases:
        raise SourceError(f"{adapter.name} has no release", "give a repository with its tags")
    newest = max(version for version, _ in releases)
    *_, ref = (ref for version, ref in releases if version == newest)
    [commit] = find_commits(repository, ref)
    return commit


def _final_version(text: str) -> Version | None:
    try:
        version = Version(text)
    except InvalidVersion:
        return None
    return None if version.is_prerelease else version


def _newest_published(distribution: str) -> str:
    """The newest release in the package index, except pre-releases; `WheelError` if none."""
    command = [sys.executable, "-m", "pip", "index", "versions", "--disable-pip-version-check"]
    arguments = ["--only-binary=:all:", "--", distribution]
    result = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)
    found = re.match(rf"\S+ \(({VERSION.pattern})\)", result.stdout)
    if found is None:
        raise WheelError(f"the package index has no release of {distribution}")
    return found[1]


def resolve(adapter: Adapter, text: str | None) -> Source:
    """The source of ``--source``: ``PATH``, ``PATH@REF``, ``pypi:VERSION``, or as installed.

    Raises `SourceError` or `WheelError` if there is no such source or release.
    """
    if text is None:
        return _installed(adapter)
    if adapter.package is None:
        raise SourceError(
            f"{adapter.name} has no source of its own and got {text!r}", "leave --source out"
        )
    if text.startswith(RELEASE):
        if adapter.distribution is None:
            raise SourceError(
                f"{adapter.name} is on no package registry", "give --source=PATH of a checkout"
            )
        version = text.removeprefix(RELEASE)
        return Source(kind="pypi", path=released(adapter.distribution, version), version=version)
    path, ref = folder_and_ref(text)
    _require_repository(path)
    if ref is None:
        return _checkout(adapter, path)
    revision = _revision(path, ref)
    folder = _extracted(adapter, path, revision)
    return Source(kind="git", path=folder, revision=revision, ref=ref)


def released(distribution: str, version: str) -> Path:
    """The folder with a release's files, fetched once without dependencies; or `WheelError`."""
    if not VERSION.fullmatch(version):
        raise WheelError(f"version {version!r} of {distribution} is none", "give one such as 0.2.0")
    requirement = f"{distribution}=={version}"
    name = Path(distribution, f"release-{version}")
    return _made_once(name, lambda folder: _unpack(requirement, folder))


def _installed(adapter: Adapter) -> Source:
    if adapter.package is None:
        return Source(kind="builtin", version=importlib.metadata.version("rl-loss-conformance"))
    way_out = (
        f"give --source=PATH of a checkout, or PATH@REF of any git repository of {adapter.name}"
    )
    if adapter.distribution is None:
        spec = importlib.util.find_spec(adapter.package)
        if spec is None or spec.origin is None:  # any folder is importable as a namespace package
            raise SourceError(f"{adapter.name} is on no package registry", way_out)
        installed = importlib.metadata.packages_distributions().get(adapter.package)
        version = importlib.metadata.version(installed[0]) if installed else None
        return Source(kind="installed", version=version)
    try:
        version = importlib.metadata.version(adapter.distribution)
    except importlib.metadata.PackageNotFoundError:
        raise SourceError(
            f"{adapter.distribution} is not installed",
            f"pip install 'rl-loss-conformance[{adapter.name}]', or {way_out}",
        ) from None
    return Source(kind="installed", version=version)


def python_required(source: Path) -> str | None:
    """The Python that a source's pyproject.toml requires; None if this Python satisfies it."""
    file = source / PROJECT
    project = tomllib.loads(file.read_text("utf-8")).get("project", {}) if file.is_file() else {}
    required = project.get("requires-python", "")
    return None if platform.python_version() in SpecifierSet(required) else required


def _unpack(requirement: str, folder: Path) -> None:
    """Fetch a wheel with pip. Unlike a source distribution, a wheel runs no code of its own."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    with tempfile.TemporaryDirectory() as scratch:
        quiet = ["--quiet", "--disable-pip-version-check", "--dest", scratch]
        result = subprocess.run(
            [*command, *quiet, "--", requirement], capture_output=True, text=True, check=False
        )
        if result.returncode:
            errors = [line for line in result.stderr.splitlines() if line.startswith("ERROR: ")]
            reason = errors[-1].removeprefix("ERROR: ") if errors else result.stderr.strip()
            raise WheelError(
                f"{requirement} cannot be fetched: {reason}",
                "choose a version that the package index has, or give --source=PATH@REF of a clone",
            )
        [wheel] = Path(scratch).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)  # drops paths outside the folder
    _install_data(folder)


def _install_data(folder: Path) -> None:
    """Move packages from a wheel's ``.data`` folder, if any, to the place of installed packages."""
    for library in [*folder.glob("*.data/purelib"), *folder.glob("*.data/platlib")]:
        for entry in library.iterdir():
            entry.rename(folder / entry.name)


def _packages(adapter: Adapter) -> list[str]:
    """The folders in which a repository of the framework may have its package."""
    assert adapter.package is not None
    return [str(Path(root) / adapter.package) for root in adapter.roots]


def folder_and_ref(text: str) -> tuple[Path, str | None]:
    """The folder and the ref of ``PATH`` or ``PATH@REF``; `SourceError` if there is no folder."""
    for end in [len(text), *(i for i, character in enumerate(text) if character == "@")]:
        if Path(text[:end]).is_dir():
            return Path(text[:end]).resolve(), text[end + 1 :] if end < len(text) else None
    raise SourceError(f"source {text!r}: there is no such folder", "give PATH or PATH@REF")


def _checkout(adapter: Adapter, path: Path) -> Source:
    if not any((path / package).is_dir() for package in _packages(adapter)):
        raise SourceError(
            f"{path} holds no package {adapter.package!r}",
            "give the folder that contains it, or PATH@REF of the repository for a commit",
        )
    revision = git(path, "rev-parse", "--verify", "HEAD")
    dirty = bool(git(path, "status", "--porcelain"))
    return Source(kind="checkout", path=path, revision=revision, dirty=dirty)


def _require_repository(path: Path) -> None:
    way_out = "clone the framework and give that folder"
    git(path, "rev-parse", "--git-dir", error=SourceError(f"{path} is no git checkout", way_out))


def _commit(repository: Path, ref: str, revision: str) -> Commit:
    date, _, subject = git(repository, "show", "-s", "--format=%cs %s", revision).partition(" ")
    return Commit(ref=ref, revision=revision, date=date, subject=subject)


def _revision(repository: Path, ref: str) -> str:
    error = SourceError(
        f"{repository} has no commit {ref!r}",
        "name a commit, tag, branch or pull-request ref that was fetched"
        " (git fetch origin refs/pull/N/head:refs/pull/N/head)",
    )
    question = ("rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}")
    return git(repository, *question, error=error)


def _extracted(adapter: Adapter, repository: Path, revision: str) -> Path:
    """The folder of the commit's files in the cache, extracted once.

    The folder's name lists the extracted paths, because another version of the adapter may need
    more.
    """
    needed = [*adapter.tree, PROJECT] if adapter.tree else []
    name = "-".join([revision, *needed]).replace("/", "-")
    if (kept := _kept(Path(adapter.name, name))) is not None:  # without calling git
        return kept
    listing = ("ls-tree", "--name-only", revision, "--")
    if adapter.tree and not git(repository, *listing, *_packages(adapter)):
        raise SourceError(
            f"{revision} of {repository} holds no package {adapter.package!r}",
            f"give a clone of {adapter.name} itself",
        )
    paths = git(repository, *listing, *needed).splitlines()
    return _made_once(
        Path(adapter.name, name), lambda new: _extract(repository, revision, paths, new)
    )


def _extract(repository: Path, revision: str, paths: Sequence[str], folder: Path) -> None:
    """Write files of a commit into a new folder, and nothing outside it."""
    command = ["git", "-C", str(repository), "archive", revision, "--", *paths]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=_quiet(), stdout=pipe, stderr=pipe) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            with tarfile.open(fileobj=process.stdout, mode="r|") as archive:
                archive.extractall(folder, filter="data")
        except tarfile.TarError as error:
            said = process.stderr.read().decode(errors="replace").strip()
            raise SourceError(
                f"{revision} of {repository} cannot be read: {said or error}"
            ) from error


def git(repository: Path, *arguments: str, error: SourceError | None = None) -> str:
    """The output of git; if git fails, raise ``error``, or a `SourceError` with git's message."""
    command = ["git", "-C", str(repository), *arguments]
    try:
        result = subprocess.run(command, env=_quiet(), capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise SourceError("git is not installed, and a source with a path needs it") from None
    if result.returncode:
        raise error or SourceError(f"git in {repository}: {result.stderr.strip()}")
    return result.stdout.strip()


def _quiet() -> dict[str, str]:
    """An environment in which git writes no locks or caches and never prompts."""
    return os.environ | {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0"}


def _roots() -> list[Path]:
    """The folders for commits and releases: the user's cache, then the cache of this run."""
    given = os.environ.get(OF_RUN)
    return [platformdirs.user_cache_path("rl-loss-conformance"), *([Path(given)] if given else [])]


def _kept(name: Path) -> Path | None:
    return next((root / name for root in _roots() if (root / name).is_dir()), None)


def _made_once(name: Path, make: Callable[[Path], None]) -> Path:
    """Return a folder; if it is missing, create it atomically by ``make``, called with a path.

    If the user's cache is not writable, the folder is in a temporary folder until this run ends.
    """
    if (kept := _kept(name)) is not None:
        return kept
    cache = _roots()[0] / name
    try:
        return _made(cache, make)
    except OSError as error:
        if error.errno not in UNWRITABLE:
            raise
        reason = error.strerror
    if OF_RUN not in os.environ:
        os.environ[OF_RUN] = tempfile.mkdtemp(prefix="rl-loss-conformance-")
        atexit.register(shutil.rmtree, os.environ[OF_RUN], ignore_errors=True)
    folder = Path(os.environ[OF_RUN]) / name
    try:
        return _made(folder, make)
    except OSError as error:
        raise SourceError(
            f"there is no place for {name}, neither {cache} ({reason}) nor {folder}"
            f" ({error.strerror})",
            "make room, or name another folder in XDG_CACHE_HOME",
        ) from error


def _made(folder: Path, make: Callable[[Path], None]) -> Path:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        made = Path(scratch) / "made"
        make(made)
        try:
            made.rename(folder)
        except OSError:
            if not folder.is_dir():  # if it exists, another run has created it first
                raise
    return folder
