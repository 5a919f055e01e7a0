"""Judges the defaults of options by the documented ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from conformance.findings.verdict import Verdict
from conformance.judging.weights import Judgement, final_weights, mismatch
from reference.rounding import weight_bound

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from adapters.contract import Description, Job, Observation

NAME = "another_default"


def judge_defaults(
    job: Job,
    left_out: Sequence[Observation],
    typed: Sequence[Observation],
    description: Description,
) -> Judgement:
    """Judge defaults by the configuration's values, and by a step that leaves the options out.

    Its gradient is that of the same step with the documented values typed.
    """
    if others := [*_other_values(job, description)]:
        return mismatch(NAME, "; ".join(others))
    gradients = [
        np.concatenate(
            [
                final_weights(run, index, job, description.conventions)[0]
                for index in range(len(job.steps))
            ]
        )
        for run in (left_out, typed)
    ]
    one, other = gradients
    bound = 2 * weight_bound(description.dtype) * np.abs(other).max(initial=0.0)
    if np.allclose(one, other, rtol=0.0, atol=bound):
        return Judgement(verdict=Verdict.CONFORMS, error=0.0)
    names = ", ".join(f"`{one.option}`" for one in description.defaults[job.objective])
    return mismatch(NAME, f"without {names} the gradient is another than with documented defaults")


def _other_values(job: Job, description: Description) -> Iterator[str]:
    """Yield each option whose default is not the documented one."""
    for one in description.defaults[job.objective]:
        value, where = one.documented.value, one.documented.where
        if one.actual != value:
            yield f"`{one.option}` is {one.actual} by default instead of {value}; see {where}"
