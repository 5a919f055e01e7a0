"""What is wrong with workflows and actions, as far as that can be told without GitHub."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import check_jsonschema
import yaml
from click.testing import CliRunner

from tests import command, scripts

Document = dict[str, Any]

ACTION_SCHEMAS = ("vendor.github-actions",)

WORKFLOW_SCHEMAS = ("vendor.github-workflows", "custom.github-workflows-require-timeout")

PUBLISH = {"id-token": "write"}
"""What a job needs in order to publish without a token."""


def complaints(text: str, pytest_has: Callable[[str], bool]) -> list[str]:
    """All that is wrong with a workflow or an action; pytest has an option, or has not."""
    document = read(text)
    found = [
        *_schemas(text, ACTION_SCHEMAS if _is_action(document) else WORKFLOW_SCHEMAS),
        *([] if _is_action(document) else _rights(document)),
        *_inputs(text, document),
        *_calls(document),
        *_paths(document),
    ]
    for step in _steps(document):
        found += [*_versions(step), *scripts.complaints(step.get("run", ""), pytest_has)]
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


def _is_action(document: Document) -> bool:
    return "runs" in document


def _schemas(text: str, schemas: Iterable[str]) -> Iterator[str]:
    for schema in schemas:
        arguments = ["--builtin-schema", schema, "--default-filetype", "yaml", "-"]
        result = CliRunner().invoke(check_jsonschema.main, arguments, input=text)
        if result.exit_code:
            yield f"{schema}: {result.output}"


def _rights(document: Document) -> Iterator[str]:
    if document.get("permissions") != {"contents": "read"}:
        yield "a job may do more than read"
    for job in _jobs(document):
        if job.get("permissions", PUBLISH) != PUBLISH:
            yield "a job may do more than read, or than say who it is when it publishes"
        if "permissions" in job and any("run" in step for step in job["steps"]):
            yield "a job that publishes runs code with a right that only publishing needs"
    if "pull_request_target" in document["on"]:
        yield "pull requests of forks are run with the rights of the repository"


def _inputs(text: str, document: Document) -> Iterator[str]:
    used, declared = set(re.findall(r"\binputs\.(\w+)", text)), inputs(document)
    yield from (f"input {key} is used and not declared" for key in used - declared.keys())
    yield from (f"input {key} is declared and not used" for key in declared.keys() - used)
    if declared and not _is_action(document) and _taken(document, "workflow_dispatch") != declared:
        yield "by hand, other inputs are taken"


def _taken(document: Document, trigger: str) -> dict[str, Document]:
    triggers = document["on"]
    declared = triggers.get(trigger) if isinstance(triggers, dict) else None
    return declared["inputs"] if declared else {}


def _calls(document: Document) -> Iterator[str]:
    """What is wrong with the use of this project's actions and workflows."""
    for user in [*_jobs(document), *_steps(document)]:
        _, ours, path = user.get("uses", "").partition("/.github/")
        if not ours:
            continue
        called = command.ROOT / ".github" / path.partition("@")[0]
        called = called / "action.yml" if called.is_dir() else called
        if not called.exists():
            yield f"{user['uses']} is not in this repository"
            continue
        declared, given = inputs(read(called.read_text())), set(user.get("with", {}))
        required = {key for key, spec in declared.items() if spec.get("required") == "true"}
        yield from (f"{key} is no input of {user['uses']}" for key in given - declared.keys())
        yield from (f"{user['uses']} requires {key}" for key in required - given)


def _paths(document: Document) -> Iterator[str]:
    """Folders that steps work in and no step checks out; files that are not there."""
    given = [step.get("with", {}) for step in _steps(document)]
    checked_out = {None, *(inputs.get("path") for inputs in given)}
    folders = {step.get("working-directory") for step in _steps(document)}
    yield from (f"nothing is checked out to {folder}" for folder in folders - checked_out)
    files = {inputs["cache-dependency-path"] for inputs in given if "cache" in inputs}
    yield from (f"{f} is not in this repository" for f in files if not (command.ROOT / f).exists())


def _versions(step: Document) -> Iterator[str]:
    if "uses" in step and not re.search(r"@(release/)?v\d+$|^\./|^OWNER/", step["uses"]):
        yield f"{step['uses']} is of no major version"


def _jobs(document: Document) -> list[Document]:
    return [*document.get("jobs", {}).values()]


def _steps(document: Document) -> list[Document]:
    holders = [*_jobs(document), document.get("runs", {})]
    return [step for holder in holders for step in holder.get("steps", [])]
