"""A report that cannot be written is refused before any rank starts, or its findings are kept."""

import shutil
import subprocess
import time
from pathlib import Path

import pytest

from conformance.comparing.report_file import load
from conformance.findings.report import Report
from tests import command

pytestmark = pytest.mark.soak

CHOSEN = (
    "--adapter=native",
    "--layout=dp1-cp1-mb1-bshd",
    "--checks=weights",
    "--modes=sample_mean,token_mean",
)
FINDINGS = 46
"""The number of findings of CHOSEN; the journal takes nine pages of a tmpfs, the report two."""

OF_ONES_OWN = ("unshare", "--mount", "--map-root-user", "sh", "-c")
"""Runs a shell command with private mounts, which can be full or read-only even for root."""


def can_mount() -> bool:
    tries = [*OF_ONES_OWN, "mount -t tmpfs none /mnt"]
    return (
        shutil.which("unshare") is not None and subprocess.run(tries, check=False).returncode == 0
    )


mounts = pytest.mark.skipif(not can_mount(), reason="nothing can be mounted here (unshare --mount)")


@mounts
@pytest.mark.parametrize(
    ("spoil", "rule"),
    [
        ("mount --bind reports reports; mount -o remount,bind,ro reports", "Read-only file system"),
        (
            "mount -t tmpfs -o size=16k none reports; mkdir reports/latest;"
            " cat /dev/zero > reports/full 2> errors",
            "No space left on device",
        ),
    ],
    ids=["read-only", "full"],
)
def test_a_disk_that_takes_nothing_is_refused_before_any_rank_starts(
    tmp_path: Path, spoil: str, rule: str
) -> None:
    result = run_after(spoil, tmp_path)

    assert result.status == pytest.ExitCode.USAGE_ERROR
    assert f"no report can be written to {result.report_path}: {rule}; give ano" in result.output
    assert "--report=FILE" in result.output
    assert "collected" not in result.output


@mounts
@pytest.mark.parametrize(("size", "kept"), [("16k", range(12, FINDINGS)), ("36k", [FINDINGS])])
def test_a_disk_that_fills_up_keeps_what_found_room(
    tmp_path: Path, size: str, kept: range | list[int]
) -> None:
    """The disk fills up while findings are written, or when the report is written after them."""
    result = run_after(f"mount -t tmpfs -o size={size} none reports/latest", tmp_path)

    assert result.status == pytest.ExitCode.INTERNAL_ERROR
    assert "No space left on device; make room; native.json.journal has " in result.output
    assert "22 conforms" in result.output or "46 conforms" in result.output
    assert not (tmp_path / "kept" / "native.json").exists()
    assert len(recovered(tmp_path, "kept/native.json").findings) in kept


def test_files_that_may_grow_no_larger_are_said(tmp_path: Path) -> None:
    process = command.start(tmp_path, *CHOSEN, prefix=["prlimit", "--fsize=5000"])
    result = command.finish(process, tmp_path, "native")

    assert result.status == pytest.ExitCode.INTERNAL_ERROR
    assert "ERROR: the report cannot be written to" in result.output
    assert "File too large; make room" in result.output
    assert not result.report_path.exists()
    assert len(recovered(tmp_path, "reports/latest/native.json").findings) > 2


def run_after(spoil: str, folder: Path) -> command.Result:
    """Run after a command that spoils the folder for reports, whose content is then copied."""
    (folder / "reports" / "latest").mkdir(parents=True)
    script = f'{spoil}; "$@"; status=$?; cp -r reports/latest kept; exit $status'
    start = time.monotonic()
    process = command.start(folder, *CHOSEN, prefix=[*OF_ONES_OWN, script, "sh"])
    result = command.finish(process, folder, "native")
    print(f"{spoil}: status {result.status}, {time.monotonic() - start:.1f} s")
    return result


def recovered(folder: Path, report: str) -> Report:
    """The report that a reader recovers from a journal."""
    found = load(folder / f"{report}.journal")
    assert not found.complete
    return found
