"""The frameworks' own example recipes, by path in their repositories: ``python -m tests.recipes``.

``recipes.toml`` says, for each, how to find the words that its script passes to the framework, and
what the answer must contain. `PAGE` has the answers. Nothing of an example is committed: scripts
are read from clones below ``RL_LOSS_CONFORMANCE_SOURCES``, and only the options of their commands
are used.
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
from pathlib import Path
from typing import Any

from tests.tables import table

PAGE = Path(__file__).parents[1] / "reports" / "recipes.md"

HEAD = """# Example recipes

What `rl-loss-conformance recipe` answers to example recipes of the frameworks' own, and to some
with a known mistake. `python -m tests.recipes` writes this page, and requires each answer.

| framework | example | with | answer | what reaches it |
|---|---|---|---|---|
"""

REACHING = re.compile(
    r"- (wrong gradient|wrong logged number|ordinary step declined or crashed)[^:]*: (.*?)"
    r"(?= https?:| For example|; none found|$)"
)
"""A mistake that reaches a recipe, in the text of an answer."""

PRINTING = """#!/bin/bash
[ "$#" -gt 1 ] && printf '%s\\n' "$@" >> "$WORDS"
exit 0
"""
"""A replacement for every program that a script starts: it writes down its arguments."""

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
"""Functions with which a script goes on if other programs and files are missing."""


def words_of_script(
    text: str, option: str = ".*", after: str | None = None, within: tuple[str, str] = ("", "")
) -> list[str]:
    """The arguments of the programs that a script starts, as far as they match ``option``.

    If ``after`` is given, only arguments behind the last one that it matches count. For a script
    that only sets variables, ``within`` has the lines around it in a user's own script.

    A restricted shell runs the script, and finds only replacements of programs (`PRINTING`).
    """
    with tempfile.TemporaryDirectory() as folder:
        programs, words = Path(folder) / "bin", Path(folder) / "words"
        programs.mkdir()
        words.touch()
        for name in PROGRAMS:
            (program := programs / name).write_text(PRINTING)
            program.chmod(0o755)
        (script := Path(folder) / "script.sh").write_text(
            "\n".join([PRELUDE, within[0], text, within[1]]), "utf-8"
        )
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
    """Run the recipes of some frameworks, or of all, and print the first line of each answer."""
    wrong = 0
    for entry in table("recipes.toml")["recipe"]:
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
    # If the budget ended early, as on a busy machine, the answer is not noted.
    if is_right and "The budget ended" not in " ".join(said.split()):
        _note(entry, said)
    return is_right


def _note(entry: dict[str, Any], said: str) -> None:
    """Write an answer's row to the page; it replaces an earlier row of the same recipe."""
    words = [*entry.get("words", []), *([f"at {entry['version']}"] if "version" in entry else [])]
    with_words = f"`{' '.join(words)}`" if words else ""
    of_recipe = f"| {entry['adapter']} | `{entry['path']}` | {with_words} |"
    sentence, _, others = said.partition("\n\n")
    reaching = others.partition("What reaches it:")[2].partition("\n\n")[0]
    found = REACHING.findall(" ".join(reaching.split()))
    reached = dict.fromkeys(words for _, words in found)
    row = f"{of_recipe} {' '.join(sentence.split())} | {'<br>'.join(reached).replace('|', '/')} |"
    page = PAGE.read_text("utf-8") if PAGE.exists() else HEAD
    rows = [line for line in page.removeprefix(HEAD).splitlines() if not line.startswith(of_recipe)]
    PAGE.write_text(HEAD + "".join(f"{line}\n" for line in sorted([*rows, row])), "utf-8")


def _answered(entry: dict[str, Any], folder: Path) -> tuple[int, str]:
    clone = Path(os.environ["RL_LOSS_CONFORMANCE_SOURCES"]) / entry["clone"]
    file = _extracted(entry, clone, folder)
    command = [sys.executable, "-m", "conformance.cli", "recipe", f"--adapter={entry['adapter']}"]
    command += [one.replace("CLONE", str(clone)) for one in entry.get("options", [])]
    words = entry.get("words", [])
    text = file.read_text("utf-8")
    if entry["path"].endswith(".py"):
        text = text.split('"""')[1]  # the command in its docstring
    if entry["path"].endswith((".sh", ".py")):
        how = {name: entry[name] for name in ("option", "after") if name in entry}
        how |= {"within": entry["lines"]} if "lines" in entry else {}
        words = [*words_of_script(text, **how), *words]
    else:
        command.append(str(file))
    done = subprocess.run([*command, "--", *words], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def _extracted(entry: dict[str, Any], clone: Path, folder: Path) -> Path:
    """The file of an example, extracted with the folder ``within`` of files that it includes."""
    wanted = [entry.get("commit", "HEAD"), entry.get("within", entry["path"])]
    packed = subprocess.run(  # git also complains about other files that a clone lacks
        ["git", "-C", str(clone), "archive", *wanted], check=False, capture_output=True
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")
    return folder / entry["path"]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
