"""Causes of findings with clues."""

from collections.abc import Mapping, Sequence

from conformance.explain.causes import causes
from conformance.findings.cause import Cause
from tests.findings import Said

CHOSEN_BY = {
    "token_mean": ("--per-token",),
    "entropy": ("--entropy",),
    "allgather_cp": ("--allgather-cp",),
    "cp": ("--context-parallel-size",),
    "mb": ("--micro-batch-size",),
    "mb-bshd": ("--rows-per-micro-batch",),
}


def found(*said: Said, chosen_by: Mapping[str, Sequence[str]] = CHOSEN_BY) -> list[Cause]:
    findings = [finding.model_copy(update={"clues": n}) for n, (finding, _) in enumerate(said)]
    return causes(findings, [clues for _, clues in said], chosen_by)
