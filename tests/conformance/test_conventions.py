"""Numbers that are right by a documented convention, or by an assumed one."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from unittest import mock

import numpy as np
import pytest
from numpy.typing import NDArray

from adapters.contract import Assumed, Description, Documented, Job, Layout, Observation
from adapters.contract.batch.probed_batch import ProbedBatch
from adapters.contract.description import Convention
from adapters.contract.objective import (
    ENTROPY_COEFFICIENT,
    KL_COEFFICIENT,
    OF_VALUES,
    Metric,
    Objective,
)
from conformance.expected.estimators import ESTIMATORS, rollouts_of
from conformance.expected.loss_terms import quantities
from conformance.explain.causes import causes
from conformance.findings.cause import UNEXPLAINED
from conformance.findings.finding import Diagnosis, Finding
from conformance.findings.verdict import Verdict
from conformance.judging.conventions import judge_by_conventions
from conformance.judging.outcome import judge
from conformance.judging.weights import Judgement, Trained
from conformance.plan.checks import check_spec
from reference.aggregation import (
    Aggregation,
    AuxiliaryAggregation,
    Conventions,
    DenominatorMask,
    EmptyUnits,
    EstimatorConventions,
    MicroBatchWeight,
    Mode,
    SampleUnit,
    TokenSet,
)
from reference.step import Sample, Step
from reference.weights import token_weights
from tests.jobs import job_of, step_of

POOLED, MEANS = AuxiliaryAggregation.TOKEN_MEAN, AuxiliaryAggregation.MICRO_BATCH_TOKEN_MEAN

STEP = step_of([1, 1], [1], [1])
PASSES = np.array([0, 0, 0, 1])
"""One rank has two micro-batches, of three tokens and of one token."""


def by_conventions(
    slug: str,
    job: Job,
    *seen: Observation,
    declared: Mapping[str, Convention],
    explains: bool = True,
) -> Judgement:
    """The judgement of a check by declared conventions, given the observations of ranks."""
    spec, description = check_spec(slug), Description(declared=declared)
    trained = Trained(job, seen, description, explains=explains)
    return judge_by_conventions(judge(spec), spec, trained)


def logged(
    declared: Mapping[str, Convention],
    weights: list[float],
    slug: str = "metric.entropy",
    layout: Layout = Layout(micro_batches=2),  # noqa: B008 - it is frozen
    passes: NDArray[np.int64] = PASSES[np.newaxis],
    *,
    explains: bool = True,
) -> Judgement:
    """The judgement of a logged number in which the tokens' quantities have these weights."""
    spec = check_spec(slug)
    job = job_of(STEP, layout=layout, objective=spec.objective)
    assert spec.metric is not None
    batch = ProbedBatch(job.steps, job.objective)
    number = float(quantities(spec.metric, batch) @ np.array(weights))
    observations = [
        Observation(
            token_weights=(),
            reported={spec.metric: (number,)},
            forward_passes=(held.astype(np.int32),),
        )
        for held in passes
    ]
    return by_conventions(slug, job, *observations, declared=declared, explains=explains)


OF_THE_STEP = [1 / 4] * 4
OF_MICRO_BATCHES = [1 / 6] * 3 + [1 / 2]


@pytest.mark.parametrize(
    ("declared", "pooled", "means"),
    [
        ({}, Verdict.CONFORMS, Verdict.ADVICE),
        ({"entropy": Assumed(POOLED)}, Verdict.CONFORMS, Verdict.ADVICE),
        ({"entropy": Assumed(MEANS)}, Verdict.CONFORMS, Verdict.ADVICE),
        ({"entropy": Documented(POOLED, "a page")}, Verdict.CONFORMS, Verdict.MISMATCH),
        ({"entropy": Documented(MEANS, "a page")}, Verdict.CONFORMS, Verdict.CONFORMS),
        (
            {"entropy": Documented(POOLED, "a page"), "logged_entropy": Assumed(POOLED)},
            Verdict.CONFORMS,
            Verdict.ADVICE,
        ),
    ],
)
def test_pooled_number_is_always_right_and_a_mean_of_means_where_it_is_documented(
    declared: Mapping[str, Convention], pooled: Verdict, means: Verdict
) -> None:
    assert logged(declared, OF_THE_STEP).verdict is pooled
    assert logged(declared, OF_MICRO_BATCHES).verdict is means


