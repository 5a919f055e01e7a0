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

pytestmark = pytest.mark.soak

ACTION = command.ROOT / ".github" / "actions" / "gate" / "action.yml"

DOCUMENT: dict[str, Any] = yaml.safe_load(ACTION.read_text())

STEPS: list[dict[str, Any]] = DOCUMENT["runs"]["steps"]

RED = re.findall(
    r"^```(?:text|sh)\n((?:worse: |pytest --adapter=native).*?)^```$",
    (command.ROOT / ".github" / "workflows" / "README.md").read_text(),
    re.DOTALL | re.MULTILINE,
)
"""What the page of the workflows shows of a gate that is red."""

OPTIONS = "--layout=dp1-cp1-mb1-bshd --checks=weights --modes=token_mean -k uneven_lengths"


def step(name: str) -> dict[str, Any]:
    return next(step for step in STEPS if step["name"] == name)


def run(name: str, folder: Path, **inputs: str) -> subprocess.CompletedProcess[str]:
    """A step as GitHub's runner runs it: with bash, stopping at the first error."""
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
        "PYTHONPATH": os.pathsep.join([str(folder / "site"), str(command.ROOT)]),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
    }
    command.install_broken_adapters(folder / "site")
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step(name)["run"]],
        cwd=folder,
        env={k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")} | github | values,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def native(adapter: str, options: str = OPTIONS) -> dict[str, str]:
    return {"adapter": adapter, "framework": "", "base": "", "head": "", "options": options}


def test_a_head_that_is_worse_fails_and_leaves_reports_page_and_summary(tmp_path: Path) -> None:
    base = run("Base", tmp_path, **native("twolayouts"))
    gate = run("Gate", tmp_path, **native("onetokenshort"))
    after = run("Difference", tmp_path)
    reports = tmp_path / "conformance-reports"

    assert base.returncode == 0, base.stdout
    assert (tmp_path / "output").read_text() == f"reports={reports}\n"
    assert gate.returncode == 1
    assert "::error title=count_off_by_one (1)::" in gate.stdout
    assert len(RED) == 2
    assert all(shown in gate.stdout for shown in RED)
    assert after.returncode == 0, after.stdout
    assert json.loads((reports / "head.json").read_text())["summary"]["verdicts"] == {"mismatch": 1}
    assert (reports / "page.html").read_text().startswith("<!DOCTYPE html>")
    summary = (tmp_path / "summary.md").read_text()
    assert summary.count("### native") == 1
    assert "| worse | 1 |" in summary
    assert summary.endswith((reports / "diff.md").read_text())


def test_a_base_that_is_wrong_already_does_not_fail(tmp_path: Path) -> None:
    base = run("Base", tmp_path, **native("onetokenshort"))
    gate = run("Gate", tmp_path, **native("onetokenshort"))

    assert base.returncode == 0, base.stdout
    assert gate.returncode == 0, gate.stdout
    assert "1 xfailed" in gate.stdout


def test_a_base_that_cannot_be_run_fails_at_once(tmp_path: Path) -> None:
    base = run("Base", tmp_path, **native("twolayouts", "--layout=dp9"))

    assert base.returncode not in (0, pytest.ExitCode.TESTS_FAILED)
    assert "is not of the form" in base.stdout


def test_the_commits_are_those_of_the_checkout(tmp_path: Path) -> None:
    inputs = native("skyrl") | {"framework": "/nowhere", "base": "abc", "head": "def"}

    assert "source '/nowhere@abc'" in run("Base", tmp_path, **inputs).stdout
    (tmp_path / "conformance-reports").mkdir(exist_ok=True)
    assert "source '/nowhere@def'" in run("Gate", tmp_path, **inputs).stdout


@pytest.mark.parametrize(
    ("device", "backend", "words"),
    [
        ("tpu", "", "--device=tpu is unknown"),
        ("cpu", "nccl", "--backend=nccl carries CUDA tensors only"),
    ],
)
def test_device_and_backend_are_those_of_both_runs(
    tmp_path: Path, device: str, backend: str, words: str
) -> None:
    inputs = native("native") | {"device": device, "backend": backend}

    assert words in run("Base", tmp_path, **inputs).stdout
    assert words in run("Gate", tmp_path, **inputs).stdout


def test_what_is_installed_exists() -> None:
    project = tomllib.loads((command.ROOT / "pyproject.toml").read_text())["project"]

    assert (ACTION.parent / "../../..").resolve() == command.ROOT
    assert (command.ROOT / "constraints.txt").exists()
    assert DOCUMENT["inputs"]["extras"]["default"] in project["optional-dependencies"]
    assert "/../../.." in step("Install")["run"]
