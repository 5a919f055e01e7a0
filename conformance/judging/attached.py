"""Judges steps with a column that has a gradient, which no gradient may reach."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from conformance.findings.verdict import Verdict
from conformance.judging.weights import Judgement, mismatch, unjudged

if TYPE_CHECKING:
    from collections.abc import Sequence

    from adapters.contract import Description, Job, Observation
    from conformance.ranks.pool import Crashed

RETAINED = "backward through the graph a second time"
"""Torch's error where micro-batches share the graph of a tensor that is not their model's."""


def judge_attached(
    job: Job, observations: Sequence[Observation], description: Description
) -> Judgement:
    """Judge whether any gradient reached the attached column; exactly 0 is right."""
    reached = [one.attached_gradient for one in observations if one.attached_gradient is not None]
    if not reached:
        return unjudged(Verdict.UNSUPPORTED, f"{job.attached} is given as plain numbers")
    gradients = np.concatenate(reached)
    if not gradients.any():
        return Judgement(verdict=Verdict.CONFORMS, error=0.0, tolerance=0.0)
    largest = float(np.nanmax(np.abs(gradients)))
    return _gradient_mismatch(
        job, f"{np.count_nonzero(gradients)} of its values get up to {largest:.4g}", description
    )


def judge_attached_crash(job: Job, crash: Crashed, description: Description) -> Judgement:
    """Judge a job that crashes if a column has a gradient.

    A graph that several micro-batches share was used, so a gradient reached the column. Any other
    crash shows only that the column cannot be given with a gradient.
    """
    if RETAINED not in crash.message:
        words = f"{job.attached} cannot be given with a gradient: {crash.message}"
        return unjudged(Verdict.NOT_DRIVEN, words)
    return _gradient_mismatch(job, "several micro-batches go back through it", description)


def _gradient_mismatch(job: Job, words: str, description: Description) -> Judgement:
    stated = description.rules[f"no_gradient.{job.attached}"]
    return mismatch(
        "gradient_of_constants",
        f"a gradient flows through {job.attached} that still have one: {words}; see {stated}",
    )