@pytest.mark.parametrize("declared", [{}, {"entropy": Assumed(MEANS)}])
def test_advice_on_a_mean_of_means_has_both_numbers(declared: Mapping[str, Convention]) -> None:
    found = logged(declared, OF_MICRO_BATCHES).diagnosis

    assert found.name == "mean_of_means"
    assert set(found.numbers) == {"reported", "pooled"}
    assert found.explanation.endswith("a mean of means is taken instead of pooling over the step")


@pytest.mark.parametrize("declared", [{}, {"entropy": Assumed(MEANS)}])
def test_a_right_number_that_is_judged_without_an_explanation_conforms(
    declared: Mapping[str, Convention],
) -> None:
    """Trials of edits are judged without explanations, thousands at a time."""
    weights = OF_MICRO_BATCHES if declared else OF_THE_STEP

    assert logged(declared, weights, explains=False).verdict is Verdict.CONFORMS


@pytest.mark.parametrize("declared", [{}, {"entropy": Assumed(MEANS)}])
def test_other_numbers_stay_wrong_where_nothing_is_documented(
    declared: Mapping[str, Convention],
) -> None:
    judgement = logged(declared, [1.0] * 4)

    assert judgement.verdict is Verdict.MISMATCH


def test_logged_loss_is_the_one_that_is_trained() -> None:
    assert logged({}, OF_THE_STEP, "metric").verdict is Verdict.CONFORMS
    assert logged({}, OF_MICRO_BATCHES, "metric").verdict is Verdict.MISMATCH


UNEVEN = Layout(dp=2, micro_batches="uneven")

ON_TWO = np.array([[0, 0, 1, -1], [-1, -1, -1, 0]])
"""Two ranks: the first has tokens 0 to 2 in two passes, the second has token 3."""


def test_padding_that_is_averaged_in_is_wrong_by_either_answer() -> None:
    """The second rank gets a padding micro-batch, which is averaged in as a zero."""
    padded = [1 / 8, 1 / 8, 1 / 4, 1 / 4]
    judgement = logged({"entropy": Assumed(MEANS)}, padded, layout=UNEVEN, passes=ON_TWO)

    assert judgement.verdict is Verdict.MISMATCH
    assert judgement.diagnosis.name == "padding_micro_batches_averaged"


def test_means_of_different_parts_are_one_cause() -> None:
    """One layout has a mean of micro-batches of one rank, the other a mean of two ranks."""
    declared = {"entropy": Documented(POOLED, "a page")}
    judgements = {
        "dp1-cp1-mb2-bshd": logged(declared, OF_MICRO_BATCHES),
        "dp2-cp1-mbuneven-bshd": logged(declared, OF_MICRO_BATCHES, layout=UNEVEN, passes=ON_TWO),
    }
    names = {str(one.diagnosis and one.diagnosis.name) for one in judgements.values()}
    found = [
        Finding(
            id=f"metric.entropy/token_mean/a/{layout}",
            verdict=one.verdict,
            diagnosis=one.diagnosis,
            clues=number,
        )
        for number, (layout, one) in enumerate(judgements.items())
    ]
    [cause] = causes(found, [one.clues for one in judgements.values() if one.clues], {})

    assert names == {"denominators_per_micro_batch", "denominators_per_rank"}
    assert cause.name == "mean_of_means"


def entropy_trained(weights: list[float], **declared: Convention) -> Judgement:
    """The judgement of an entropy term whose tokens have these weights."""
    job = job_of(STEP, layout=Layout(micro_batches=2), objective=Objective.ENTROPY)
    passes = (PASSES.astype(np.int32),)
    seen = Observation(token_weights=(np.array(weights),), forward_passes=passes)
    return by_conventions("auxiliary.entropy", job, seen, declared=declared)


@pytest.mark.parametrize("weights", [OF_THE_STEP, OF_MICRO_BATCHES])
def test_assumed_mean_of_means_may_be_pooled_in_training_too(weights: list[float]) -> None:
    assert entropy_trained(weights, entropy=Assumed(MEANS)).verdict is Verdict.CONFORMS


SHARED = step_of([1, 1, 1], [1], [1, 1], groups=[0, 0, 1], rollouts=[0, 0, 1])
"""A step whose weights are 1/9, 1/3 and 1/6 by samples, and 1/8, 1/8 and 1/4 by rollouts."""

