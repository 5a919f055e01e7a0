"""Every command that the README shows is run, here or by CI."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from conformance import cli, plugin
from conformance.comparing.expectations import load as load_expectations
from conformance.comparing.gate import Expecting, Outcome
from conformance.comparing.report_file import load
from conformance.findings.verdict import Check
from conformance.views import overview
from tests import command

README = (command.ROOT / "README.md").read_text()

BLOCKS = re.findall(r"^```sh\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)

COMMANDS = [line for block in BLOCKS[1:] for line in block.splitlines()]

NATIVE = [line for line in COMMANDS if line.startswith("pytest --adapter=native")]

COMMAND_LINE = [line for line in COMMANDS if line.startswith("rl-loss-conformance")]

HISTORY = [line for line in COMMAND_LINE if " history " in line]

ON_REPORTS = [
    line for line in COMMAND_LINE if re.match("rl-loss-conformance (show|diff|html|expect) ", line)
]

RELEASES = [line for line in COMMANDS if "skyrl-0.2.0.json" in line]

[CASE_FILE] = re.findall(r"^```json\n(\{\n.*?)^```$", README, re.DOTALL | re.MULTILINE)

TORCHRUN = [line for line in COMMANDS if line.startswith("torchrun")]

WITH_SOURCE = [line for line in COMMANDS if line.startswith("pytest") and "--source=PATH" in line]


def test_first_block_is_two_commands_that_ci_takes_from_here() -> None:
    install_and_run, tests = BLOCKS[0].splitlines()

    assert install_and_run.startswith("pip install -c constraints.txt -e ")
    assert install_and_run.endswith(" && pytest --adapter=skyrl --checks=weights")
    assert tests == "pytest -n auto --dist=loadfile"
    assert "README.md" in (command.ROOT / ".ci" / "run").read_text()


def test_every_other_command_is_run_somewhere() -> None:
    ci = (command.ROOT / ".ci" / "run").read_text()

    elsewhere = {*NATIVE, *TORCHRUN, *WITH_SOURCE, *RELEASES, *COMMAND_LINE}
    assert [line for line in COMMANDS if line not in elsewhere] == [
        line for line in COMMANDS if f"\n{line}\n" in ci
    ]
    assert [line for line in COMMAND_LINE if line not in {*HISTORY, *ON_REPORTS}] == [
        "rl-loss-conformance adapters",
        "rl-loss-conformance cases",
        "rl-loss-conformance cases worked_example",
    ], "which test_cli runs"


@pytest.mark.parametrize("line", NATIVE)
def test_commands_on_native(tmp_path: Path, line: str) -> None:
    result = command.finish(command.start(tmp_path, *shlex.split(line)[1:]), tmp_path, "native")

    assert result.status == 0, result.output


@pytest.mark.parametrize("line", TORCHRUN)
def test_commands_of_torchrun(tmp_path: Path, line: str) -> None:
    options, arguments = (shlex.split(part) for part in line.split(" -m pytest "))
    process = command.start(tmp_path, *arguments, torchrun=options[1:])
    result = command.finish(process, tmp_path, "native")

    assert result.status == 0, result.output


@pytest.mark.parametrize("line", ON_REPORTS)
def test_commands_on_committed_reports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "reports").symlink_to(command.ROOT / "reports")

    assert cli.main(shlex.split(line)[1:]) in ((0, cli.WORSE) if " diff " in line else (0,))


@pytest.mark.skyrl
def test_two_releases_are_compared_in_two_commands_as_shown(tmp_path: Path) -> None:
    first, second = RELEASES
    older = command.finish(command.start(tmp_path, *shlex.split(first)[1:]), tmp_path, "skyrl")
    newer = command.finish(command.start(tmp_path, *shlex.split(second)[1:]), tmp_path, "skyrl")
    [shown] = re.findall(r"^```text\n(OLD  .*?)^```$", README, re.DOTALL | re.MULTILINE)

    assert (tmp_path / "skyrl-0.2.0.json").exists(), older.output
    assert shown in newer.output


@pytest.mark.skyrl
@pytest.mark.skipif(
    command.SOURCES not in os.environ, reason=f"{command.SOURCES} names no folder of checkouts"
)
@pytest.mark.parametrize("line", WITH_SOURCE)
def test_commands_with_a_source(tmp_path: Path, line: str) -> None:
    adapter = re.search("--adapter=([a-z]+)", line)[1]  # type: ignore[index]
    repository = Path(os.environ[command.SOURCES]) / {"skyrl": "SkyRL"}.get(adapter, adapter)
    if "@" not in line:
        repository = checkout(repository, tmp_path / "checkout")
    arguments = shlex.split(line.replace("PATH", str(repository)))[1:]
    (tmp_path / "step.json").write_text(CASE_FILE)
    process = command.start(tmp_path, *arguments, "--layout=dp1-cp1-mb1-thd")

    assert command.finish(process, tmp_path, adapter).report["complete"]


@pytest.mark.skipif(
    command.SOURCES not in os.environ, reason=f"{command.SOURCES} names no folder of checkouts"
)
@pytest.mark.parametrize("line", HISTORY)
def test_histories_print_what_is_shown(capsys: pytest.CaptureFixture[str], line: str) -> None:
    arguments = shlex.split(line.replace("PATH", f"{os.environ[command.SOURCES]}/slime"))[1:]

    assert cli.main(arguments) == 0
    [shown] = re.findall(r"^```text\n(weights  .*?)^```$", README, re.DOTALL | re.MULTILINE)
    assert shown in capsys.readouterr().out


def checkout(repository: Path, folder: Path) -> Path:
    """A work tree of the newest commit, with SkyRL's packages in it."""
    clone = ["git", "clone", "--quiet", "--shared", "--no-checkout", str(repository), str(folder)]
    files = ["git", "-C", str(folder), "checkout", "--quiet", "HEAD", "--", "skyrl", "skyrl-gym"]
    for arguments in (clone, files):
        subprocess.run(arguments, check=True)
    return folder


