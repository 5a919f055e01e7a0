"""The frameworks' own example recipes, by path in their repositories: ``python -m tests.recipes``.

``recipes.toml`` has, for each, the words that its script hands to the framework in the end, and
what the answer must have. Nothing of an example is committed: scripts are read from clones below
``RL_LOSS_CONFORMANCE_SOURCES``, and only the options of their commands are taken.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
from pathlib import Path
from typing import Any

TABLE = Path(__file__).with_name("recipes.toml")

PRINTING = """#!/bin/bash
[ "$#" -gt 1 ] && printf '%s\\n' "$@" >> "$WORDS"
exit 0
"""
"""Stands in for every program that a script starts: it notes the words that it is given."""

PROGRAMS = (
    "accelerate",
    "deepspeed",
    "nohup",
    "python",
    "python3",
    "ray",
    "swift",
    "torchrun",
    "uv",
)

PRELUDE = """
command_not_found_handle() { :; }
source() { :; }
set() { :; }
"""
"""So that a script goes on without other programs and files."""


def words_of_script(text: str, option: str = ".*", after: str | None = None) -> list[str]:
    """The words that a script hands to the programs that it starts and that match a pattern.

    They are those behind the last word that ``after`` matches, if it is given.

    The script is run by a restricted shell which finds no program but those that stand in for them.
    """
    with tempfile.TemporaryDirectory() as folder:
        programs, words = Path(folder) / "bin", Path(folder) / "words"
        programs.mkdir()
        words.touch()
        for name in PROGRAMS:
            (program := programs / name).write_text(PRINTING)
            program.chmod(0o755)
        (script := Path(folder) / "script.sh").write_text(f"{PRELUDE}{text}", "utf-8")
        subprocess.run(
            ["/bin/bash", "-r", str(script)],
            env={"PATH": str(programs), "HOME": folder, "WORDS": str(words), "WANDB_KEY": "none"},
            capture_output=True,
            check=False,
            timeout=60,
        )
        said = words.read_text("utf-8").splitlines()
    starts = [place for place, word in enumerate(said) if after and re.fullmatch(after, word)]
    return [word for word in said[starts[-1] + 1 if starts else 0 :] if re.fullmatch(option, word)]


def main(names: list[str]) -> int:
    """Run the recipes of some frameworks, or of all, and print what they are answered."""
    wrong = 0
    for entry in tomllib.loads(TABLE.read_text("utf-8"))["recipe"]:
        if not names or entry["adapter"] in names:
            wrong += not _is_as_expected(entry)
    return int(bool(wrong))


def _is_as_expected(entry: dict[str, Any]) -> bool:
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        status, said = _answered(entry, Path(folder))
    [first, *_] = said.splitlines() or [""]
    is_right = bool(re.search(entry["says"], " ".join(said.split()))) and status == entry.get(
        "status", 0
    )
    seconds = time.monotonic() - start
    print(f"{'ok' if is_right else 'WRONG'} {entry['adapter']} {entry['path']} {seconds:.0f} s")
    print(f"   {first}", flush=True)
    if (kept := os.environ.get("RECIPES_KEPT")) is not None:
        name = f"{entry['adapter']}-{Path(entry['path']).stem}-{len(entry.get('words', []))}.txt"
        (Path(kept) / name).write_text(said, "utf-8")
    return is_right


def _answered(entry: dict[str, Any], folder: Path) -> tuple[int, str]:
    clone = Path(os.environ["RL_LOSS_CONFORMANCE_SOURCES"]) / entry["clone"]
    file = _extracted(entry, clone, folder)
    command = [sys.executable, "-m", "conformance.cli", "recipe", f"--adapter={entry['adapter']}"]
    command += [one.replace("CLONE", str(clone)) for one in entry.get("options", [])]
    words = entry.get("words", [])
    text = file.read_text("utf-8")
    if entry["path"].endswith(".py"):
        text = text.split('"""')[1]  # the command that it documents
    if entry["path"].endswith((".sh", ".py")):
        how = {name: entry[name] for name in ("option", "after") if name in entry}
        words = [*words_of_script(text, **how), *words]
    else:
        command.append(str(file))
    done = subprocess.run([*command, "--", *words], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def _extracted(entry: dict[str, Any], clone: Path, folder: Path) -> Path:
    """The file of an example, with the folder ``within`` for files that it builds on."""
    wanted = [entry.get("commit", "HEAD"), entry.get("within", entry["path"])]
    packed = subprocess.run(  # which also complains of files elsewhere that a clone lacks
        ["git", "-C", str(clone), "archive", *wanted], check=False, capture_output=True
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")
    return folder / entry["path"]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
