"""OpenRLHF's real code on the real DeepSpeed engine: leftovers of runs, and an older version."""

from __future__ import annotations

from pathlib import Path

import pytest

from adapters.frameworks import LISTED
from conformance.findings.verdict import Verdict
from reference.aggregation import Mode
from tests import command
from tests.adapters.steps import marks
from tests.leftovers import OF_OTHERS, forgotten_memory, names, processes_of
from tests.waiting import wait_for

pytestmark = marks("openrlhf")

RELEASE = LISTED["openrlhf"].source


@pytest.mark.processes
def test_nothing_is_left_and_two_runs_have_the_same_report(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path_factory.mktemp("t")
    monkeypatch.setenv("TMPDIR", str(temporary))
    memory = forgotten_memory(temporary)
    layouts = [f"--layout=dp2-cp1-mb1-bshd{stage}" for stage in ("", "+zero_3")]
    options = (f"--source={RELEASE}", "--checks=weights,metric", *layouts, "-k", "one_token")
    reports = []
    for _ in range(2):
        process = command.start(tmp_path, "--adapter=openrlhf", *options)
        result = command.finish(process, tmp_path, "openrlhf")
        reports.append((tmp_path / "reports" / "latest" / "openrlhf.json").read_bytes())
        wait_for(lambda: not processes_of(temporary))
        wait_for(lambda: not forgotten_memory(temporary) - memory)

        assert result.report.complete, result.output
        assert [name for name in names(temporary) if not name.startswith(OF_OTHERS)] == []

    assert reports[0] == reports[1]


@pytest.mark.processes
def test_older_version_has_one_mode_and_does_not_count_what_is_dropped(tmp_path: Path) -> None:
    """The run is in new processes, since this process may have loaded another version."""
    options = ("--source=pypi:0.10.4", "--checks=weights,rejection", "--layout=dp2-cp1-mb2-bshd")
    cases = ("-k", "odd_groups or rejected_tokens")
    process = command.start(tmp_path, "--adapter=openrlhf", *options, *cases)
    report = command.finish(process, tmp_path, "openrlhf").report

    found = {(one.identity.slug, one.mode, one.verdict) for one in report.findings}
    assert {mode for _, mode, verdict in found if verdict is Verdict.CONFORMS} == {Mode.TOKEN_MEAN}
    assert ("weights", Mode.TOKEN_MEAN, Verdict.CONFORMS) in found
    assert ("rejection.metric", Mode.TOKEN_MEAN, Verdict.UNSUPPORTED) in found
    of_gradient = {verdict for slug, _, verdict in found if slug == "rejection"}
    assert of_gradient == {Verdict.ADVICE, Verdict.UNSUPPORTED}, "an assumed mask"
