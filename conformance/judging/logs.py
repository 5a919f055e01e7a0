"""Judges whether a framework refuses malformed logs of micro-batches.

The rules hold under ``python -O`` too, which removes asserts, so that every case also runs there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from conformance.findings.verdict import Verdict
from conformance.judging.weights import Judgement, mismatch

if TYPE_CHECKING:
    from conformance.corpus.log_cases import LogCase
    from conformance.ranks.log_process import LogOutcome


def judge_log(case: LogCase, outcome: LogOutcome, optimized: LogOutcome) -> Judgement:
    """Judge whether a framework logs a well-formed case and refuses any other.

    ``optimized`` is the outcome under ``python -O``.
    """
    if case.is_well_formed:
        if outcome.kind == "logged":
            return Judgement(verdict=Verdict.CONFORMS)
        return mismatch("refused_what_it_supports", f"{case.says} are refused")
    if outcome.kind == "raised" and optimized.kind == "logged":
        words = f"{case.says}: an assert alone refuses them; under python -O they are logged, as"
        return mismatch("refused_by_an_assert", f"{words} {_numbers(optimized)}")
    if outcome.kind == "raised":
        return Judgement(verdict=Verdict.REFUSED)
    return mismatch("accepted", f"{case.says}: logged all the same, as {_numbers(outcome)}")


def _numbers(outcome: LogOutcome) -> str:
    return ", ".join(f"{key} = {value:.7g}" for key, value in outcome.log.items()) or "nothing"
