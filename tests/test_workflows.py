"""Workflows and actions are valid: by GitHub's schemas, shellcheck, and our own command lines.

Only GitHub itself can show whether it runs these files as intended.
"""

import contextlib
import io
import re
import subprocess
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import check_jsonschema
import pytest
import yaml
from click.testing import CliRunner

from conformance import cli
from conformance.views.overview.pages import WEB_PAGE
from tests import command
from tests.conformance import test_gpu

FOLDER = command.ROOT / ".github"

FILES = {str(path.relative_to(FOLDER)): path.read_text() for path in FOLDER.rglob("*.yml")}

CI, GPU_GATE, ACTION = "workflows/ci.yml", "workflows/gpu-gate.yml", "actions/gate/action.yml"

WEB_PAGES = "workflows/pages.yml"

PAGES = {
    GPU_GATE: (FOLDER / "workflows" / "README.md").read_text(),
    ACTION: (FOLDER / "actions" / "gate" / "README.md").read_text(),
}

EXAMPLES = {page: re.findall(r"```yaml\n(.*?)```", PAGES[page], re.DOTALL)[0] for page in PAGES}

SCHEMAS = ("vendor.github-workflows", "custom.github-workflows-require-timeout")

Document = dict[str, Any]


def complaints(text: str, config: pytest.Config) -> list[str]:
    """All complaints about a workflow or an action."""
    schemas = ["vendor.github-actions"] if "runs" in read(text) else SCHEMAS
    found = [schema_errors(text, schema) for schema in schemas]
    for script in (step["run"] for step in steps(text) if "run" in step):
        found += [shellcheck(script), *unknown_options(script, config)]
    return [*filter(None, found)]


def read(text: str) -> Document:
    """A document with all keys and values as text, so that the key ``on`` is not a truth value."""
    document: Document = yaml.load(text, yaml.BaseLoader)
    return document


def steps(text: str) -> list[Document]:
    document = read(text)
    holders = [*document.get("jobs", {}).values(), document.get("runs", {})]
    return [step for holder in holders for step in holder.get("steps", [])]


def inputs(name: str) -> dict[str, Document]:
    """The inputs that an action or a workflow declares."""
    document = read(FILES[name])
    declared: dict[str, Document]
    declared = (document if name == ACTION else document["on"]["workflow_call"])["inputs"]
    return declared


def schema_errors(text: str, schema: str) -> str:
    arguments = ["--builtin-schema", schema, "--default-filetype", "yaml", "-"]
    result = CliRunner().invoke(check_jsonschema.main, arguments, input=text)
    return result.output if result.exit_code else ""


def shellcheck(script: str) -> str:
    program = Path(sysconfig.get_path("scripts"), "shellcheck")
    arguments = [program, "--shell=bash", "-"]
    return subprocess.run(arguments, input=script, capture_output=True, text=True).stdout


def unknown_options(script: str, config: pytest.Config) -> Iterator[str]:
    """Yields complaints about long options that the program of their line does not have."""
    for line in script.replace("\\\n", " ").splitlines():
        for option in re.findall(r"(?<![\w-])--[a-z-]+", line):
            if not is_known(option, line, config):
                yield f"{option} is no option of what is run by: {line}"


def is_known(option: str, line: str, config: pytest.Config) -> bool:
    ours = re.search(r"rl-loss-conformance (\w+)", line)
    if ours is None:
        return "pytest " in line and config.getoption(option, ...) is not ...
    with contextlib.redirect_stdout(io.StringIO()) as shown, contextlib.suppress(SystemExit):
        cli.main([ours[1], "--help"])
    return f"{option} " in shown.getvalue()


@pytest.mark.parametrize("text", [*FILES.values(), *EXAMPLES.values()])
def test_a_file_is_as_it_should_be(pytestconfig: pytest.Config, text: str) -> None:
    assert complaints(text, pytestconfig) == []


