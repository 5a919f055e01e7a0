"""A toy of slime, which is on no package registry, and git checkouts of it."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

TOYS = Path(__file__).parent


@dataclass(frozen=True)
class Edit:
    """A text that occurs once in a file of the toy, and its replacement."""

    file: str
    old: str
    new: str

    def apply(self, package: Path) -> None:
        """Change the file in a checkout's package."""
        path = package / self.file
        text = path.read_text()
        assert text.count(self.old) == 1, f"{self.old!r} stands {text.count(self.old)} times"
        path.write_text(text.replace(self.old, self.new))

    @property
    def line(self) -> int:
        """The line of the toy's file where the text begins."""
        before, _, _ = (TOYS / self.file).read_text().partition(self.old)
        return before.count("\n") + 1


def checkout(folder: Path, *edits: Edit) -> Path:
    """Commit the toy's package, with edits, in a new repository."""
    package = folder / "slime"
    shutil.copytree(TOYS / "slime", package, ignore=shutil.ignore_patterns("__pycache__"))
    for module in ("lineage.py", "terms.py"):
        shutil.copy(TOYS / module, package)
    for edit in edits:
        edit.apply(package)
    commit(folder)
    return folder


def commit(folder: Path) -> None:
    """Turn a folder into a repository with one commit."""
    identity = ["-c", "user.name=Toy", "-c", "user.email=toy@example.org"]
    for arguments in (["init"], ["add", "."], ["commit", "-m", "A toy"]):
        subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


WITHOUT_CP = Edit("lineage.py", "return loss * grid.cp.size, num_tokens", "return loss, num_tokens")

WITH_CP = Edit("lineage.py", WITHOUT_CP.new, WITHOUT_CP.old)


def branched(folder: Path) -> Path:
    """A repository with the toy on `main`, and a commit on `change` that loses a factor."""
    checkout(folder)
    git(folder, "branch", "-M", "main")
    git(folder, "checkout", "-b", "change")
    commit_edits(folder, "Lose it", WITHOUT_CP)
    return folder


def commit_edits(repository: Path, subject: str, *edits: Edit) -> None:
    """Edit the toy, and commit it."""
    for edit in edits:
        edit.apply(repository / "slime")
    git(repository, "commit", "--all", "-m", subject)


def git(repository: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=Toy", "-c", "user.email=toy@example.org"]
    result = subprocess.run(
        ["git", *identity, *arguments], cwd=repository, check=True, capture_output=True, text=True
    )
    return result.stdout.strip()
