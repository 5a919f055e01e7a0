"""A framework is named only in adapters/frameworks.toml and in the places of CONTRIBUTING.md."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from adapters.frameworks import ENVIRONMENTS, LISTED, ListedFramework
from conformance.runs import registry
from tests.adapters.steps import LOSS_FUNCTIONS
from tests.command import ROOT
from tests.tables import table

PLACES = re.findall(r"^\d\. \[`(\S+)`\]", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)

WRITTEN = {
    "CHANGELOG.md",
    "README.md",
    "conformance/comparing/reductions.json",
    "docs/frameworks.md",
    "docs/options.md",
    "docs/your-recipe.md",
    "tests/names.toml",
}
"""Files that programs write, pages that show printed text, and the changelog."""

CHOSEN = {"tests/adapters/planted.toml"}
"""Files that are about a choice of frameworks."""

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())

FRAMEWORKS = pytest.mark.parametrize("one", LISTED.values(), ids=LISTED)


def in_repository() -> list[Path]:
    """All files of text, without reports."""
    endings = ("cfg", "ini", "json", "md", "py", "toml", "txt", "yml")
    folders = (".ci", ".github", "adapters", "conformance", "docs", "reference", "tests")
    found = [*ROOT.glob("*"), *(path for one in folders for path in (ROOT / one).rglob("*"))]
    return [path for path in found if path.is_file() and path.suffix[1:] in ("", *endings)]


def test_files_that_list_frameworks_are_those_that_contributing_names() -> None:
    """A file that names more than half of all frameworks is a list of them."""
    lists = set()
    for path in in_repository():
        words = {*re.findall(r"\w+", path.read_text(errors="ignore"))}
        if len(words & {*LISTED}) > len(LISTED) / 2:
            lists.add(str(path.relative_to(ROOT)))

    assert len(PLACES) <= 6
    assert lists - WRITTEN - CHOSEN == {*PLACES}


def test_every_extra_is_needed_by_a_framework() -> None:
    extras = {*PROJECT["project"]["optional-dependencies"]} - {"dev", "mutation"}

    assert extras == {extra for one in LISTED.values() for extra in one.extras}


@FRAMEWORKS
def test_an_entry_names_an_environment_and_engines_that_exist(one: ListedFramework) -> None:
    assert one.environment in ENVIRONMENTS
    assert {*one.plans} <= {*registry.adapter_classes(one.name)}
    assert bool(one.plans) == (one.source != "clone" and one.name not in LOSS_FUNCTIONS)


def test_every_folder_with_an_adapter_is_listed() -> None:
    found = {path.parent.name for path in (ROOT / "adapters").glob("*/tables.toml")}
    adapters = {one.adapter.replace(":", ".").split(".")[1] for one in LISTED.values()}

    assert found - {"engines", "native", "slime_family"} == adapters


@FRAMEWORKS
def test_a_framework_whose_recipes_are_read_has_examples_that_are_answered(
    one: ListedFramework,
) -> None:
    reads = any(adapter.recipes for adapter in registry.adapter_classes(one.name).values())
    answered = {recipe["adapter"] for recipe in table("recipes.toml")["recipe"]}

    assert bool(one.recipes) == bool(one.examples) == reads == (one.name in answered)


def test_mistakes_are_put_into_the_code_of_all_frameworks_but_one() -> None:
    """Megatron-LM comes with its own Megatron-Core, but tests' processes have another in memory."""
    changed = {run["framework"] for run in table("mistakes_in_real_code.toml")["run"].values()}

    assert {*LISTED} - changed == {*LOSS_FUNCTIONS, "megatron_lm"}


def test_the_list_is_read_with_the_standard_library_alone() -> None:
    """The workflow `watch.yml` reads the list before anything is installed."""
    program = [sys.executable, "-S", "-m", "adapters.frameworks"]
    output = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    jobs = json.loads(output.removeprefix("matrix="))["include"]

    assert [name for job in jobs for name in re.findall(r"(\w+)=", job["frameworks"])] == [
        one.name for name in ENVIRONMENTS for one in LISTED.values() if one.environment == name
    ]


def test_tox_has_an_environment_for_frameworks_that_can_be_installed_together() -> None:
    program = [sys.executable, "-m", "tox", "config", "-e", ",".join(ENVIRONMENTS)]
    keys = ["-k", "extras", "commands", "commands_pre"]
    output = subprocess.run([*program, *keys], cwd=ROOT, capture_output=True, text=True).stdout

    environments = re.split(r"^\[testenv:(\w+)\]$", output, flags=re.MULTILINE)[1:]
    configured = dict(zip(environments[::2], environments[1::2], strict=True))
    assert {*configured} == {*ENVIRONMENTS}
    assert "python -m pip install --no-deps mcore-bridge==" in configured["ms_swift"]
    assert "  rlinf\n" in configured["rlinf"]
    assert (
        "  pytest tests -m '(rlinf) and not soak'\n"
        f"  pytest --adapter=rlinf --engine=fsdp --source={LISTED['rlinf'].source} --expect=known\n"
    ) in configured["rlinf"]
