"""Runs of slime's adapter on its toy."""

from pathlib import Path

from conformance.findings.finding import Finding
from tests import command

POLICY_LOSS = "[weights/ or [metric/"
"""The weights of the policy loss, and the logged policy loss."""


def find(
    folder: Path,
    source: Path,
    layouts: list[str],
    cases: str,
    *options: str,
    subjects: str = POLICY_LOSS,
) -> list[Finding]:
    """The findings of a run of the adapter on a checkout.

    Laws are left out, since runs of SkyRL test them. Nothing is traced, since tests of traces do
    that.
    """
    chosen = [f"--layout={layout}" for layout in layouts]
    selected = ("-k", f"({subjects}) and ({cases}) and not laws")
    result = command.run(
        folder, "slime", f"--source={source}", "--no-trace", *chosen, *selected, *options
    )
    assert result.report.complete, result.output
    found: list[Finding] = result.report.findings
    assert found, result.output
    return found


def verdicts(found: list[Finding]) -> set[str]:
    return {finding.verdict for finding in found}
