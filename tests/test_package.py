"""The wheel works where nothing else of this repository is installed."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.command import ROOT

pytestmark = pytest.mark.processes

SOURCES = ("adapters", "conformance", "reference", "pyproject.toml", "README.md", "LICENSE")


def run(*arguments: str | Path, cwd: Path) -> str:
    """The output of a program, without the environment of this repository and of this pytest."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "PYTHON"))}
    result = subprocess.run(
        arguments,
        cwd=cwd,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout
    return result.stdout


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """The wheel, built from a copy, as a later build would pack files that a build leaves."""
    source = tmp_path / "source"
    source.mkdir()
    for name in SOURCES:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, source / name)
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", ".", cwd=source)
    [built] = source.glob("*.whl")
    return built


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """The interpreter of an environment that has only the packages that the wheel requires.

    These are links to the packages that are installed here: installing torch again takes minutes.
    """
    base = tmp_path / "environment"
    venv.create(base)
    site = Path(sysconfig.get_path("purelib", "venv", {"base": str(base)}))
    for requirement in requirements():
        for name in {file.parts[0] for file in requirement.files or ()} - {"..", "__pycache__"}:
            if not (site / name).exists():
                (site / name).symlink_to(Path(str(requirement.locate_file(name))))
    return base / "bin" / "python"


def requirements() -> list[Distribution]:
    """The installed distributions that the project requires, directly or indirectly."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pending, found = [*project["dependencies"]], dict[str, Distribution]()
    while pending:
        requirement = Requirement(pending.pop())
        wanted = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if wanted and requirement.name not in found:
            found[requirement.name] = distribution(requirement.name)
            pending += found[requirement.name].requires or []
    return [*found.values()]


def test_wheel_runs_in_an_empty_environment_from_an_empty_folder(
    wheel: Path, python: Path, tmp_path: Path
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    install = ("install", "--no-index", "--disable-pip-version-check", wheel)
    run(sys.executable, "-m", "pip", "--python", python, *install, cwd=empty)

    options = ("--adapter=native", "--layout=dp2-cp1-mb2-thd", "--checks=weights", "-k=one_token")
    output = run(python, "-m", "pytest", *options, cwd=empty)
    command = python.with_name("rl-loss-conformance")
    page = run(command, "html", "reports/latest/native.json", "-o", "page.html", cwd=empty)

    what_is_known = "from conformance.comparing.known import known; print(known('skyrl', 'fsdp'))"
    assert "Expectations(" in run(python, "-c", what_is_known, cwd=empty)
    assert "report: " in output
    assert page == "page: page.html\n"
    assert "License-Expression: Apache-2.0" in run(
        python,
        "-c",
        "import importlib.metadata as m; print(m.metadata('rl-loss-conformance'))",
        cwd=empty,
    )