def test_table_and_findings_are_those_of_the_committed_reports() -> None:
    """`python -m conformance.views.overview` writes them anew."""
    found = overview.versions(command.ROOT / "reports")

    assert overview.pages(found, README) == overview.Pages(
        readme=README,
        findings=(command.ROOT / "reports" / "findings.md").read_text(),
        index=(command.ROOT / "reports" / "README.md").read_text(),
    )


def test_known_fault_shown_is_one_of_a_committed_report(tmp_path: Path) -> None:
    [shown] = re.findall(r"^```toml\n(\[\[expect.*?)^```$", README, re.DOTALL | re.MULTILINE)
    (tmp_path / "known.toml").write_text(shown)
    gate = Expecting(load_expectations(tmp_path / "known.toml"))
    report = load(command.ROOT / "reports" / "skyrl" / "v0.3.0.json")
    rulings = [gate.decision(f) for f in report.findings if gate.expectations.of(f.id)]

    assert {decision.outcome for decision in rulings} == {Outcome.KNOWN}


def test_checks_are_documented() -> None:
    assert all(f"\n| `{check}` | " in README for check in Check)


def test_finding_shown_is_of_a_committed_report() -> None:
    [shown] = re.findall(r"^```json\n(.*)\n```$", README, re.MULTILINE)
    finding = json.loads(shown)
    committed = [path.read_text() for path in (command.ROOT / "reports" / "miles").glob("*.json")]

    assert any(shown in report for report in committed)
    assert f"\nMISMATCH {finding['id']}: off by a factor of" in README


def test_every_option_is_documented() -> None:
    declared = re.findall(r'"(--[a-z-]+)"', Path(plugin.__file__).read_text())

    assert declared
    assert [option for option in declared if f"`{option}=" not in README] == []
