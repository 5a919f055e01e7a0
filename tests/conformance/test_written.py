"""Only regular files are replaced or written to: every path that we write to is checked.

Each test puts something else in the place of a file, such as a folder. The run must refuse to write
there before anything starts, and leave the place unchanged.
"""

import os
import socket
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from conformance import cli
from conformance.comparing.journal import Journal
from conformance.comparing.report_file import load, require_regular
from conformance.findings.errors import ConformanceError, ReportPathError
from conformance.findings.report import Report
from conformance.findings.report import Selection as Selected
from conformance.runs.versions.history import CommitRuns, require_folder
from conformance.sources.source import Commit
from conformance.views.web.page import write
from tests import command
from tests.findings import HEADER, finding


def device(path: Path) -> None:
    try:
        os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 3))
    except PermissionError:
        path.symlink_to(os.devnull)


def listening(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(os.path.relpath(path))


def link_to_a_device(path: Path) -> None:
    path.symlink_to(os.devnull)


KINDS: dict[str, Callable[[Path], None]] = {
    "a device": device,
    "a pipe": os.mkfifo,
    "a socket": listening,
    "a folder": os.mkdir,
}

EACH = pytest.mark.parametrize(
    ("make", "kind"),
    [*((make, kind) for kind, make in KINDS.items()), (link_to_a_device, "a device")],
)


def unread() -> Iterator[Report]:
    raise AssertionError("a report was asked for")
    yield


def require_history(folder: Path) -> None:
    commit = Commit(ref="main", revision="0123456789abcdef", date="", subject="")
    require_folder(folder, CommitRuns(adapter="toy", repository=folder), [commit])


WRITERS: dict[str, tuple[Callable[[Path], object], str]] = {
    "report.json": (
        lambda folder: Journal(folder / "report.json"),
        r"no report can be written to .*: .* is {kind}, and only regular .* --report=FILE",
    ),
    "report.json.journal": (
        lambda folder: Journal(folder / "report.json"),
        r"report\.json\.journal is {kind}, and only regular",
    ),
    "page.html": (
        lambda folder: write(unread(), folder / "page.html"),
        r"page\.html is {kind}, and only regular .* with -o FILE",
    ),
    "toy-0123456789.json": (require_history, "is {kind}, and only regular .* --reports=FOLDER"),
}
"""A function that writes each file, and the words of its refusal, by the name of the file."""


@EACH
@pytest.mark.parametrize("name", WRITERS)
def test_what_is_no_file_is_not_written_to(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    make: Callable[[Path], None],
    kind: str,
) -> None:
    monkeypatch.chdir(tmp_path)  # the path of a socket may have at most 107 characters
    path = tmp_path / name
    make(path)
    writer, words = WRITERS[name]
    if make is link_to_a_device and name.endswith("journal"):
        kind = "a symbolic link"

    with pytest.raises(ConformanceError, match=words.format(kind=kind)):
        writer(tmp_path)
    assert [*tmp_path.iterdir()] == [path]
    assert not path.is_file()


def test_a_link_in_the_place_of_a_journal_is_not_followed(tmp_path: Path) -> None:
    """In a folder that others can write to, a link could make a run empty any file of its user."""
    victim = tmp_path / "victim"
    victim.write_text("kept")
    (tmp_path / "report.json.journal").symlink_to(victim)

    with pytest.raises(ReportPathError, match="is a symbolic link, and only regular files"):
        Journal(tmp_path / "report.json")
    assert victim.read_text() == "kept"


@pytest.mark.parametrize("exists", [True, False])
def test_a_link_to_a_file_stays_and_the_report_is_where_it_leads(
    tmp_path: Path, exists: bool
) -> None:
    target, link = tmp_path / "kept" / "report.json", tmp_path / "latest.json"
    target.parent.mkdir()
    link.symlink_to(target)
    if exists:
        target.write_text("older")
    journal = Journal(link)
    with pytest.raises(ReportPathError, match="another run is about to write"):
        Journal(target)
    journal.begin(HEADER)
    journal.add(finding("a"))
    report = journal.finish(Selected(selected=1, deselected=0))

    assert link.readlink() == target
    assert not target.is_symlink()
    assert load(target) == report
    assert [*target.parent.iterdir()] == [target]


def test_links_in_a_circle_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")

    with pytest.raises(ReportPathError, match="Too many levels of symbolic links; give another"):
        Journal(tmp_path / "a")


def test_the_command_reads_no_report_either(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = cli.main(["html", str(tmp_path / "none.json"), "-o", os.devnull])

    assert status == cli.USAGE_ERROR
    assert f"{os.devnull} is a device, and only regular files" in capsys.readouterr().err


def test_a_regular_file_or_nothing_is_what_a_file_is_written_to(tmp_path: Path) -> None:
    (tmp_path / "there").touch()
    (tmp_path / "link").symlink_to(tmp_path / "there")

    for name in ("there", "link", "not there"):
        require_regular(tmp_path / name)
    with pytest.raises(OSError, match="only regular files are written"):
        require_regular(tmp_path)


@pytest.mark.parametrize(
    ("named", "words"),
    [
        ({"GITHUB_STEP_SUMMARY": os.devnull}, "unset GITHUB_STEP_SUMMARY, or name another file"),
        ({}, "give another file with --report=FILE"),
    ],
)
def test_a_run_is_refused_before_any_rank_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: dict[str, str], words: str
) -> None:
    for name, value in named.items():
        monkeypatch.setenv(name, value)
    link = tmp_path / "link.json"  # if a run does not refuse it, only the link is lost
    link.symlink_to(os.devnull)
    report = "x.json" if named else link
    result = command.run(tmp_path, "native", f"--report={report}", "-k", "uneven_lengths")

    assert result.status == pytest.ExitCode.USAGE_ERROR
    assert f"is a device, and only regular files are written; {words}" in result.output
    assert "collected" not in result.output
    assert link.is_symlink()
