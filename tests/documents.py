"""The pages of the documentation and their code: commands, and tinyrl with its adapter."""

import contextlib
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from conformance import cli
from tests import command

README = (command.ROOT / "README.md").read_text()

PAGES = {
    path: path.read_text()
    for path in [
        *(command.ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
        *sorted((command.ROOT / "docs").glob("*.md")),
    ]
}

TEXT = "".join(PAGES.values())


def blocks(language: str, beginning: str = "") -> list[str]:
    """All pages' code blocks in a language that begin with a pattern, each once."""
    found = re.findall(rf"^```{language}\n({beginning}.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)
    return [*dict.fromkeys(found)]


FIRST, *OTHERS = blocks("sh")

COMMANDS = [*dict.fromkeys(line for block in OTHERS for line in block.splitlines())]


def commands(pattern: str) -> list[str]:
    return [line for line in COMMANDS if re.match(pattern, line)]


BY_PLACE = commands(".*my_package.conformance:")

TINYRL = (command.ROOT / "tests" / "tinyrl" / "tinyrl.py").read_text()


def write_tinyrl(folder: Path, trainer: str = TINYRL) -> str:
    """Write the complete adapter and its trainer to a folder; returns the adapter's place."""
    [code] = blocks("python", '"""Conformance of tinyrl')
    place = BY_PLACE[1].partition("--adapter=")[2]
    module = place.partition(":")[0].replace(".", "/")
    for name, text in {f"{module}.py": code, "tinyrl.py": trainer}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return place


def run_cli(folder: Path, *arguments: str) -> tuple[int, str]:
    """The status and the output of `rl-loss-conformance` in a folder.

    The command runs in a process of its own, as modules in several folders have the same name.
    """
    status = command.fork(_cli, folder, arguments)
    return status, (folder / "output").read_text()


def _cli(folder: Path, arguments: Sequence[str]) -> None:
    os.chdir(folder)
    with (folder / "output").open("w") as output, contextlib.redirect_stdout(output):
        status = cli.main([*arguments])
    sys.exit(status)
