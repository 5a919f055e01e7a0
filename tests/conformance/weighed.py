"""Findings of weights, made from their special fields."""

from typing import Any

from adapters.contract import Layout
from conformance.findings.finding import Diagnosis, Finding, FindingId
from conformance.findings.verdict import Check, Verdict
from reference.aggregation import Mode
from tests.conformance.reports import TOLERANCE


def found(verdict: Verdict = Verdict.CONFORMS, **fields: Any) -> Finding:
    """A finding of weights, unless the fields of its id say otherwise."""
    named = {name: fields.pop(name) for name in FindingId._fields if name in fields}
    identity = FindingId(Check.WEIGHTS, None, Mode.TOKEN_MEAN, "a", Layout())._replace(**named)
    return Finding(id=str(identity), verdict=verdict, **{"tolerance": TOLERANCE} | fields)


def wrong(error: float | None = 0.5, name: str = "divided_by_cp", **fields: Any) -> Finding:
    diagnosis = Diagnosis(name=name, explanation="every weight is wrong")
    return found(Verdict.MISMATCH, error=error, diagnosis=diagnosis, **fields)
