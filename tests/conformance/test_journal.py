"""Nothing that was found is lost, and no reader ever meets half a report."""

import errno
import os
from pathlib import Path

import pytest

from conformance.comparing.journal import Journal
from conformance.comparing.report_file import load
from conformance.findings.errors import ReportFileError, ReportPathError
from conformance.findings.report import Selection
from conformance.findings.verdict import Verdict
from tests import room
from tests.findings import begun, finding


def selection(selected: int) -> Selection:
    return Selection(selected=selected, deselected=0)


def test_finished_journal_becomes_a_report_in_one_order(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "report.json"
    report = begun(path, "b", "a").finish(Selection(selected=2, deselected=1))

    assert load(path) == report
    assert [f.case for f in report.findings] == ["a", "b"]
    assert report.complete
    assert list(path.parent.iterdir()) == [path]


def test_run_stopped_early_leaves_an_incomplete_report(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    begun(path, "a").finish(selection(2))

    assert not load(path).complete


def test_run_that_found_nothing_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text("older")

    assert Journal(path).finish(selection(0)) is None
    assert path.read_text() == "older"


@pytest.mark.parametrize("torn", [0, 1, 40])
def test_journal_of_a_killed_run_is_kept_and_read_up_to_the_finding_in_flight(
    tmp_path: Path, torn: int
) -> None:
    path = tmp_path / "report.json"
    journal = begun(path, "a", "b")
    [file] = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[: -torn or None])
    del journal  # as if its process had ended, which frees the lock

    again = begun(path)
    again.finish(selection(1))

    assert again.kept == tmp_path / "report.json.killed-1.journal"
    report = load(again.kept)
    assert not report.complete
    assert [f.case for f in report.findings] == (["a"] if torn > 1 else ["a", "b"])
    assert sorted(tmp_path.iterdir()) == [path, again.kept]


def test_journals_of_several_killed_runs_are_all_kept(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    for case in ("a", "b"):
        begun(path, case)  # as if its process had then ended

    Journal(path).close()

    kept = [load(path.with_name(f"report.json.killed-{number}.journal")) for number in (1, 2)]
    assert [[f.case for f in report.findings] for report in kept] == [["a"], ["b"]]


def test_journal_of_a_run_killed_before_its_first_finding_is_an_empty_report(
    tmp_path: Path,
) -> None:
    begun(tmp_path / "report.json")

    report = load(tmp_path / "report.json.journal")
    assert not report.complete
    assert report.findings == []


def test_journal_torn_within_a_character_is_read_and_line_separators_in_words_end_no_line(
    tmp_path: Path,
) -> None:
    journal = begun(tmp_path / "report.json")
    for case in ("a", "b"):
        journal.add(finding(case, Verdict.CRASHED).model_copy(update={"message": "one\u2028two é"}))
    path = tmp_path / "report.json.journal"
    content = path.read_bytes()
    path.write_bytes(content[: content.rindex("é".encode()) + 1])

    [found] = load(path).findings
    assert found.message == "one\u2028two é"


@pytest.mark.parametrize("content", ["", '{"adapter": "toy"}\n'])
def test_journal_without_a_header_of_this_version_is_refused(tmp_path: Path, content: str) -> None:
    journal = tmp_path / "report.json.journal"
    journal.write_text(content)

    with pytest.raises(ReportFileError, match=r"report\.json\.journal is no journal of this ver"):
        load(journal)


def test_a_run_does_not_take_the_journal_of_another_that_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    first = begun(path, "a")

    with pytest.raises(ReportPathError, match=r"another run is about to write .*report\.json"):
        Journal(path)

    first.add(finding("b"))
    report = first.finish(selection(2))
    assert report is not None
    assert [f.case for f in load(path).findings] == ["a", "b"]
    assert Journal(path).finish(selection(0)) is None
    assert list(tmp_path.iterdir()) == [path]


def test_a_run_that_ends_before_it_began_leaves_nothing(tmp_path: Path) -> None:
    Journal(tmp_path / "report.json").close()

    assert list(tmp_path.iterdir()) == []


def test_what_finds_no_room_is_kept_as_far_as_there_was_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "report.json"
    journal = begun(path, "a")
    with monkeypatch.context() as full:
        full.setattr("os.fsync", no_room)
        with pytest.raises(ReportPathError, match=r"No space left on device; make room; report"):
            journal.finish(selection(1))
    journal.close()

    journal_path = tmp_path / "report.json.journal"
    assert [f.case for f in load(journal_path).findings] == ["a"]
    assert list(tmp_path.iterdir()) == [journal_path]


def test_a_journal_that_has_not_all_says_how_many_it_has(tmp_path: Path) -> None:
    journal = begun(tmp_path / "report.json", "a", "b")
    journal_path = tmp_path / "report.json.journal"
    with room.of(journal_path.stat().st_size + 20):
        journal.add(finding("c"))
        words = (
            r"report\.json: File too large; make room; report\.json\.journal has 2 of 3 findings"
        )
        with pytest.raises(ReportPathError, match=words):
            journal.finish(selection(3))

    assert [f.case for f in load(journal_path).findings] == ["a", "b"]
    assert journal.made is not None
    assert [f.case for f in journal.made.findings] == ["a", "b", "c"]


def no_room(_: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_report_below_a_file_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(ReportPathError, match=r"no report can be written to .* --report=FILE"):
        Journal(tmp_path / "file" / "report.json")


@pytest.mark.parametrize("length", [241, 250])
def test_name_that_leaves_no_room_for_its_neighbours_is_refused_at_once(
    tmp_path: Path, length: int
) -> None:
    path = tmp_path / ("x" * length + ".json")

    with pytest.raises(ReportPathError, match=r"File name too long; give another file"):
        Journal(path)
    assert list(tmp_path.iterdir()) == []
