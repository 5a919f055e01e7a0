"""The published schema is the models' own, and describes real reports."""

import gzip
import json
import re
from dataclasses import dataclass
from pathlib import Path

import jsonschema
import pytest

import conformance
from adapters.contract import Layout
from conformance.comparing.report_file import assembled, load
from conformance.findings.badness import explain
from conformance.findings.report import FIELD_ORDER, Report, Selection, Summary, json_schema
from conformance.findings.report import SCHEMA as SCHEMA_NAME
from conformance.findings.verdict import Check, Verdict
from conformance.runs import registry
from conformance.views.report_formats import as_text
from reference.aggregation import Mode
from reference.rounding import weight_bound
from tests.findings import HEADER, finding, mismatch

SCHEMA = Path(conformance.__file__).parent / "findings" / "report.schema.json"

REPORTS = Path(conformance.__file__).parents[1] / "reports"

COMMITTED = sorted(set(REPORTS.glob("*/*.json.gz")) - set(REPORTS.glob("latest/*")))


@dataclass(frozen=True, kw_only=True)
class Committed:
    """A committed report, and the text of its file."""

    path: Path
    text: str
    report: Report

    @property
    def version(self) -> str:
        return self.path.name.removesuffix(".json.gz")


@pytest.fixture(
    scope="module",
    params=COMMITTED,
    ids=lambda path: f"{path.parent.name}/{path.name.removesuffix('.json.gz')}",
)
def committed(request: pytest.FixtureRequest) -> Committed:
    path = request.param
    text = gzip.decompress(path.read_bytes()).decode()
    return Committed(path=path, text=text, report=load(path))


def test_there_are_committed_reports_and_none_is_left_uncompressed() -> None:
    assert len(COMMITTED) >= 20
    assert set(REPORTS.glob("*/*.json")) <= set(REPORTS.glob("latest/*"))


def test_published_schema_is_up_to_date() -> None:
    """`python -m conformance.findings.report` writes the schema again."""
    assert SCHEMA.read_text() == json_schema(Report, SCHEMA_NAME)
    assert json.loads(SCHEMA.read_text())["$id"] == "urn:rl-loss-conformance:report:6"
    jsonschema.Draft202012Validator.check_schema(json.loads(SCHEMA.read_text()))


def test_report_satisfies_the_published_schema() -> None:
    report = Report.assemble(HEADER, [finding("a")], Selection(selected=1, deselected=0))

    jsonschema.validate(json.loads(report.to_json()), json.loads(SCHEMA.read_text()))


def test_committed_reports_are_complete_and_as_the_harness_writes_them(
    committed: Committed,
) -> None:
    report = committed.report

    assert report.complete
    assert report.to_json() == committed.text
    assert report.summary == Summary.of(report.findings)
    assert report.adapter == committed.path.parent.name
    default = next(iter(registry.adapter_classes(report.adapter)))
    assert report.engine == default or committed.version.endswith(f"-{report.engine}")
    assert report.source.revision or report.source.version
    assert str(Path.home()) not in committed.text


def test_committed_reports_satisfy_the_published_schema(committed: Committed) -> None:
    """One finding of each check and verdict, with its clues, is validated: all take minutes."""
    document = json.loads(committed.text)
    kinds = {(found.check, found.verdict): found.id for found in committed.report.findings}
    chosen = [found for found in document["findings"] if found["id"] in kinds.values()]
    clues = [document["clues"][found["clues"]] for found in chosen if "clues" in found]
    shortened = document | {"findings": chosen, "clues": clues}

    jsonschema.validate(shortened, json.loads(SCHEMA.read_text()))


def test_verdicts_of_committed_reports_follow_from_their_figures(committed: Committed) -> None:
    tolerance = weight_bound("float32")
    for found in committed.report.findings:
        assert found.id == str(found.identity)
        assert Layout.parse(str(found.layout)) == found.layout
        if found.verdict is Verdict.CONFORMS and found.check is not Check.LOGGING:
            if found.error is None and found.case == "no_active_token":
                continue  # no number is logged
            assert found.error is not None
            assert found.tolerance is not None
            assert found.error <= found.tolerance
            assert found.check is not Check.WEIGHTS or found.tolerance == tolerance
        elif found.verdict is Verdict.MISMATCH:
            assert found.diagnosis is not None
            assert found.error is None or found.error > (found.tolerance or 0)
            assert explain(found)
        elif found.verdict is Verdict.ADVICE:
            assert explain(found)
        elif found.verdict is not Verdict.CONFORMS:
            assert found.message


def test_committed_reports_are_summed_up(committed: Committed) -> None:
    text = "\n".join(as_text(committed.report))

    for verdict, count in committed.report.summary.verdicts.items():
        assert f"{count} {verdict}" in text


def test_every_finding_is_one_line_of_the_file() -> None:
    report = Report.assemble(
        HEADER, [finding("a"), finding("b")], Selection(selected=2, deselected=0)
    )

    assert {*FIELD_ORDER} - {"fault", "adapter_class", "new_options"} == set(
        json.loads(report.to_json())
    )
    assert sum(line.startswith('  {"id": ') for line in report.to_json().splitlines()) == 2


def test_summary_counts_by_verdict_and_mode() -> None:
    findings = [finding("a"), finding("b"), finding("c", Verdict.CRASHED)]
    summary = Summary.of(findings)

    assert summary.verdicts == {Verdict.CONFORMS: 2, Verdict.CRASHED: 1}
    assert summary.modes == {Mode.TOKEN_MEAN: {Verdict.CONFORMS: 2, Verdict.CRASHED: 1}}


def test_terminal_summary_shows_verdicts_by_mode_and_layout_and_every_cause_once() -> None:
    findings = [finding("a"), mismatch("b", "not_divided")]
    report = assembled(HEADER, findings, [], Selection(selected=3, deselected=0))
    text = "\n".join(as_text(report))

    assert re.search(r"weights +1 ok", text)
    assert "MISMATCH 1 × token losses are summed but never normalised [not_divided]" in text
    assert "for example weights/token_mean/b/dp1-cp1-mb1-bshd" in text
    assert "1 conforms, 1 mismatch" in text
    assert "stopped before the end" in text
