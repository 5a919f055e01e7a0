"""Workflows and actions hold together: with GitHub's schemas, with the commands, with their pages.

Whether GitHub runs them as they are meant is seen on GitHub alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from conformance.runs import registry
from tests import command, scripts, workflows
from tests.conformance import test_gpu

FOLDER = command.ROOT / ".github"

FILES = {str(path.relative_to(FOLDER)): path.read_text() for path in FOLDER.rglob("*.yml")}

CI, GPU_GATE, ACTION = "workflows/ci.yml", "workflows/gpu-gate.yml", "actions/gate/action.yml"

RELEASE = "workflows/release.yml"

PAGES = {
    GPU_GATE: (FOLDER / "workflows" / "README.md").read_text(),
    ACTION: (FOLDER / "actions" / "gate" / "README.md").read_text(),
}

RUNS_SOMETHING = "    steps:\n      - run: pip list\n      - uses: actions/dow"

Known = Callable[[str], bool]

Complain = Callable[[str], list[str]]


@pytest.fixture
def known(pytestconfig: pytest.Config) -> Known:
    """Whether pytest has an option."""

    def has(option: str) -> bool:
        try:
            pytestconfig.getoption(option)
        except ValueError:
            return False
        return True

    return has


@pytest.fixture
def complain(known: Known) -> Complain:
    return lambda text: workflows.complaints(text, known)


def example(name: str) -> str:
    [text] = re.findall(r"```yaml\n(.*?)```", PAGES[name], re.DOTALL)
    return text


def test_there_are_these_files() -> None:
    assert set(FILES) == {CI, GPU_GATE, ACTION, RELEASE}


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_as_it_should_be(complain: Complain, name: str) -> None:
    assert complain(FILES[name]) == []


@pytest.mark.parametrize("name", PAGES)
def test_the_example_of_a_page_is_as_it_should_be(complain: Complain, name: str) -> None:
    assert complain(example(name)) == []


@pytest.mark.parametrize(
    ("name", "right", "wrong", "complaint"),
    [
        (CI, "runs-on:", "run-on:", "vendor.github-workflows"),
        (CI, "    timeout-minutes: 90\n", "", "github-workflows-require-timeout"),
        (ACTION, "using: composite", "using: compost", "vendor.github-actions"),
        (CI, "contents: read", "contents: write", "a job may do more than read"),
        (RELEASE, "  id-token: write", "  contents: write", "a job may do more than read"),
        (
            RELEASE,
            "    steps:\n      - uses: actions/dow",
            RUNS_SOMETHING,
            "runs code with a right",
        ),
        (CI, "pull_request:", "pull_request_target:", "rights of the repository"),
        (CI, "actions/checkout@v6", "actions/checkout@main", "is of no major version"),
        (GPU_GATE, "nvidia-smi", "echo ${{ inputs.ref }}", "pasted into a script"),
        (GPU_GATE, 'bin/tox" -e', "bin/tox -e", "bash: "),
        (GPU_GATE, "nvidia-smi", "nvidia-top", "nvidia-top is no program"),
        (ACTION, "pytest --adapter", "py.tests --adapter", "py.tests is no program"),
        (GPU_GATE, "-e gpu", "-e cuda", "tox.ini has no cuda"),
        (CI, ".ci/run", ".ci/go", ".ci/go is not in this repository"),
        (ACTION, "$root/constraints", "$root/pins", "$root/pins.txt is not in"),
        (ACTION, '"--backend=', '"--transport=', "pytest has no --transport"),
        (ACTION, "--format=", "--layout=", "diff has no --layout"),
        (ACTION, "inputs.engine }}", "inputs.motor }}", "input motor is used and not declared"),
        (GPU_GATE, "inputs.options", "inputs.extras", "input options is declared and not used"),
        (GPU_GATE, "inputs: *inputs", "inputs: {}", "by hand, other inputs are taken"),
        (GPU_GATE, "          device:", "          machine:", "machine is no input of"),
        (GPU_GATE, "path: conformance", "path: project", "nothing is checked out to conformance"),
        (CI, "path: constraints.txt", "path: pins.txt", "pins.txt is not in this repository"),
        (GPU_GATE, "/actions/gate", "/actions/door", "door is not in this repository"),
    ],
)
def test_what_is_wrong_is_seen(
    complain: Complain, name: str, right: str, wrong: str, complaint: str
) -> None:
    assert right in FILES[name]

    found = complain(FILES[name].replace(right, wrong))

    assert any(complaint in one for one in found), found


@pytest.mark.parametrize("name", PAGES)
def test_what_is_wrong_with_an_example_is_seen(complain: Complain, name: str) -> None:
    found = complain(example(name).replace("adapter:", "framwork:"))

    assert any("framwork is no input of" in one for one in found)
    assert any(one.endswith("requires adapter") for one in found)


@pytest.mark.parametrize("name", PAGES)
def test_every_input_is_documented(name: str) -> None:
    rows = "".join(re.findall(r"^\| (`.*?) \|", PAGES[name], re.MULTILINE))

    assert set(re.findall(r"`(\w+)`", rows)) == set(workflows.inputs(workflows.read(FILES[name])))


def test_devices_are_those_that_the_page_says_adapters_have() -> None:
    classes = [c for name in registry.known() for c in registry.adapter_classes(name).values()]
    page = PAGES[GPU_GATE]

    assert "Every adapter of this project drives its framework on `cpu` and on `cuda`" in page
    assert {adapter.devices for adapter in classes} == {("cpu", "cuda")}


def test_the_reason_shown_is_that_of_the_tests() -> None:
    _, skip = test_gpu.pytestmark

    assert skip.kwargs["reason"] in PAGES[GPU_GATE]


@pytest.mark.parametrize("name", PAGES)
def test_options_that_a_page_shows_exist(known: Known, name: str) -> None:
    blocks = re.findall(r"```sh\n(.*?)```", PAGES[name], re.DOTALL)
    in_text = re.findall(r"`(pytest .*?)`", PAGES[name], re.DOTALL)

    assert [*scripts.unknown_options("\n".join([*blocks, *in_text]), known)] == []
