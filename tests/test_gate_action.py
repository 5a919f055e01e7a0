"""The action for frameworks' pull requests does what its page says: its steps are run here."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import command
from tests.toys import WITH_CP, WITHOUT_CP, checkout, commit_edits

pytestmark = pytest.mark.soak

ACTION = command.ROOT / ".github" / "actions" / "gate" / "action.yml"

DOCUMENT: dict[str, Any] = yaml.safe_load(ACTION.read_text())

STEPS: list[dict[str, Any]] = DOCUMENT["runs"]["steps"]

RED = re.findall(
    r"^```text\n(.*? got worse\.)\n```$",
    (command.ROOT / ".github" / "workflows" / "README.md").read_text(),
    re.DOTALL | re.MULTILINE,
)
"""The outputs of red gates that the page of the workflows shows."""

OPTIONS = "--layout=dp1-cp2-mb1-thd --checks=weights --modes=token_mean"

EXPECTED = """
framework = "slime"
engine = "megatron"

[[cause]]
name = "divided_by_cp"
reason = "it is meant to be so"
link = "https://example.org/1"
"""


@pytest.fixture(scope="module")
def framework(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """slime's toy: right at first, then wrong, then right."""
    folder = checkout(tmp_path_factory.mktemp("framework") / "slime")
    for edit in (WITHOUT_CP, WITH_CP):
        commit_edits(folder, "An edit", edit)
    return folder


def step(name: str) -> dict[str, Any]:
    return next(step for step in STEPS if step["name"] == name)


def run(name: str, folder: Path, **inputs: str) -> subprocess.CompletedProcess[str]:
    """Run a step as GitHub's runner does: with bash, stopping at the first error."""
    given = {key: spec.get("default", "") for key, spec in DOCUMENT["inputs"].items()} | inputs
    declared = step(name).get("env", {})
    values = {
        variable: given[re.fullmatch(r"\$\{\{ inputs\.(\w+) \}\}", text)[1]]  # type: ignore[index]
        for variable, text in declared.items()
    }
    github = {
        "RUNNER_TEMP": str(folder),
        "GITHUB_OUTPUT": str(folder / "output"),
        "GITHUB_STEP_SUMMARY": str(folder / "summary.md"),
        "PYTHONPATH": str(command.ROOT),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
    }
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step(name)["run"]],
        cwd=folder,
        env={k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")} | github | values,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def review(folder: Path, framework: Path, base: str, head: str, **inputs: str) -> Any:
    given = {"adapter": "slime", "framework": str(framework), "base": base, "head": head}
    return run("Review", folder, **{**given, "options": OPTIONS, **inputs})


def test_a_head_that_is_worse_fails_and_leaves_reports_page_and_summary(
    tmp_path: Path, framework: Path
) -> None:
    gate = review(tmp_path, framework, "HEAD~2", "HEAD~1")
    after = run("Difference", tmp_path)
    reports = tmp_path / "conformance-reports"

    assert gate.returncode == 1, gate.stdout
    assert (tmp_path / "output").read_text() == f"reports={reports}\n"
    assert re.search(r"^::error .*title=divided_by_cp", gate.stdout, re.MULTILINE)
    [sentence] = RED
    assert sentence in gate.stdout
    assert after.returncode == 0, after.stdout
    verdicts = json.loads((reports / "head.json").read_text())["summary"]["verdicts"]
    assert verdicts.keys() & {"mismatch"}
    assert (reports / "page.html").read_text().startswith("<!DOCTYPE html>")
    summary = (tmp_path / "summary.md").read_text()
    assert summary.count("### slime") == 1
    assert sentence in summary
    assert summary.endswith((reports / "diff.md").read_text())


def test_a_head_that_is_better_or_as_was_expected_does_not_fail(
    tmp_path: Path, framework: Path
) -> None:
    better = review(tmp_path, framework, "HEAD~1", "HEAD")
    (tmp_path / "known.toml").write_text(EXPECTED)
    expected = review(tmp_path, framework, "HEAD~2", "HEAD~1", expect=str(tmp_path / "known.toml"))

    assert better.returncode == 0, better.stdout
    assert "Nothing got worse; fixed: " in better.stdout
    assert expected.returncode == 0, expected.stdout


def test_a_base_that_cannot_be_run_fails_at_once(tmp_path: Path, framework: Path) -> None:
    wrong = review(tmp_path, framework, "HEAD~2", "HEAD", options="--layout=dp9")

    assert wrong.returncode == 2
    assert "is not of the form" in wrong.stdout
    assert "source '/nowhere@def'" in review(tmp_path, Path("/nowhere"), "abc", "def").stdout
    assert "has no commit 'abc'" in review(tmp_path, framework, "abc", "HEAD").stdout
    assert run("Difference", tmp_path).returncode == 0


@pytest.mark.parametrize(
    ("device", "backend", "words"),
    [
        ("tpu", "", "--device=tpu is unknown"),
        ("cpu", "nccl", "--backend=nccl carries CUDA tensors only"),
    ],
)
def test_device_and_backend_are_those_of_both_runs(
    tmp_path: Path, framework: Path, device: str, backend: str, words: str
) -> None:
    found = review(tmp_path, framework, "HEAD~2", "HEAD", device=device, backend=backend)

    assert words in found.stdout
    assert found.returncode == 2


def test_what_is_installed_exists() -> None:
    project = tomllib.loads((command.ROOT / "pyproject.toml").read_text())["project"]

    assert (ACTION.parent / "../../..").resolve() == command.ROOT
    assert (command.ROOT / "constraints.txt").exists()
    assert DOCUMENT["inputs"]["extras"]["default"] in project["optional-dependencies"]
    assert "/../../.." in step("Install")["run"]