BY_SAMPLE, BY_ROLLOUT = (
    token_weights(SHARED, Aggregation(Mode.SAMPLE_MEAN), Conventions(sample_unit=unit))
    for unit in (SampleUnit.SAMPLE, SampleUnit.ROLLOUT)
)


def weighed(
    weights: NDArray[np.float64], declared: Mapping[str, Convention], step: Step = SHARED
) -> Judgement:
    """The judgement of the weights of a step on one rank."""
    seen = Observation(token_weights=(weights,))
    return by_conventions("weights", job_of(step, mode=Mode.SAMPLE_MEAN), seen, declared=declared)


@pytest.mark.parametrize("declared", SampleUnit)
def test_either_answer_to_an_assumed_convention_is_advice(declared: SampleUnit) -> None:
    for weights, unit in ((BY_SAMPLE, SampleUnit.SAMPLE), (BY_ROLLOUT, SampleUnit.ROLLOUT)):
        judgement = weighed(weights, {"sample_unit": Assumed(declared)})
        assert judgement.verdict is Verdict.ADVICE
        assert judgement.diagnosis.name == f"sample_unit_{unit}"


def test_documented_convention_is_kept_or_broken() -> None:
    declared = {"sample_unit": Documented(SampleUnit.ROLLOUT, "a page")}

    assert weighed(BY_ROLLOUT, declared).verdict is Verdict.CONFORMS
    assert weighed(BY_SAMPLE, declared).verdict is Verdict.MISMATCH
    assert weighed(BY_ROLLOUT, {}).verdict is Verdict.MISMATCH, "the contract's default"
    assert weighed(BY_SAMPLE, {}).verdict is Verdict.CONFORMS


def test_step_that_does_not_show_an_assumed_convention_is_no_advice() -> None:
    declared = {
        "sample_unit": Assumed(SampleUnit.ROLLOUT),
        "empty_units": Assumed(EmptyUnits.EXCLUDED),
        "denominator_mask": Assumed(DenominatorMask.ORIGINAL),
    }
    weights = token_weights(STEP, Aggregation(Mode.SAMPLE_MEAN))

    assert weighed(weights, declared, STEP).verdict is Verdict.CONFORMS


def test_advice_says_by_how_much_a_token_would_weigh_otherwise() -> None:
    """Weights are 1/8 instead of 1/9 and 1/3, and 1/4 instead of 1/6."""
    found = weighed(BY_ROLLOUT, {"sample_unit": Assumed(SampleUnit.ROLLOUT)}).diagnosis

    assert found.numbers == pytest.approx({"lowest_ratio": 3 / 8, "highest_ratio": 3 / 2})
    assert found.explanation == (
        "samples of one rollout are counted as one, which the framework does not document;"
        " a token weighs 0.375 to 1.5 times what it would otherwise"
    )


ON_PURPOSE = Documented("a mini-batch has a configured size", "a page")


@pytest.mark.parametrize(
    ("name", "also"), [("filling_rows_counted", []), ("count_off_by_one", ["filling_rows_counted"])]
)
@pytest.mark.parametrize(
    ("convention", "source"),
    [(ON_PURPOSE, "documented in a page"), (Assumed(ON_PURPOSE.value), "documented nowhere")],
)
def test_mistake_that_is_made_on_purpose_is_advice(
    name: str, also: list[str], convention: Convention, source: str
) -> None:
    """A deviation that a deliberate choice explains is not wrong."""
    diagnosis = Diagnosis(name=name, explanation="12 instead of 11", also=also)
    wrong = Judgement(verdict=Verdict.MISMATCH, error=0.1, diagnosis=diagnosis)
    description = Description(deliberate={"filling_rows_counted": convention})

    judgement = rejudged(wrong, description)

    assert judgement.verdict is Verdict.ADVICE
    assert judgement.diagnosis == Diagnosis(
        name="filling_rows_counted",
        explanation="12 instead of 11; on purpose, as a mini-batch has a configured size, which is"
        f" {source}",
    )
    assert rejudged(wrong, Description()) is wrong


def test_other_mistakes_stay_wrong_and_what_conforms_is_no_advice() -> None:
    description = Description(deliberate={"filling_rows_counted": ON_PURPOSE})
    other = Diagnosis(name="count_off_by_one", explanation="12 instead of 11")
    for judgement in (
        Judgement(verdict=Verdict.MISMATCH, diagnosis=other),
        Judgement(verdict=Verdict.CONFORMS),
    ):
        assert rejudged(judgement, description) is judgement


