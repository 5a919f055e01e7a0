"""Terms that are documented to depend on how a step is cut: advice, with its figures."""

from dataclasses import replace

import numpy as np
import pytest

from adapters.contract import Description, Layout, Observation
from adapters.contract.objective import Objective
from conformance.findings.verdict import Verdict
from conformance.judging.advice import depends_on_cuts, judge_cut_dependence
from reference.aggregation import AuxiliaryAggregation, Conventions, MicroBatchWeight, Mode
from reference.step import Sample, Step
from tests.conformance.given import BY_SAMPLE, STEP
from tests.declaring import assumed
from tests.jobs import job_of

JOB = job_of(
    STEP, mode=Mode.SAMPLE_MEAN, layout=Layout(dp=2, micro_batches=2), objective=Objective.ENTROPY
)
OBSERVATIONS = [
    Observation(token_weights=(), forward_passes=(forward_pass_of_token,))
    for forward_pass_of_token in BY_SAMPLE
]
"""Micro-batches of 3 and 0 active tokens on one rank, of 4 and 3 on the other."""


def test_dependence_on_the_cut_is_advice_with_its_figures() -> None:
    """A token weighs 1/(2 · 2 · 4) to 1/(2 · 2 · 3), where in the whole step it weighs 1/10."""
    conventions = Conventions(entropy=AuxiliaryAggregation.MICRO_BATCH_TOKEN_MEAN)
    judgement = judge_cut_dependence(JOB, OBSERVATIONS, Description(declared=assumed(conventions)))

    assert judgement.verdict is Verdict.ADVICE
    assert judgement.diagnosis.numbers == pytest.approx(
        {"lowest_ratio": 10 / 16, "highest_ratio": 10 / 12}
    )
    assert "0.625 to 0.8333 times what a token_mean of the whole step" in (
        judgement.diagnosis.explanation
    )


def test_mean_over_samples_is_compared_with_that_of_the_step() -> None:
    """Micro-batches hold 2, 1, 1 and 1 of the 5 samples."""
    conventions = Conventions(entropy=AuxiliaryAggregation.MICRO_BATCH_SAMPLE_MEAN)
    judgement = judge_cut_dependence(JOB, OBSERVATIONS, Description(declared=assumed(conventions)))

    assert judgement.diagnosis.numbers == pytest.approx(
        {"lowest_ratio": 5 / 8, "highest_ratio": 5 / 4}
    )


def test_cut_that_makes_no_difference_is_no_advice() -> None:
    """A rank's samples weigh the same whatever micro-batch they are in: here each rank has two."""
    by_samples = Conventions(
        entropy=AuxiliaryAggregation.MICRO_BATCH_SAMPLE_MEAN,
        micro_batch_weight=MicroBatchWeight.BY_SAMPLES,
    )
    even = Step.of([Sample(prompt_length=1, loss_mask=[1], group=0)] * 4)
    forward_pass_of_token = np.array([[0, 1, -1, -1], [-1, -1, 0, 1]], np.int32)
    job = replace(JOB, steps=(even,))
    seen = [
        Observation(token_weights=(), forward_passes=(passes,)) for passes in forward_pass_of_token
    ]
    judgement = judge_cut_dependence(job, seen, Description(declared=assumed(by_samples)))

    assert judgement.verdict is Verdict.CONFORMS


def test_aggregation_of_the_whole_step_depends_on_no_cut() -> None:
    assert not depends_on_cuts(JOB.objective, Description().conventions)
