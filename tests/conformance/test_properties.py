"""Properties of all steps: of the reference, and of ranks that train on `native`."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from adapters.contract import Layout
from adapters.contract.batch.probed_batch import ProbedBatch
from adapters.contract.objective import FROM_REWARDS, OFF_POLICY, Objective
from adapters.native.adapter import NativeAdapter
from conformance.corpus.strategies import (
    aggregations,
    conventions,
    layouts,
    rewarded_steps,
    steps,
)
from conformance.expected.advantages import Estimate
from conformance.expected.estimators import rollouts_of
from conformance.findings.verdict import Verdict
from conformance.judging.gradients import judge_advantages, judge_off_policy
from conformance.judging.weights import Trained
from conformance.ranks.pool import RankPool
from reference import rounding
from reference.aggregation import Aggregation, Conventions, EmptyUnits, EstimatorConventions, Mode
from reference.step import Sample, Step
from reference.weights import sample_weights, token_weights
from tests.jobs import job_of, step_of
from tests.pools import pool_of, trained

Weigh = Callable[[Step, Aggregation, Layout], NDArray[np.float64]]

BOUND = 2 * rounding.weight_bound("float32")
"""The bound on the difference of two weights, each of which may be off by its own bound."""

FEW = settings(max_examples=60, deadline=None)
"""Settings of properties that train on ranks, which takes milliseconds."""

MANY = settings(
    max_examples=10_000 if settings.get_current_profile_name() == "full" else 20, deadline=None
)
"""Settings of properties whose failure would mean false accusations."""

SMALL_LAYOUTS = layouts(NativeAdapter(), max_ranks=4)

MEANS = (Mode.SAMPLE_MEAN, Mode.PROMPT_MEAN, Mode.TOKEN_MEAN)


@st.composite
def permuted(draw: st.DrawFn) -> tuple[Step, list[int]]:
    """A step and an order of its samples."""
    step = draw(steps())
    return step, draw(st.permutations(range(step.size)))


@given(permuted(), aggregations(), conventions())
def test_permuting_samples_permutes_weights(
    drawn: tuple[Step, list[int]], aggregation: Aggregation, chosen: Conventions
) -> None:
    step, order = drawn
    expected = sample_weights(step, aggregation, chosen)[order]

    assert sample_weights(pick(step, order), aggregation, chosen).tolist() == expected.tolist()


@given(steps(), conventions())
def test_every_mean_spreads_one_over_its_units(step: Step, chosen: Conventions) -> None:
    """Weights of a mean sum to 1, or to the share of non-empty units if empty ones count."""
    whole = Conventions(sample_unit=chosen.sample_unit, empty_units=EmptyUnits.EXCLUDED)
    assume(step.mask.any())
    for mode in MEANS:
        total = token_weights(step, Aggregation(mode), whole).sum()
        counted = token_weights(step, Aggregation(mode), chosen).sum()

        assert total == pytest.approx(1, rel=1e-14)
        assert 0 < counted <= total * (1 + 1e-14)


pool = pool_of(NativeAdapter, 4)


@pytest.fixture(scope="module")
def weigh(pool: RankPool) -> Weigh:
    """A function that trains a step and returns its token weights, which all ranks agree on."""

    def weigh(step: Step, aggregation: Aggregation, layout: Layout) -> NDArray[np.float64]:
        outcome = trained(pool, job_of(step, aggregation=aggregation, layout=layout))
        first, *others = [observation.token_weights[0] for observation in outcome.observations]
        assert all((other == first).all() for other in others)
        return first

    return weigh


@MANY
@given(
    step=steps(),
    aggregation=aggregations(),
    layout=SMALL_LAYOUTS,
    objective=st.sampled_from(OFF_POLICY),
)
def test_no_off_policy_loss_of_any_step_is_accused(
    pool: RankPool, step: Step, aggregation: Aggregation, layout: Layout, objective: Objective
) -> None:
    job = job_of(step, aggregation=aggregation, layout=layout, objective=objective)
    outcome = trained(pool, job)

    judgement = judge_off_policy(Trained(job, outcome.observations, pool.description))
    assert judgement.verdict is Verdict.CONFORMS, judgement


@MANY
@given(
    batch=st.lists(st.one_of(steps(), rewarded_steps()), min_size=1, max_size=2).map(tuple),
    aggregation=aggregations(),
    layout=SMALL_LAYOUTS,
    objective=st.sampled_from(FROM_REWARDS),
)
@example(
    batch=(replace(step_of([1, 1]), rewards=np.array([np.nan])),),
    aggregation=Aggregation(Mode.SAMPLE_MEAN),
    layout=Layout(),
    objective=Objective.GROUP_WHITENED,
)
def test_no_advantages_of_any_batch_are_accused(
    pool: RankPool,
    batch: tuple[Step, ...],
    aggregation: Aggregation,
    layout: Layout,
    objective: Objective,
) -> None:
    job = job_of(*batch, aggregation=aggregation, layout=layout, objective=objective)
    estimate = Estimate(
        objective=objective,
        rollouts=rollouts_of(ProbedBatch(batch, objective)),
        conventions=EstimatorConventions(),
    )
    # Whitening nearly equal advantages makes rounding errors as large as the advantages.
    bound = estimate.rounding.max() * rounding.ratio_bound("float32", len(estimate.raw))
    assume(not estimate.estimator.whitens or bound < 0.1)
    outcome = trained(pool, job)

    judgement = judge_advantages(Trained(job, outcome.observations, pool.description))
    assert judgement.verdict is Verdict.CONFORMS, judgement


@FEW
@given(step=steps(), aggregation=aggregations(), layout=SMALL_LAYOUTS)
def test_any_step_on_any_layout_weighs_what_the_reference_says(
    weigh: Weigh, step: Step, aggregation: Aggregation, layout: Layout
) -> None:
    assert_close(weigh(step, aggregation, layout), token_weights(step, aggregation))


def pick(step: Step, order: list[int]) -> Step:
    """The step with its samples in another order."""
    masks = [step.mask[response] for response in step.responses]
    return Step.of(
        [
            Sample(
                prompt_length=int(step.prompt_lengths[i]),
                loss_mask=masks[i],
                group=int(step.groups[i]),
                rollout=int(step.rollouts[i]),
            )
            for i in order
        ]
    )


def assert_close(one: NDArray[np.float64], other: NDArray[np.float64]) -> None:
    assert np.isfinite(one).all()
    assert (np.abs(one - other) <= BOUND * np.abs(other)).all(), (one, other)
