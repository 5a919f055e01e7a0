"""Judges whether a framework refuses malformed logs of micro-batches.

The rules hold under ``python -O`` too, where asserts are gone, so that every case is tried there
once more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from conformance.findings.finding import Diagnosis
from conformance.findings.verdict import Verdict
from conformance.judging.weights import Judgement

if TYPE_CHECKING:
    from conformance.corpus.log_cases import LogCase
    from conformance.ranks.log_process import LogOutcome


def judge_log(case: LogCase, outcome: LogOutcome, optimized: LogOutcome) -> Judgement:
    """Hold what a framework made of a case against the rule: logged if well formed, else refused.

    ``optimized`` is what it makes of it under ``python -O``.
    """
    if case.is_well_formed:
        if outcome.kind == "logged":
            return Judgement(verdict=Verdict.CONFORMS, error=None, tolerance=0.0)
        return _mismatch("refused_what_it_supports", f"{case.says} are refused")
    if outcome.kind == "raised" and optimized.kind == "logged":
        words = f"{case.says}: an assert alone refuses them; under python -O they are logged, as"
        return _mismatch("refused_by_an_assert", f"{words} {_numbers(optimized)}")
    if outcome.kind == "raised":
        return Judgement(verdict=Verdict.REFUSED, error=None, tolerance=0.0)
    return _mismatch("accepted", f"{case.says}: logged all the same, as {_numbers(outcome)}")


def _numbers(outcome: LogOutcome) -> str:
    return ", ".join(f"{key} = {value:.7g}" for key, value in outcome.log.items()) or "nothing"


def _mismatch(name: str, explanation: str) -> Judgement:
    diagnosis = Diagnosis(name=name, explanation=explanation)
    return Judgement(verdict=Verdict.MISMATCH, error=None, tolerance=0.0, diagnosis=diagnosis)
