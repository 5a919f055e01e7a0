"""Judges what a framework makes of a configuration: whether it refuses it, or what it then does."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from adapters.configuration import ORDINARY, REDUCER_DIVISOR
from conformance.badness import agreement
from conformance.configurations import Demand
from conformance.judge import Judgement, combined, judge_weights, largest_error
from conformance.report import Diagnosis, Verdict
from reference.aggregation import Aggregation, Mode
from reference.rounding import weight_bound

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from adapters.contract import Description, Job, Observation
    from conformance.configurations import Row
    from reference.step import Step


def judge_refusal(row: Row, message: str) -> Judgement:
    """Hold an error of the framework's own against what is demanded."""
    if row.demand not in (Demand.REFUSE, Demand.REDUCER_OR_REFUSE):
        refused = _mismatch("refused_what_it_supports", f"{row.says}, and it is refused")
        return replace(refused, message=message)
    if any(option in message.lower() for option in row.options):
        return Judgement(verdict=Verdict.REFUSED, error=None, tolerance=0.0, message=message)
    words = f"{row.says} is refused by an error that names none of {', '.join(row.options)}"
    return replace(_mismatch("refused_without_naming", words), message=message)


def judge_acceptance(
    row: Row,
    job: Job,
    observations: Sequence[Observation],
    description: Description,
    plain: Sequence[Observation],
) -> Judgement:
    """Hold what the framework then trained against what is demanded.

    ``plain`` is what it did with the ordinary configuration that the row is compared with.
    """
    if row.demand is Demand.REFUSE:
        return _accepted(row, job, observations, description)
    if row.demand in (Demand.SAME, Demand.DEFAULT):
        return _same(row, observations, plain)
    return _reduced(row, job, observations, description)


def compared_with(row: Row, job: Job, description: Description) -> Job:
    """The job of ordinary configuration that a row is to be the same as."""
    mode = description.default_mode if row.demand is Demand.DEFAULT else job.aggregation.mode
    divisor = job.aggregation.divisor if mode is Mode.CONSTANT else None
    return replace(job, aggregation=Aggregation(mode, divisor), configuration=ORDINARY)


def _accepted(
    row: Row, job: Job, observations: Sequence[Observation], description: Description
) -> Judgement:
    """What is trained then, in the words of the diagnosis if it can be named."""
    judged = judge_weights(job, observations, description)
    if judged.diagnosis is None:
        words = f"{row.says} is accepted; then weights are those of {job.aggregation.mode}"
        return _mismatch("accepted", words)
    words = f"{row.says} is accepted; then {judged.diagnosis.explanation}"
    return replace(_mismatch("accepted", words, judged.error), agreement=judged.agreement)


def _same(row: Row, observations: Sequence[Observation], plain: Sequence[Observation]) -> Judgement:
    pairs = [
        (mine, other)
        for ours, theirs in zip(observations, plain, strict=True)
        for mine, other in zip(ours.weights, theirs.weights, strict=True)
    ]
    if all(np.array_equal(mine, other) for mine, other in pairs):
        return Judgement(verdict=Verdict.CONFORMS, error=0.0, tolerance=0.0)
    mine, other = (np.concatenate(weights) for weights in zip(*pairs, strict=True))
    error = largest_error(mine, np.abs(other))
    wrong = _mismatch("not_the_same", f"{row.says}, and some weights differ", error)
    return replace(wrong, agreement=agreement(mine, other))


def _reduced(
    row: Row, job: Job, observations: Sequence[Observation], description: Description
) -> Judgement:
    """The custom reducer's sums, over what the train step divides by: its tokens or its samples."""
    tolerance = weight_bound(description.dtype)
    worst = 0.0
    for number, step in enumerate(job.steps):
        expected = _reducer_weights(step, job.aggregation.mode)
        for observed in combined(observations, number, job, description.conventions):
            error = largest_error(observed, expected)
            if error is None or error > tolerance:
                words = f"{row.says}, and weights are not what it makes them"
                wrong = _mismatch("reducer_ignored", words, error, tolerance)
                return replace(wrong, agreement=agreement(observed, expected))
            worst = max(worst, error)
    return Judgement(verdict=Verdict.CONFORMS, error=worst, tolerance=tolerance)


def _reducer_weights(step: Step, mode: Mode) -> NDArray[np.float64]:
    units = step.active_tokens.sum() if mode is Mode.TOKEN_MEAN else step.size
    return step.mask / (REDUCER_DIVISOR * float(units))


def _mismatch(
    name: str, explanation: str, error: float | None = None, tolerance: float = 0.0
) -> Judgement:
    return Judgement(
        verdict=Verdict.MISMATCH,
        error=error,
        tolerance=tolerance,
        diagnosis=Diagnosis(name=name, explanation=explanation),
    )