def rejudged(judgement: Judgement, description: Description) -> Judgement:
    """A given judgement, judged again by the conventions of a description."""
    job = job_of(STEP)
    return judge_by_conventions(
        lambda *_: judgement, check_spec("weights"), Trained(job, (), description)
    )


OF_REJECTION = Step.of(
    [
        Sample(prompt_length=1, loss_mask=[1, 0, 1], original_mask=[1, 1, 1], group=0),
        Sample(prompt_length=1, loss_mask=[1], group=1),
    ]
)
"""A step of four tokens, one of which is rejected."""

AFTER, BEFORE = [1 / 3, 0, 1 / 3, 1 / 3], [1 / 4] * 4
SUMMED, WITH_ZEROS = [1 / 3] * 4, [1 / 4, 0, 1 / 4, 1 / 4]


def logged_of_kept(declared: Mapping[str, Convention], weights: list[float]) -> Judgement:
    """The judgement of the entropy of a step with rejection, on one rank."""
    job = job_of(OF_REJECTION, objective=check_spec("rejection.entropy").objective)
    batch = ProbedBatch(job.steps, job.objective)
    number = float(quantities(Metric.ENTROPY, batch) @ np.array(weights))
    seen = Observation(token_weights=(), reported={Metric.ENTROPY: (number,)})
    declared = {"entropy": POOLED_ALONE, **declared}
    return by_conventions("rejection.entropy", job, seen, declared=declared)


POOLED_ALONE = Documented(POOLED, "a page")


def test_either_mask_of_rejection_is_right_where_nothing_is_documented() -> None:
    for weights in (AFTER, BEFORE):
        assert logged_of_kept({}, weights).verdict is Verdict.CONFORMS
    assert logged_of_kept({}, SUMMED).diagnosis.name == "rejected_tokens_weigh"


def test_another_mask_than_that_of_known_versions_is_advice() -> None:
    declared = {"entropy_mask": Assumed(DenominatorMask.ORIGINAL)}

    assert logged_of_kept(declared, BEFORE).verdict is Verdict.CONFORMS
    assert logged_of_kept(declared, AFTER).verdict is Verdict.ADVICE
    assert logged_of_kept(declared, AFTER).diagnosis.name == "term_mask_modified"


@pytest.mark.parametrize(
    ("mask", "weights", "mistake"),
    [
        (DenominatorMask.MODIFIED, BEFORE, "rejection_left_out"),
        (DenominatorMask.MODIFIED, SUMMED, "rejected_tokens_weigh"),
        (DenominatorMask.ORIGINAL, AFTER, UNEXPLAINED),
        (DenominatorMask.ORIGINAL, WITH_ZEROS, UNEXPLAINED),
    ],
)
def test_documented_mask_of_rejection_is_the_only_one(
    mask: DenominatorMask, weights: list[float], mistake: str
) -> None:
    judgement = logged_of_kept({"entropy_mask": Documented(mask, "a page")}, weights)

    assert judgement.verdict is Verdict.MISMATCH
    assert mistake in [judgement.diagnosis.name, *judgement.diagnosis.also]


@pytest.mark.parametrize("mask", DenominatorMask)
def test_terms_are_divided_by_either_tokens_where_no_document_says_which(
    mask: DenominatorMask,
) -> None:
    """Rejected tokens add 0 to a term, and may or may not count in its denominator."""
    for weights, found in [
        (AFTER, DenominatorMask.MODIFIED),
        (WITH_ZEROS, DenominatorMask.ORIGINAL),
    ]:
        judgement = logged_of_kept({"denominator_mask": Assumed(mask)}, weights)
        expected = Verdict.CONFORMS if found is mask else Verdict.ADVICE
        assert judgement.verdict is expected
        if expected is Verdict.ADVICE:
            assert judgement.diagnosis.name == f"denominator_mask_{found}"
    documented = {"denominator_mask": Documented(DenominatorMask.MODIFIED, "a page")}
    assert logged_of_kept(documented, WITH_ZEROS).diagnosis.name == "original_mask_counted"


