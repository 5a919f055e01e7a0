"""The changes of a framework's version: its base version and the changed lines."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from conformance.sources.source import (
    RELEASE,
    Commit,
    SourceError,
    find_commit,
    find_commits,
    folder_and_ref,
    git,
    resolve,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from adapters.contract import Adapter

WORKING_TREE = "working tree"

DEFAULT_BRANCHES = ("origin/HEAD", "origin/main", "origin/master", "main", "master", "HEAD")
"""Names of a clone's default branch; a clone has only some of these, depending on how it was made.
"""

NO_BASE = "fetch more of its history, or give --base=REF"

NO_QUOTES = ("-c", "core.quotePath=false")
"""Options that make git print file names without quoting."""

OF_HUNKS = ("--unified=0", "--no-color", "--no-ext-diff", "--dst-prefix=b/")
"""Options that make the output of ``git diff`` independent of the user's configuration."""

FILE = re.compile(r"^\+\+\+ (?:\"?b/)?(.*?)\"?\t?$", re.MULTILINE)

HUNK = re.compile(r"^@@ -\S+ \+(\d+)(?:,(\d+))? @@", re.MULTILINE)
"""A hunk's header: its first line number and its number of lines in the later version."""

OF_TESTS = re.compile(r"(^|/)(tests?|examples?)/|(^|/)test_|\.pyi$")
"""Python files that no training step runs."""


@dataclass(frozen=True, kw_only=True)
class Versions:
    """A version and its base version; from a repository unless both are releases."""

    repository: Path | None
    base: Commit
    head: Commit


def versions(source: str, base: str | None) -> Versions:
    """The version that ``--source`` names, and its base.

    The base of a commit or a working tree is its merge base with the default branch. On the default
    branch, the base is the last commit if the working tree has changes, otherwise the commit before
    it.

    Raises:
        SourceError: the version or its base does not exist.
    """
    if source.startswith(RELEASE):
        if base is None or not base.startswith(RELEASE):
            raise SourceError(f"{source} has no base", "give --base=pypi:VERSION")
        [old], [new] = find_commits(None, base), find_commits(None, source)
        return Versions(repository=None, base=old, head=new)
    path, ref = folder_and_ref(source)
    head = find_commit(path, ref or "HEAD")
    error = SourceError(f"{path} has no working tree", "name a branch or commit: --source=PATH@REF")
    is_changed = ref is None and bool(git(path, "status", "--porcelain", error=error))
    if base is not None:
        [old] = find_commits(path, base)
    else:
        old = _base(path, head, is_changed=is_changed)
    if ref is None:
        head = Commit(ref=WORKING_TREE, revision="", date="", subject=head.subject)
    return Versions(repository=path, base=old, head=head)


def _base(path: Path, head: Commit, *, is_changed: bool) -> Commit:
    """The commit where the head left the default branch."""
    error = SourceError(f"{head.ref} of {path} shares no commit with its default branch", NO_BASE)
    for branch in DEFAULT_BRANCHES:
        try:
            upstream = find_commit(path, branch)
        except SourceError:
            continue
        left = git(path, "merge-base", upstream.revision, head.revision, error=error)
        is_of_branch = left == head.revision and not is_changed
        return _before(path, head) if is_of_branch else find_commit(path, left)
    raise error


def _before(path: Path, head: Commit) -> Commit:
    """The parent of a commit, which a clone of depth 1 lacks."""
    try:
        return find_commit(path, f"{head.revision}^")
    except SourceError:
        raise SourceError(f"{head.ref} of {path} has no commit before it", NO_BASE) from None


def changed_lines(adapter: Adapter, found: Versions) -> dict[str, str]:
    """The hunks of each Python file of the package, as ``git diff --unified=0`` shows them.

    Raises:
        SourceError: a version is not available.
    """
    base, head = (
        _package(adapter, one.source(found.repository)) for one in (found.base, found.head)
    )
    result = subprocess.run(
        ["git", *NO_QUOTES, "diff", "--no-index", *OF_HUNKS, "--", str(base), "."],
        cwd=head,  # makes names in the output independent of the folder's path
        capture_output=True,
        text=True,
        check=False,
        errors="replace",
    )
    return dict(_file_diffs(result.stdout, head.name))


def lines_in_head(
    adapter: Adapter, found: Versions, changed: Mapping[str, str]
) -> dict[str, list[int]]:
    """The numbers of the changed lines in the later version, by the absolute path of each file.

    A hunk that only removes lines is represented by the line before it, and by the line after it if
    both are in the same block.
    """
    hunks = hunks_in_head(adapter, found, changed)
    return {path: [*_numbers(text, Path(path))] for path, text in hunks.items()}


def hunks_in_head(adapter: Adapter, found: Versions, changed: Mapping[str, str]) -> dict[str, str]:
    """The hunks of each changed file by the file's absolute path in the later version."""
    root = _package(adapter, found.head.source(found.repository)).parent
    paths = {(root / name).resolve(): hunks for name, hunks in changed.items()}
    return {str(path): hunks for path, hunks in paths.items() if path.is_file()}


def hunks_since(adapter: Adapter, source: str, base: str) -> dict[str, str]:
    """The hunks of each file that a version changes, by absolute path.

    Raises:
        SourceError: a version does not exist or is not available.
    """
    found = versions(source, base)
    return hunks_in_head(adapter, found, changed_lines(adapter, found))


def root_in_head(adapter: Adapter, found: Versions) -> Path:
    """The folder that contains the package in the later version, relative to the repository."""
    source = found.head.source(found.repository)
    path = resolve(adapter, source).path
    assert path is not None
    return _package(adapter, source).parent.relative_to(path)


def _numbers(hunks: str, path: Path) -> Iterator[int]:
    text = path.read_text(errors="replace").splitlines()
    for first, count in ((int(one), int(several or 1)) for one, several in HUNK.findall(hunks)):
        yield from range(first, first + count)
        if count == 0:
            behind = text[first] if first < len(text) else ""
            before = [number for number in range(1, first + 1) if _has_code(text[number - 1])]
            yield from before[-1:]
            if before and _indent(behind) == _indent(text[before[-1] - 1]):
                yield first + 1


def _has_code(line: str) -> bool:
    return bool(line.strip()) and not line.lstrip().startswith("#")


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _package(adapter: Adapter, source: str) -> Path:
    path = resolve(adapter, source).path
    assert path is not None
    assert adapter.package is not None
    candidates = [path / root / adapter.package for root in adapter.roots]
    return next((one for one in candidates if one.is_dir()), path / adapter.package)


def _file_diffs(diff: str, package: str) -> Iterator[tuple[str, str]]:
    for part in re.split(r"^diff --git ", diff, flags=re.MULTILINE)[1:]:
        header, found, body = part.partition("\n@@ ")
        named = FILE.search(header)
        if named is None or not named[1].endswith(".py"):
            continue
        name = f"{package}/{named[1].removeprefix('./')}"
        if not OF_TESTS.search(name):
            yield name, f"{found.lstrip()}{body}"
