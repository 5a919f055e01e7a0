"""A report is read as it was written, or refused with the place that is wrong."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from conformance.comparing.report_file import load, write
from conformance.findings.errors import ReportFileError
from conformance.findings.report import Report, Selection
from tests.findings import HEADER, finding

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
        (lambda text: text[: len(text) // 2], r" at line \d+ column \d+\): it is cut short"),
        (lambda text: "", r"Invalid JSON: .* at line 1"),
        (replaced('"verdict": "conforms"', '"verdict": "fine"'), r"line 20, findings\.0\.verdict"),
        (replaced('"error": 2.5e-07', '"error": 1.5'), r"line 20, findings\.0: an error of 1.5"),
        (
            replaced("/b/dp1-cp1-", "/b/dp1-cp1-tp1-"),
            r"line 21, findings\.1: the id is '.*-tp1-mb1-bshd', which is written '.*/dp1-cp1-mb1",
        ),
        (replaced("/b/dp1", "/dp1"), r"line 21, findings\.1: '.*' is not of the form weights/"),
        (replaced('"engine": "torch"', '"motor": "torch"'), r"engine: Field required"),
        (replaced('"dirty": false', '"dirty": "perhaps"'), r"line 6, source.dirty: "),
        (replaced('"conforms": 2', '"conforms": 3'), r"the summary's counts are not those"),
        (without_a_line, r"the summary's counts are not those of the findings"),
        (replaced('"selected": 2', '"selected": 3'), r"complete is True with 2 of 3 findings"),
        (swapped, rf"finding '{IDS[0]}' comes after '{IDS[1]}'"),
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
        (b"[1, 2]", r"its field schema is None, not 'rl-loss-conformance/report/6'"),
        (b'{"hello": "world"}', r"its field schema is None"),
        (b'{"schema": "sarif"}', r"its field schema is 'sarif'"),
        (b"\x89PNG\xff", r"is no report \(Invalid JSON: "),
        (b'{"schema": "rl-loss-conformance/report/5"}', r"is 'rl-loss-conformance/report/5', not"),
        (None, r"report\.json cannot be read: No such file"),
    ],
)
def test_a_file_of_another_program_or_schema_and_one_that_is_not_there_are_refused(
    tmp_path: Path, content: bytes | None, complaint: str
) -> None:
    path = tmp_path / "report.json"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(ReportFileError, match=complaint):
        load(path)
