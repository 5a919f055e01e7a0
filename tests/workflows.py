"""What is wrong with workflows and actions, as far as that can be told without GitHub."""

from __future__ import annotations

import configparser
import contextlib
import functools
import io
import re
import subprocess
import tomllib
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import check_jsonschema
import tree_sitter_bash
import yaml
from click.testing import CliRunner
from tree_sitter import Language, Parser

from conformance import cli
from tests import command

Document = dict[str, Any]

ACTION = "action.yml"

ACTION_SCHEMAS = ("vendor.github-actions",)

WORKFLOW_SCHEMAS = ("vendor.github-workflows", "custom.github-workflows-require-timeout")

UBUNTU = {"bash", "cat", "env", "mkdir", "python3", "realpath"}
"""Programs that a bare runner has."""

DRIVER = {"nvidia-smi"}
"""Programs that come with a GPU's driver."""

PLACES = {"$GITHUB_ACTION_PATH": ".github/actions/gate", "$root": "."}
"""Variables of scripts that name folders of this repository."""

MADE = ("$RUNNER_TEMP/", "$reports/")
"""Beginnings of paths that are there only while a job runs."""

BASH = Parser(Language(tree_sitter_bash.language()))


def complaints(text: str, pytest_has: Callable[[str], bool]) -> list[str]:
    """All that is wrong with a workflow or an action; pytest has options, or has not."""
    document = read(text)
    found = [
        *_schemas(text, ACTION_SCHEMAS if _is_action(document) else WORKFLOW_SCHEMAS),
        *_versions(document),
        *([] if _is_action(document) else _rights(document)),
        *_inputs(text, document),
        *_calls(document),
    ]
    for script in _scripts(document):
        found += _script(script, pytest_has)
    return found


def read(text: str) -> Document:
    """A document of which every value is text, so that the key ``on`` is no truth value."""
    document: Document = yaml.load(text, yaml.BaseLoader)
    return document


def inputs(document: Document) -> dict[str, Document]:
    """What an action or a called workflow declares."""
    declared: dict[str, Document]
    declared = document["inputs"] if _is_action(document) else _taken(document, "workflow_call")
    return declared


def commands(script: str) -> Iterator[list[str]]:
    """The words of every simple command, as they are written; none of assignments and redirects."""
    nodes = [BASH.parse(script.encode()).root_node]
    while nodes:
        node = nodes.pop()
        nodes += reversed(node.children)
        if node.type == "command":
            words = [child for child in node.children if not child.type.endswith("_redirect")]
            yield [word.text.decode() for word in words if word.type != "variable_assignment"]


def unknown_options(script: str, pytest_has: Callable[[str], bool]) -> Iterator[str]:
    """What pytest, our command line and tox are given and do not have."""
    for program, arguments in map(_program, commands(script)):
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


def _is_action(document: Document) -> bool:
    return "runs" in document


def _schemas(text: str, schemas: Iterable[str]) -> Iterator[str]:
    for schema in schemas:
        arguments = ["--builtin-schema", schema, "--default-filetype", "yaml", "-"]
        result = CliRunner().invoke(check_jsonschema.main, arguments, input=text)
        if result.exit_code:
            yield f"{schema}: {result.output}"


def _versions(document: Document) -> Iterator[str]:
    for step in _steps(document):
        if "uses" in step and not re.search(r"@v\d+$|^\./|^OWNER/", step["uses"]):
            yield f"{step['uses']} is of no major version"


def _rights(document: Document) -> Iterator[str]:
    if document.get("permissions") != {"contents": "read"}:
        yield "a job may do more than read"
    if "pull_request_target" in document["on"]:
        yield "pull requests of forks are run with the rights of the repository"


def _inputs(text: str, document: Document) -> Iterator[str]:
    used, declared = set(re.findall(r"\binputs\.(\w+)", text)), inputs(document)
    yield from (f"input {key} is used and not declared" for key in used - declared.keys())
    yield from (f"input {key} is declared and not used" for key in declared.keys() - used)
    if declared and not _is_action(document) and _taken(document, "workflow_dispatch") != declared:
        yield "by hand, other inputs are taken"


def _calls(document: Document) -> Iterator[str]:
    """What is wrong with the use of this project's actions and workflows."""
    for user in [*_jobs(document), *_steps(document)]:
        _, here, path = user.get("uses", "").partition("/.github/")
        if not here:
            continue
        called = command.ROOT / ".github" / path.partition("@")[0]
        called = called / ACTION if called.is_dir() else called
        if not called.exists():
            yield f"{user['uses']} is not in this repository"
            continue
        declared, given = inputs(read(called.read_text())), set(user.get("with", {}))
        required = {key for key, spec in declared.items() if spec.get("required") == "true"}
        yield from (f"{key} is no input of {user['uses']}" for key in given - declared.keys())
        yield from (f"{user['uses']} requires {key}" for key in required - given)


def _script(script: str, pytest_has: Callable[[str], bool]) -> Iterator[str]:
    if "${{" in script:
        yield f"an expression is pasted into a script, where it would be run: {script}"
    parsed = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True)
    if parsed.returncode:
        yield f"bash: {parsed.stderr}"
        return
    yield from unknown_options(script, pytest_has)
    for program, arguments in map(_program, commands(script)):
        if program not in _known_programs():
            yield f"{program} is no program of a runner or of this project"
        yield from (f"{path} is not in this repository" for path in _missing_paths(arguments))


def _program(words: list[str]) -> tuple[str, list[str]]:
    """What is run in the end, without the folder it lies in and the variables it is run without."""
    words = [word.strip('"') for word in words]
    while words[0] == "env":
        words = words[3:] if words[1] == "-u" else words[1:]
    return words[0].rpartition("/")[2], words[1:]


@functools.cache
def _known_programs() -> frozenset[str]:
    builtins = subprocess.run(["bash", "-c", "compgen -b"], capture_output=True, text=True).stdout
    project = tomllib.loads((command.ROOT / "pyproject.toml").read_text())["project"]
    required = [project["name"], *project["dependencies"]]
    required += project["optional-dependencies"]["dev"]
    distributions = {re.match(r"[\w-]+", requirement)[0] for requirement in required}  # type: ignore[index]
    scripts = entry_points(group="console_scripts")
    ours = {entry.name for entry in scripts if entry.dist and entry.dist.name in distributions}
    return frozenset({*builtins.split(), *UBUNTU, *DRIVER, *ours, "pip"})


def _help(name: str) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as shown, contextlib.suppress(SystemExit):
        cli.main([name, "--help"])
    return shown.getvalue()


def _tox() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None)
    parser.read(command.ROOT / "tox.ini")
    return parser


def _missing_paths(arguments: list[str]) -> Iterator[str]:
    for path in arguments:
        if "/" not in path or path.startswith((*MADE, "-")):
            continue
        place, slash, rest = path.partition("/")
        if not Path(command.ROOT, PLACES.get(place, place) + slash + rest).exists():
            yield path


def _taken(document: Document, trigger: str) -> dict[str, Document]:
    triggers = document["on"]
    declared = triggers.get(trigger) if isinstance(triggers, dict) else None
    return declared["inputs"] if declared else {}


def _jobs(document: Document) -> list[Document]:
    return [*document.get("jobs", {}).values()]


def _steps(document: Document) -> list[Document]:
    holders = [*_jobs(document), document.get("runs", {})]
    return [step for holder in holders for step in holder.get("steps", [])]


def _scripts(document: Document) -> list[str]:
    return [step["run"] for step in _steps(document) if "run" in step]
