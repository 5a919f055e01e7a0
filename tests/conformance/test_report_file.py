"""A report is read as it was written, or refused with the place that is wrong."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from conformance.comparing.report_file import load, write
from conformance.findings.errors import ReportFileError
from conformance.findings.finding import Diagnosis, Finding
from conformance.findings.report import SCHEMA, Report, Selection
from reference.aggregation import AuxiliaryAggregation
from tests.conformance.test_journal import HEADER, finding

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

REPORT = Report.assemble(HEADER, [finding("a"), finding("b")], Selection(selected=2, deselected=0))

IDS = [found.id for found in REPORT.findings]


def test_report_is_read_as_it_was_written_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    write(REPORT, path)

    assert load(path) == REPORT
    assert list(tmp_path.iterdir()) == [path]


def test_a_report_that_cannot_be_written_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "report.json"
    path.write_text("older")
    monkeypatch.setattr("os.fsync", lambda _: 1 / 0)

    with pytest.raises(ZeroDivisionError):
        write(REPORT, path)

    assert path.read_text() == "older"
    assert list(tmp_path.iterdir()) == [path]


def replaced(old: str, new: str) -> Callable[[str], str]:
    def replace(text: str) -> str:
        assert old in text
        return text.replace(old, new, 1)

    return replace


def without_a_line(text: str) -> str:
    return re.sub(r'  \{"id": [^\n]*,\n', "", text, count=1)


def swapped(text: str) -> str:
    document = json.loads(text)
    return json.dumps(document | {"findings": document["findings"][::-1]})


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (
            lambda text: text[: len(text) // 2],
            r"line \d+, is no JSON \(.*\): the file is cut short",
        ),
        (lambda text: "", r"line 1, is no JSON"),
        (
            replaced('"verdict": "conforms"', '"verdict": "fine"'),
            r"line 18, findings\.0\.verdict",
        ),
        (
            replaced('"error": 2.5e-07', '"error": 1.5'),
            r"line 18, findings\.0: an error of 1.5",
        ),
        (
            replaced("/b/dp1-cp1-", "/b/dp1-cp1-tp1-"),
            r"line 19, findings\.1: the id is '.*-tp1-mb1-bshd', which is written '.*/dp1-cp1-mb1",
        ),
        (replaced("/b/dp1", "/dp1"), r"line 19, findings\.1: '.*' is not of the form weights/"),
        (replaced('"engine": "torch"', '"motor": "torch"'), r"engine: Field required"),
        (replaced('"dirty": false', '"dirty": "perhaps"'), r"line 6, source.dirty: "),
        (replaced('"conforms": 2', '"conforms": 3'), r"the summary does not count what"),
        (without_a_line, r"the summary does not count what the findings say"),
        (replaced('"selected": 2', '"selected": 3'), r"complete is True with 2 of 3 findings"),
        (swapped, rf"finding '{IDS[0]}' stands behind '{IDS[1]}'"),
    ],
)
def test_a_file_cut_short_or_edited_is_refused_with_the_place_that_is_wrong(
    tmp_path: Path, spoil: Callable[[str], str], complaint: str
) -> None:
    path = tmp_path / "report.json"
    path.write_text(spoil(REPORT.to_json()))

    with pytest.raises(ReportFileError, match=complaint) as refused:
        load(path)

    assert str(path) in str(refused.value)
    assert "restore it, or run again what made it" in str(refused.value)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"[1, 2]", r"is no report of rl-loss-conformance: its field schema is None, not "),
        (b'{"hello": "world"}', r"is no report of rl-loss-conformance: its field schema is None"),
        (b'{"schema": "sarif"}', r"its field schema is 'sarif'"),
        (b"\x89PNG\xff", r"it is no text"),
        (b'{"schema": "rl-loss-conformance/report/99"}', r"install a newer rl-loss-conformance"),
    ],
)
def test_a_file_of_another_program_or_of_the_future_is_refused(
    tmp_path: Path, content: bytes, complaint: str
) -> None:
    path = tmp_path / "report.json"
    path.write_bytes(content)

    with pytest.raises(ReportFileError, match=complaint):
        load(path)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ReportFileError, match=r"none\.json cannot be read: No such file"):
        load(tmp_path / "none.json")


def test_a_report_of_the_first_schema_is_read(tmp_path: Path) -> None:
    """It had no pictures and did not say how cases were generated."""
    document = json.loads(REPORT.to_json())
    del document["request"]
    path = tmp_path / "report.json"
    path.write_text(json.dumps(document | {"schema": "rl-loss-conformance/report/1"}))

    assert load(path) == REPORT
    assert load(path).schema_ == SCHEMA


def test_a_step_declined_was_a_mismatch_in_schema_4(tmp_path: Path) -> None:
    """Unlike a configuration, of which it still is one."""
    refused = Diagnosis(name="refused_what_it_supports", explanation="and it is refused")
    findings = [
        Finding(id=f"{check}/token_mean/a/dp1-cp1-mb1-bshd", verdict="mismatch", diagnosis=refused)
        for check in ("arguments.legacy_flag", "weights")
    ]
    selection = Selection(selected=2, deselected=0)
    document = json.loads(Report.assemble(HEADER, findings, selection).to_json())
    path = tmp_path / "older.json"
    path.write_text(json.dumps(document | {"schema": "rl-loss-conformance/report/4"}))
    read = load(path)

    assert [finding.verdict for finding in read.findings] == ["mismatch", "declined"]
    assert read.summary.verdicts == {"mismatch": 1, "declined": 1}


def test_reports_of_schema_2_are_read_with_the_conventions_they_stood_for(tmp_path: Path) -> None:
    document = json.loads(REPORT.to_json())
    document["schema"] = "rl-loss-conformance/report/2"
    document["conventions"]["diagnostics"] = "micro_batch_mean"
    del document["departures"]
    path = tmp_path / "report.json"
    path.write_text(json.dumps(document))
    read = load(path)

    assert read.conventions.diagnostics is AuxiliaryAggregation.MICRO_BATCH_TOKEN_MEAN
    assert read.departures == []
    assert read.findings == REPORT.findings
