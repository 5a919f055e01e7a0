"""Adapters that declare too little are unsupported, and those that declare too much are wrong."""

from __future__ import annotations

from pathlib import Path

from conformance.findings.finding import Finding
from tests import command

ONE = "--layout=dp1-cp1-mb2-thd"


def found(folder: Path, adapter: str, *arguments: str) -> list[Finding]:
    result = command.run(folder, adapter, *arguments)
    assert result.report.complete, result.output
    findings: list[Finding] = result.report.findings
    return findings


def names(findings: list[Finding]) -> set[str]:
    return {finding.diagnosis.name for finding in findings if finding.diagnosis}


def test_settings_that_are_declared_and_ignored_are_the_adapter_s_fault(tmp_path: Path) -> None:
    findings = found(tmp_path, "ignoringconfigurations", ONE, "--checks=arguments,sharding")
    wrong = [finding for finding in findings if finding.verdict == "mismatch"]

    assert len(wrong) > 20
    assert names(wrong) == {"configuration_ignored"}
    words = "the adapter is at fault: it declares that a configuration may set batch_size, divisor,"
    assert all(words in finding.diagnosis.explanation for finding in wrong)
    assert {f.verdict for f in findings} == {"mismatch", "conforms", "unsupported"}, "no advice"


def test_settings_that_are_not_declared_are_unsupported(tmp_path: Path) -> None:
    findings = found(tmp_path, "declaringnoconfiguration", ONE, "--checks=arguments")

    assert {finding.verdict for finding in findings} == {"unsupported"}
    assert {finding.message for finding in findings} >= {"no option divisor", "no option per_token"}


def test_a_metric_that_no_rank_logs_any_more_turns_the_run_red(tmp_path: Path) -> None:
    result = command.run(tmp_path, "renamingametric", ONE, "--checks=metric", "-k", "two_steps")
    wrong = [finding for finding in result.report.findings if finding.verdict == "mismatch"]

    assert result.status == 1
    assert names(wrong) == {"not_logged"}
    assert all(finding.id.startswith("metric/") for finding in wrong), "the policy loss alone"
    assert "no rank logs policy_loss of step 0" in result.output


def test_a_metric_that_is_logged_of_some_steps_only_is_wrong(tmp_path: Path) -> None:
    cases = ("--checks=metric", "-k", "metric/ and (two_steps or one_token)")
    findings = found(tmp_path, "loggingthefirststep", ONE, *cases)

    assert {(f.case, f.verdict) for f in findings} == {
        ("one_token", "conforms"),
        ("two_steps", "mismatch"),
    }
    assert names(findings) == {"not_logged"}


def test_forward_passes_that_are_declared_and_not_recorded_are_wrong(tmp_path: Path) -> None:
    findings = found(tmp_path, "recordingnothing", ONE, "--checks=sharding", "-k", "two_steps")

    assert {finding.verdict for finding in findings} == {"mismatch"}
    assert names(findings) == {"forward_passes_not_recorded"}
