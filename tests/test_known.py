"""What is known of the newest versions is what their committed reports say, no less and no more."""

from pathlib import Path

import pytest

from adapters.contract import Adapter
from conformance.comparing.expectations import load
from conformance.comparing.gate import Expecting
from conformance.comparing.known import KNOWN, known
from conformance.findings.report import Report
from conformance.runs import registry
from conformance.views.overview import pages

NEWEST = pages.newest(pages.versions(pages.REPORTS))

SHARE = 0.95
"""Of the causes of the newest reports that have to be known."""

IN_OLDER_REPORTS = {
    ("areal", "groups_of_a_fixed_size"),
    ("areal", "crashed"),
    ("areal", "selected_micro_batch"),
    ("tunix", "denominators_per_micro_batch_of_all_ranks"),
}
"""Known of versions whose reports are not the newest."""


def test_what_the_newest_reports_say_is_known() -> None:
    causes = [
        (one.file, cause, audited.of(cause))
        for one in NEWEST
        if (audited := known(one.report.adapter, one.report.engine)) is not None
        for cause in one.report.causes
    ]
    unknown = [
        f"{file}: {cause.name}: {cause.statement}" for file, cause, entry in causes if not entry
    ]

    assert len(causes) > 100
    assert 1 - len(unknown) / len(causes) >= SHARE, unknown


@pytest.mark.parametrize("report", [one.report for one in NEWEST], ids=[one.file for one in NEWEST])
def test_a_run_of_a_newest_version_is_as_expected(report: Report) -> None:
    audited = known(report.adapter, report.engine)
    if audited is None:
        assert not [one for one in report.causes if one.severity != "advice"]
        return
    gate = Expecting(audited)

    assert [one.id for one in gate.failing(report)] == []
    assert gate.objection(report) is None


def test_everything_known_is_in_a_report() -> None:
    found = {(one.report.adapter, cause.name) for one in NEWEST for cause in one.report.causes}
    entries = {
        (path.stem, entry.name)
        for path in KNOWN.glob("*.toml")
        for entry in (*load(path).mistakes, *load(path).failures)
    }

    assert entries - found <= IN_OLDER_REPORTS


@pytest.mark.parametrize("path", sorted(KNOWN.glob("*.toml")), ids=lambda path: path.stem)
def test_a_file_is_of_an_adapter_and_its_engines(path: Path) -> None:
    every, driven = load(path), registry.adapter_classes(path.stem)
    engines: dict[str, type[Adapter]] = driven

    assert every.framework == path.stem
    assert {*every.engines} <= engines.keys()
    entries = [*every.mistakes, *every.failures]
    assert {engine for one in entries for engine in one.engine or ()} <= {*every.engines}
