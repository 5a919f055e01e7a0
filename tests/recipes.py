"""The frameworks' own example recipes, by path in their repositories: ``python -m tests.recipes``.

``recipes.toml`` has, for each, the words that its script hands to the framework in the end, and what
the answer must begin with. Nothing of an example is committed: scripts are read from clones below
``RL_LOSS_CONFORMANCE_SOURCES``, and only the options of their commands are taken.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from typing import Any

TABLE = Path(__file__).with_name("recipes.toml")

ASSIGNED = re.compile(r"""^\s*(?:export\s+)?(\w+)=("[^"]*"|'[^']*'|[^\s#;&|()]*)\s*(?:#.*)?$""")
DEFAULTED = re.compile(r"""^\s*:\s*"\$\{(\w+):=(.*)\}"\s*(?:#.*)?$""")
USED = re.compile(r"\$(?:\{(\w+)(?::?-([^}]*))?\}|(\w+))")


def words_of_script(text: str, option: str) -> list[str]:
    """The words of a script that an option pattern matches, with its own variables filled in."""
    variables: dict[str, str] = {"HOME": "/root"}
    joined = re.sub(r"\\\s*\n", " ", text)

    def filled(line: str) -> str:
        def value(found: re.Match[str]) -> str:
            return variables.get(found[1] or found[3], found[2] or "")

        return USED.sub(value, line)

    words: list[str] = []
    for line in joined.splitlines():
        if defaulted := DEFAULTED.match(line):
            variables.setdefault(defaulted[1], filled(defaulted[2].strip("\"'")))
        elif assigned := ASSIGNED.match(line):
            variables[assigned[1]] = filled(assigned[2].strip("\"'"))
        elif not line.lstrip().startswith("#"):
            try:
                words += shlex.split(filled(line), comments=True)
            except ValueError:
                continue
    return [word for word in words if re.fullmatch(option, word)]


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
    is_right = bool(re.search(entry["says"], said)) and status == entry.get("status", 0)
    seconds = time.monotonic() - start
    print(f"{'ok' if is_right else 'WRONG'} {entry['adapter']} {entry['path']} {seconds:.0f} s")
    print(f"   {first}", flush=True)
    return is_right


def _answered(entry: dict[str, Any], folder: Path) -> tuple[int, str]:
    clone = Path(os.environ["RL_LOSS_CONFORMANCE_SOURCES"]) / entry["clone"]
    shown = ["git", "-C", str(clone), "show", f"{entry.get('commit', 'HEAD')}:{entry['path']}"]
    text = subprocess.run(shown, check=True, capture_output=True, text=True).stdout
    command = [sys.executable, "-m", "conformance.cli", "recipe", f"--adapter={entry['adapter']}"]
    command += entry.get("options", [])
    words = entry.get("words", [])
    if "option" in entry:
        words = [*words_of_script(text, entry["option"]), *words]
    else:
        (file := folder / Path(entry["path"]).name).write_text(text, "utf-8")
        command.append(str(file))
    done = subprocess.run([*command, "--", *words], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