def test_the_masks_that_leave_the_fewest_mistakes_are_those_of_a_wrong_sum() -> None:
    """As in ROLL: the policy loss trains rejected tokens, and the entropy is over all tokens."""
    job = job_of(OF_REJECTION, objective=check_spec("rejection.combined").objective)
    batch = ProbedBatch(job.steps, job.objective)
    before, after = np.array(BEFORE), np.array(AFTER)
    gradient = batch.dloss_dlogprob * before - ENTROPY_COEFFICIENT * before + KL_COEFFICIENT * after
    seen = Observation(token_weights=(gradient / batch.dloss_dlogprob,))
    judgement = by_conventions("rejection.combined", job, seen, declared={})

    [[mistake]] = judgement.clues.explanations
    assert "policy_loss/rejection_left_out" in mistake


def estimated(
    objective: Objective,
    convention: Callable[[EstimatorConventions], Convention],
    observed: EstimatorConventions,
) -> Judgement:
    """The judgement of advantages by the convention ``observed``, if `OF_TRAINED` is declared."""
    name = "of_values" if objective in OF_VALUES else "of_returns"
    declared = {name: convention(OF_TRAINED)}
    return judged_by(objective, declared, advantages_of(objective, observed))


def advantages_of(objective: Objective, conventions: EstimatorConventions) -> NDArray[np.float64]:
    return ESTIMATORS[objective](rollouts_of(ProbedBatch((WITH_HOLES,), objective)), conventions)


def judged_by(
    objective: Objective, declared: Mapping[str, Convention], advantages: NDArray[np.float64]
) -> Judgement:
    """The judgement of the gradient of these advantages on one rank."""
    job = job_of(WITH_HOLES, mode=Mode.SAMPLE_MEAN, objective=objective)
    weights = token_weights(WITH_HOLES, job.aggregation) * advantages
    seen = Observation(token_weights=(weights,))
    return by_conventions(f"advantages.{objective}", job, seen, declared=declared)


WITH_HOLES = step_of([1, 0, 1, 1, 0], [1, 1, 0], groups=[0, 1])

OF_TRAINED = EstimatorConventions(transitions=TokenSet.ACTIVE)
OF_ALL = EstimatorConventions(penalised=TokenSet.RESPONSE, rewarded=TokenSet.RESPONSE)


@pytest.mark.parametrize(
    ("objective", "observed", "name", "words"),
    [
        (
            Objective.REINFORCE_PP,
            replace(OF_TRAINED, transitions=TokenSet.RESPONSE),
            "transitions_response",
            "returns pass through masked tokens, which the framework does not document",
        ),
        (
            Objective.PENALISED_GAE,
            OF_ALL,
            "penalised_response",
            "the divergence of masked tokens is penalised too; returns pass through masked tokens;"
            " the reward is at the last token, masked or not, which the framework does not"
            " document",
        ),
    ],
)
def test_masked_tokens_that_matter_for_advantages_are_advice_unless_a_document_says_otherwise(
    objective: Objective, observed: EstimatorConventions, name: str, words: str
) -> None:
    found = estimated(objective, Assumed, observed)

    assert found.verdict is Verdict.ADVICE
    assert (found.diagnosis.name, found.diagnosis.explanation) == (name, words)
    assert estimated(objective, Assumed, OF_TRAINED).verdict is Verdict.CONFORMS
    documented = partial(Documented, where="a page")
    assert estimated(objective, documented, observed).verdict is Verdict.MISMATCH


def test_mistake_beside_other_tokens_than_the_assumed_ones_is_named() -> None:
    objective = Objective.REINFORCE_PP
    estimator = ESTIMATORS[objective]
    unwhitened = replace(estimator, whitens=False)
    with mock.patch.dict(ESTIMATORS, {objective: unwhitened}):
        advantages = advantages_of(objective, replace(OF_TRAINED, penalised=TokenSet.RESPONSE))
    found = judged_by(objective, {"of_returns": Assumed(OF_TRAINED)}, advantages)

    assert found.verdict is Verdict.MISMATCH
    assert found.diagnosis.name == "not_whitened"


def test_micro_batches_that_weigh_the_same_are_advice_where_samples_are_assumed_to_count() -> None:
    by_samples, equal = (
        entropy_trained(
            weights,
            entropy=Documented(MEANS, "a page"),
            micro_batch_weight=Assumed(MicroBatchWeight.BY_SAMPLES),
        )
        for weights in ([2 / 9] * 3 + [1 / 3], OF_MICRO_BATCHES)
    )

    assert (by_samples.verdict, equal.verdict) == (Verdict.CONFORMS, Verdict.ADVICE)
    assert equal.diagnosis.name == "micro_batch_weight_equal"
