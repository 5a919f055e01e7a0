"""What is wrong with a script of bash, as far as that can be told without running it."""

from __future__ import annotations

import configparser
import contextlib
import functools
import io
import re
import subprocess
import tomllib
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from pathlib import Path

import tree_sitter_bash
from tree_sitter import Language, Parser

from conformance import cli
from tests import command

UBUNTU = {"bash", "cat", "env", "mkdir", "python3", "realpath"}
"""Programs that a bare runner has."""

DRIVER = {"nvidia-smi"}
"""Programs that come with a GPU's driver."""

PLACES = {"$GITHUB_ACTION_PATH": ".github/actions/gate", "$root": "."}
"""Variables of scripts that name folders of this repository."""

MADE = ("$RUNNER_TEMP/", "$reports/")
"""Beginnings of paths that are there only while a job runs."""

BASH = Parser(Language(tree_sitter_bash.language()))


def complaints(script: str, pytest_has: Callable[[str], bool]) -> Iterator[str]:
    """All that is wrong with a script; pytest has an option, or has not."""
    if "${{" in script:
        yield f"an expression is pasted into a script, where it would be run: {script}"
    parsed = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True)
    if parsed.returncode:
        yield f"bash: {parsed.stderr}"
        return
    yield from unknown_options(script, pytest_has)
    for program, arguments in _commands(script):
        if program not in _programs():
            yield f"{program} is no program of a runner or of this project"
        yield from (f"{path} is not in this repository" for path in _missing(arguments))


def unknown_options(script: str, pytest_has: Callable[[str], bool]) -> Iterator[str]:
    """What pytest, our command line and tox are given and do not have."""
    for program, arguments in _commands(script):
        options = re.findall(r"(?<![\w-])--[a-z-]+", " ".join(arguments))
        if program == "pytest":
            yield from (f"pytest has no {option}" for option in options if not pytest_has(option))
        if program == "rl-loss-conformance":
            known = _help(arguments[0])
            yield from (f"{arguments[0]} has no {o}" for o in options if f"{o} " not in known)
        if program == "tox":
            environment = arguments[arguments.index("-e") + 1]
            if f"testenv:{environment}" not in _tox():
                yield f"tox.ini has no {environment}"


def _commands(script: str) -> Iterator[tuple[str, list[str]]]:
    """Every simple command: its program, and its arguments without quotes."""
    nodes = [BASH.parse(script.encode()).root_node]
    while nodes:
        node = nodes.pop()
        nodes += reversed(node.children)
        if node.type == "command":
            words = [word for word in node.children if not word.type.endswith("_redirect")]
            yield _program([word.text.decode().strip('"') for word in words])


def _program(words: list[str]) -> tuple[str, list[str]]:
    """What is run in the end, without the folder it lies in and the variables it is run without."""
    while words[0] == "env":
        words = words[3:] if words[1] == "-u" else words[1:]
    return words[0].rpartition("/")[2], words[1:]


@functools.cache
def _programs() -> frozenset[str]:
    """Builtins, a runner's programs, and those of what is installed with this project."""
    builtins = subprocess.run(["bash", "-c", "compgen -b"], capture_output=True, text=True).stdout
    project = tomllib.loads((command.ROOT / "pyproject.toml").read_text())["project"]
    required = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    names = [project["name"], *(re.split("[<=>]", requirement)[0] for requirement in required)]
    scripts = entry_points(group="console_scripts")
    ours = {entry.name for entry in scripts if entry.dist and entry.dist.name in names}
    return frozenset({*builtins.split(), *UBUNTU, *DRIVER, *ours, "pip"})


def _help(name: str) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as shown, contextlib.suppress(SystemExit):
        cli.main([name, "--help"])
    return shown.getvalue()


@functools.cache
def _tox() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None)
    parser.read(command.ROOT / "tox.ini")
    return parser


def _missing(arguments: list[str]) -> Iterator[str]:
    """Paths, seen from the root of this repository, that are not there."""
    for path in arguments:
        if "/" not in path or path.startswith((*MADE, "-")):
            continue
        place, slash, rest = path.partition("/")
        if not Path(command.ROOT, PLACES.get(place, place) + slash + rest).exists():
            yield path
