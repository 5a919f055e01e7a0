"""Adapters that declare too little are unsupported, and those that declare too much are wrong."""

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


def test_a_metric_that_is_read_nowhere_is_not_driven(tmp_path: Path) -> None:
    """The version logs the metric under another name, which is not a mistake of the framework."""
    findings = found(tmp_path, "renamingametric", ONE, "--checks=metric", "-k", "two_steps")
    missing = [finding for finding in findings if finding.verdict == "not_driven"]

    assert {finding.verdict for finding in findings} == {"not_driven", "conforms"}
    names = {finding.id.partition("/")[0] for finding in missing}
    assert names == {"metric", "metric.policy_loss_with_entropy"}, "the policy loss alone"
    assert {finding.message for finding in missing} == {
        "the adapter reads no policy_loss, of ordinary steps neither: this version logs it in"
        " another place or under another name, if at all"
    }


def test_a_metric_that_is_missing_on_some_layouts_is_wrong(tmp_path: Path) -> None:
    layouts = ("--layout=dp1-cp1-mb2-thd", "--layout=dp2-cp1-mb2-thd")
    cases = ("--checks=metric", "-k", "metric/ and two_steps")
    findings = found(tmp_path, "loggingononerank", *layouts, *cases)

    assert {(f.layout.dp, f.verdict) for f in findings} == {(1, "conforms"), (2, "mismatch")}
    assert names(findings) == {"not_logged"}


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