@pytest.mark.parametrize(
    ("name", "right", "wrong", "complaint"),
    [
        (CI, "runs-on:", "run-on:", "'runs-on' is a required property"),
        (CI, "    timeout-minutes: 90\n", "", "'timeout-minutes' is a required property"),
        (ACTION, "using: composite", "using: compost", "is not one of ['node12'"),
        (GPU_GATE, "nvidia-smi", "echo ${{ inputs.ref }}", "SC2296"),
        (GPU_GATE, "nvidia-smi", "cat $RUNNER_TEMP/x", "SC2086"),
        (GPU_GATE, 'bin/tox" -e', "bin/tox -e", "SC1073"),
        (ACTION, "conformance review", "conformance revue", "--adapter is no option"),
        (ACTION, '"--backend=', '"--transport=', "--transport is no option"),
        (ACTION, "conformance diff", "conformance dif", "--format is no option"),
        (ACTION, "--format=", "--layout=", "--layout is no option"),
    ],
)
def test_what_is_wrong_is_seen(
    pytestconfig: pytest.Config, name: str, right: str, wrong: str, complaint: str
) -> None:
    assert right in FILES[name]

    found = complaints(FILES[name].replace(right, wrong), pytestconfig)

    assert any(complaint in one for one in found), found


def test_the_script_of_ci_is_as_it_should_be() -> None:
    assert shellcheck((command.ROOT / ".ci" / "run").read_text()) == ""


@pytest.mark.parametrize("name", FILES)
def test_jobs_may_read_only_and_nothing_is_pasted_into_a_script(name: str) -> None:
    """A pasted expression is run, and the author of a pull request may choose its text."""
    if name != ACTION:
        assert read(FILES[name])["permissions"] == {"contents": "read"}
        assert "pull_request_target" not in read(FILES[name])["on"]
    for step in steps(FILES[name]):
        assert "${{" not in step.get("run", "")
        assert re.search(r"@(release/)?v\d+$|^\./", step.get("uses", "./"))


@pytest.mark.parametrize("name", PAGES)
def test_every_input_is_used_and_documented(name: str) -> None:
    rows = "".join(re.findall(r"^\| (`.*?) \|", PAGES[name], re.MULTILINE))

    assert set(re.findall(r"\binputs\.(\w+)", FILES[name])) == set(inputs(name))
    assert set(re.findall(r"`(\w+)`", rows)) == set(inputs(name))


@pytest.mark.parametrize(
    ("user", "name"),
    [(EXAMPLES[GPU_GATE], GPU_GATE), (EXAMPLES[ACTION], ACTION), (FILES[GPU_GATE], ACTION)],
)
def test_inputs_are_given_as_they_are_declared(user: str, name: str) -> None:
    [job] = read(user)["jobs"].values()
    caller = job if "uses" in job else job["steps"][-1]

    assert caller["uses"].partition("@")[0].endswith(f".github/{name.removesuffix('/action.yml')}")
    assert set(caller["with"]) <= set(inputs(name))
    assert {key for key, one in inputs(name).items() if "required" in one} <= set(caller["with"])


def test_pages_are_the_folder_of_the_web_page_whenever_it_changes() -> None:
    folder = WEB_PAGE.parent
    [upload] = [step for step in steps(FILES[WEB_PAGES]) if "upload-pages" in step.get("uses", "")]

    assert WEB_PAGE.name == "index.html"
    assert upload["with"]["path"] == str(folder)
    assert f"{folder}/**" in read(FILES[WEB_PAGES])["on"]["push"]["paths"]


def test_by_hand_the_same_inputs_are_taken() -> None:
    assert read(FILES[GPU_GATE])["on"]["workflow_dispatch"]["inputs"] == inputs(GPU_GATE)


def test_environments_of_tox_exist() -> None:
    named = re.findall(r'\btox"? (?:exec )?-e (\w+)', "".join([*FILES.values(), *PAGES.values()]))

    assert set(named) == {"gpu"}
    assert "[testenv:gpu]" in (command.ROOT / "tox.ini").read_text()


def test_the_reason_shown_is_that_of_the_tests() -> None:
    _, skip = test_gpu.pytestmark

    assert skip.kwargs["reason"] in PAGES[GPU_GATE]


@pytest.mark.parametrize("name", PAGES)
def test_options_that_a_page_shows_exist(pytestconfig: pytest.Config, name: str) -> None:
    blocks = re.findall(r"```sh\n(.*?)```", PAGES[name], re.DOTALL)
    in_text = re.findall(r"`(pytest .*?)`", PAGES[name], re.DOTALL)

    assert [*unknown_options("\n".join([*blocks, *in_text]), pytestconfig)] == []
