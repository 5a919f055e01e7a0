"""What micro-batches hand on to be logged, well and badly formed, and whether a framework tells.

The rules are those of miles' pull request 1498: other keys, or another order of them, would put a
wrong number under a metric's name. They occur where a user's own function adds metrics to a log,
and not in each micro-batch the same; keys and values of one entry come from one dictionary, and its
form from one option, so that nothing else can be malformed. The rules hold under ``python -O`` too,
where asserts are gone, so that every row is tried there once more.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Literal

from adapters.contract import LogEntry
from conformance.judge import Judgement
from conformance.processes import last_words
from conformance.report import Diagnosis, Verdict
from reference.aggregation import Mode

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from adapters.contract import Adapter

CHILD = "conformance.log_child"

WHO = "the process that makes logs"

LIMIT = 300.0
"""Seconds for a framework to be imported and to make a few logs."""


@dataclass(frozen=True, kw_only=True)
class LogRow:
    """Entries of the micro-batches of one rank, of which all rows but the well-formed are wrong."""

    name: str
    says: str
    entries: tuple[LogEntry, ...]
    mode: Mode = Mode.TOKEN_MEAN
    is_well_formed: bool = False
    origin: str = "miles' pull request 1498"

    @property
    def rule(self) -> str:
        """The name of the rule that the row breaks."""
        return f"log_{self.name}"


@dataclass(frozen=True, kw_only=True)
class LogOutcome:
    """What a framework made of a row: a log, or words; of no row any where its process died."""

    kind: Literal["logged", "raised", "unsupported", "crashed"]
    log: Mapping[str, float]
    message: str = ""


def _entry(keys: str = "loss kl", count: float = 1.0) -> LogEntry:
    return LogEntry(keys=tuple(keys.split()), values=(2.0, 3.0), count=count)


def _normalized(*normalizers: float) -> LogEntry:
    return replace(_entry(), normalizers=normalizers)


CUSTOM = "as a custom loss or importance-sampling function may add metrics"


ROWS = (
    LogRow(
        name="well_formed",
        says="entries of one form",
        entries=(_entry(count=4.0), _entry(count=2.0)),
        mode=Mode.SAMPLE_MEAN,
        is_well_formed=True,
    ),
    LogRow(
        name="well_formed_normalizers",
        says="entries with a normalizer for each key",
        entries=(_normalized(4.0, 8.0), _normalized(2.0, 2.0)),
        is_well_formed=True,
    ),
    LogRow(
        name="different_keys",
        says=f"entries of different keys, {CUSTOM}",
        entries=(_entry(), _entry("loss entropy")),
        mode=Mode.SAMPLE_MEAN,
    ),
    LogRow(
        name="key_order",
        says=f"the same keys in another order, {CUSTOM}",
        entries=(_entry(), _entry("kl loss")),
        mode=Mode.SAMPLE_MEAN,
    ),
)


def outcomes(adapter: Adapter, source: Path | None, *, optimized: bool) -> Mapping[str, LogOutcome]:
    """What a framework makes of every row, by name, in a process of its own."""
    return _outcomes(pickle.dumps((adapter, source, ROWS)), source, optimized)


@cache
def _outcomes(request: bytes, source: Path | None, optimized: bool) -> Mapping[str, LogOutcome]:
    flags = ["-O"] if optimized else []
    command = [sys.executable, *flags, "-m", CHILD]
    try:
        child = subprocess.run(command, input=request, capture_output=True, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        return _none(f"{WHO} gave no answer in {LIMIT:g} s")
    if child.returncode or not child.stdout:
        return _none(last_words(WHO, child.returncode, child.stderr, source))
    answer: Mapping[str, LogOutcome] = pickle.loads(child.stdout)
    return answer


def _none(message: str) -> Mapping[str, LogOutcome]:
    """Of a process that died on one row nothing is known of any."""
    crash = LogOutcome(kind="crashed", log={}, message=message)
    return {row.name: crash for row in ROWS}


def judge_log(row: LogRow, outcome: LogOutcome, optimized: LogOutcome) -> Judgement:
    """Hold what a framework made of a row against the rule: logged if well formed, else refused.

    ``optimized`` is what it makes of it under ``python -O``.
    """
    if row.is_well_formed:
        if outcome.kind == "logged":
            return Judgement(verdict=Verdict.CONFORMS, error=None, tolerance=0.0)
        return _mismatch("refused_what_it_supports", f"{row.says} are refused")
    if outcome.kind == "raised" and optimized.kind == "logged":
        words = f"{row.says}: an assert alone refuses them; under python -O they are logged, as"
        return _mismatch("refused_by_an_assert", f"{words} {_numbers(optimized)}")
    if outcome.kind == "raised":
        return Judgement(verdict=Verdict.REFUSED, error=None, tolerance=0.0)
    return _mismatch("accepted", f"{row.says}: logged all the same, as {_numbers(outcome)}")


def _numbers(outcome: LogOutcome) -> str:
    return ", ".join(f"{key} = {value:.7g}" for key, value in outcome.log.items()) or "nothing"


def _mismatch(name: str, explanation: str) -> Judgement:
    diagnosis = Diagnosis(name=name, explanation=explanation)
    return Judgement(verdict=Verdict.MISMATCH, error=None, tolerance=0.0, diagnosis=diagnosis)
