"""The terms of objectives, by hand."""

import numpy as np
import pytest

from adapters.contract.batch.probed_batch import ProbedBatch
from adapters.contract.objective import Metric, Objective
from conformance.expected import loss_terms
from reference.aggregation import AuxiliaryAggregation, Conventions
from reference.step import Sample, Step
from tests.conformance.given import Given

STEP = Step.of(
    [
        Sample(prompt_length=1, loss_mask=[1, 0, 0, 1], original_mask=[1, 1, 0, 1], group=0),
        Sample(prompt_length=2, loss_mask=[1], group=0),
    ]
)
"""A step whose response tokens have the ids 2 to 5 and 8; token 3 was rejected."""

MICRO_BATCHES = AuxiliaryAggregation.MICRO_BATCH_TOKEN_MEAN


def of(metric: Metric, objective: Objective) -> list[float]:
    return loss_terms.quantities(metric, ProbedBatch((STEP,), objective)).tolist()


def test_quantities_of_tokens() -> None:
    together = Objective.COMBINED

    assert of(Metric.POLICY_LOSS, Objective.POLICY) == [-2.0, 1.0, -0.5, 2.0, 0.5]
    assert of(Metric.POLICY_LOSS, Objective.ENTROPY) == [0.0] * 5
    assert of(Metric.ENTROPY, together) == [1.0, 0.25, 0.5, 2.0, 0.5]
    assert of(Metric.KL, together) == [0.5, 2.0, 4.0, 0.125, 0.5]
    assert of(Metric.REJECTED, Objective.REJECTION) == [0.0, 1.0, 0.0, 0.0, 0.0]


def test_ratios_beyond_the_clip_range_are_clipped_where_they_would_help() -> None:
    """Log-ratios are -1/2, 5/4, 1/4, -1/4, -1/2, and advantages 2, -1, 1/2, -2, -1/2."""
    off = Objective.OFF_POLICY

    assert of(Metric.POLICY_KL, off) == [0.5, -1.25, -0.25, 0.25, 0.5]
    assert of(Metric.CLIP_FRACTION, off) == [0.0, 0.0, 0.0, 1.0, 1.0]
    assert of(Metric.RATIO, off) == [*np.exp([-0.5, 1.25, 0.25, -0.25, -0.5])]
    assert of(Metric.POLICY_LOSS, off) == pytest.approx(
        [-2 * np.exp(-0.5), np.exp(1.25), -0.5 * np.exp(0.25), 2 * 0.8, 0.5 * 0.8]
    )


def test_terms_are_reduced_by_their_own_convention() -> None:
    conventions = Conventions(
        entropy=AuxiliaryAggregation.TOKEN_MEAN,
        kl=AuxiliaryAggregation.SAMPLE_MEAN,
        diagnostics=MICRO_BATCHES,
    )

    assert loss_terms.reducer(Metric.ENTROPY, conventions) is AuxiliaryAggregation.TOKEN_MEAN
    assert loss_terms.reducer(Metric.KL, conventions) is AuxiliaryAggregation.SAMPLE_MEAN
    assert loss_terms.reducer(Objective.SFT, conventions) is AuxiliaryAggregation.WITH_TOKEN_MEAN
    assert loss_terms.reducer(Metric.POLICY_LOSS, conventions) is None
    for metric in (Metric.CLIP_FRACTION, Metric.POLICY_KL, Metric.RATIO, Metric.REJECTED):
        assert loss_terms.reducer_of_log(metric, conventions) is MICRO_BATCHES


def test_rejected_tokens_and_a_critics_loss_may_be_reduced_in_ways_of_their_own() -> None:
    by_tokens = AuxiliaryAggregation.TOKEN_MEAN
    conventions = Conventions(
        diagnostics=MICRO_BATCHES,
        rejected=by_tokens,
        value_loss=AuxiliaryAggregation.WITH_POLICY_LOSS,
    )

    assert loss_terms.reducer_of_log(Metric.REJECTED, conventions) is by_tokens
    assert loss_terms.reducer_of_log(Metric.CLIP_FRACTION, conventions) is MICRO_BATCHES
    found = loss_terms.reducer(Objective.VALUE, conventions)
    assert found is AuxiliaryAggregation.WITH_POLICY_LOSS
    default = loss_terms.reducer(Objective.VALUE, Conventions())
    assert default is AuxiliaryAggregation.WITH_TOKEN_MEAN


def test_logged_loss_has_all_terms_with_their_coefficients() -> None:
    found = loss_terms.coefficients(Metric.LOSS, Objective.COMBINED)

    assert found == {Metric.POLICY_LOSS: 1, Metric.ENTROPY: -0.5, Metric.KL: 0.25}
    assert loss_terms.coefficients(Metric.LOSS, Objective.POLICY) == {Metric.POLICY_LOSS: 1.0}


def test_before_rejection_the_original_mask_is_the_mask() -> None:
    context = Given(steps=(STEP,)).context
    before = context.before_rejection()

    assert before.step.mask.tolist() == [True, True, False, True, True]
    assert before.step.original_mask is None
