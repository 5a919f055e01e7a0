"""The expectations of a release are the mistakes in its committed report, no fewer and no more."""

from pathlib import Path

import pytest

from conformance.comparing import expectations, report_file
from conformance.comparing.gate import Expecting, Outcome

REPORTS = Path(__file__).parents[1] / "reports"


@pytest.mark.parametrize(
    ("known", "of"),
    [
        ("skyrl-fsdp", "skyrl/v0.3.0"),
        ("verl-fsdp", "verl/v0.9.1"),
        ("trl-ddp", "trl/v1.16.0"),
        ("ms_swift", "ms_swift/v4.6.0"),
        ("ms_swift-megatron", "ms_swift/v4.6.0-megatron"),
        ("openrlhf", "openrlhf/v0.11.2"),
        ("areal", "areal/v1.0.4"),
        ("areal", "areal/v1.0.4-megatron"),
        ("roll", "roll/main-8eb27cc"),
        ("roll-megatron", "roll/main-8eb27cc-megatron"),
        ("nemo_rl", "nemo_rl/main-7ea279a"),
        ("nemo_rl", "nemo_rl/main-7ea279a-dtensor_v1"),
    ],
)
def test_known_faults_are_those_of_the_committed_report(known: str, of: str) -> None:
    report = report_file.load(REPORTS / f"{of}.json.gz")
    gate = Expecting(expectations.load(REPORTS / "expected" / f"{known}.toml"))
    failing = [
        finding.id
        for finding in report.findings
        if gate.decision(finding, report.clues_of(finding)).outcome is Outcome.FAILS
    ]

    assert gate.objection(report) is None
    assert not failing
