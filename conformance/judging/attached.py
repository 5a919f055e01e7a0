"""Judges steps in which a column that must be constant requires a gradient: it must stay 0."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from conformance.findings.verdict import Verdict
from conformance.judging.weights import Judgement, mismatch, not_run, unjudged
from conformance.ranks.pool import Ran

if TYPE_CHECKING:
    from adapters.contract import Description, Job
    from conformance.ranks.messages import Declined
    from conformance.ranks.pool import Crashed

RETAINED = "backward through the graph a second time"
"""Torch's error where several micro-batches backpropagate through one tensor's graph."""


def judge_attached(
    job: Job, outcome: Ran | Declined | Crashed, description: Description
) -> Judgement:
    """Judge whether any gradient reached the attached column; exactly 0 is right.

    Micro-batches share the column's graph, so the error `RETAINED` shows that a gradient reached
    it. Any other crash shows only that the framework does not accept a column with a gradient.
    """
    column = job.attached
    if isinstance(outcome, Ran):
        found = [one.attached_gradient for one in outcome.observations]
        reached = [one for one in found if one is not None]
        if not reached:
            return unjudged(Verdict.UNSUPPORTED, f"{column} is given as plain numbers")
        gradients = np.concatenate(reached)
        if not gradients.any():
            return Judgement(verdict=Verdict.CONFORMS, error=0.0, tolerance=0.0)
        largest = float(np.nanmax(np.abs(gradients)))
        words = f"{np.count_nonzero(gradients)} of its values get up to {largest:.4g}"
    elif outcome.verdict != Verdict.CRASHED:
        return not_run(outcome)
    elif RETAINED not in outcome.message:
        words = f"{column} cannot be given with a gradient: {outcome.message}"
        return unjudged(Verdict.NOT_DRIVEN, words)
    else:
        words = "several micro-batches go back through it"
    stated = description.rules[f"no_gradient.{column}"]
    return mismatch(
        "gradient_of_constants",
        f"a gradient flows through {column} that still have one: {words}; see {stated}",
    )
