"""Judges which rank trained on which tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from conformance.expected.placement import forward_pass_of_token
from conformance.findings.finding import Diagnosis
from conformance.findings.verdict import Verdict
from conformance.judging.weights import Judgement, mismatch
from reference.aggregation import Mode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from adapters.contract import Description, Job, Layout, Observation
    from reference.step import Step


def judge_sharding(
    job: Job, observations: Sequence[Observation], description: Description
) -> Judgement:
    """Judge whether every active token was trained on in its own step.

    If a framework documents that its `prompt_mean` needs all samples of a prompt on one
    data-parallel rank, that is judged too.
    """
    whole = description.conventions.whole_groups and job.aggregation.mode is Mode.PROMPT_MEAN
    for step_index, step in enumerate(job.steps):
        passes = forward_pass_of_token(observations, step_index, job.layout)
        if passes is None:
            words = f"the adapter is at fault: it recorded no forward passes of step {step_index}"
            return mismatch("forward_passes_not_recorded", words)
        fault = _untrained(step, passes)
        if fault is None and whole:
            fault = _scattered(step, passes, job.layout)
        if fault is not None:
            return Judgement(verdict=Verdict.MISMATCH, diagnosis=fault)
    return Judgement(verdict=Verdict.CONFORMS, error=0.0, tolerance=0.0)


def _untrained(step: Step, passes: NDArray[np.int32]) -> Diagnosis | None:
    lost = int((step.mask & (passes < 0).all(axis=0)).sum())
    if not lost:
        return None
    total = int(step.mask.sum())
    return Diagnosis(
        name="tokens_not_held",
        explanation=f"{lost} of {total} active tokens are on no rank in their optimizer step",
        numbers={"lost": lost, "tokens": total},
    )


def _scattered(step: Step, passes: NDArray[np.int32], layout: Layout) -> Diagnosis | None:
    of_token = np.repeat(step.groups, step.response_lengths)
    for group in np.unique(step.groups):
        ranks = np.flatnonzero((passes[:, of_token == group] >= 0).any(axis=1)) // layout.cp
        if len(np.unique(ranks)) > 1:
            places = " and ".join(map(str, np.unique(ranks)))
            return Diagnosis(
                name="group_on_several_ranks",
                explanation=f"the samples of prompt group {group} are on data-parallel ranks"
                f" {places}, and this prompt_mean needs them on one",
                numbers={"group": float(group), "ranks": float(len(np.unique(ranks)))},
            )
    return None
