"""Negative controls: the judge can fail, on the smallest mistake there is, and names it."""

from dataclasses import replace

import numpy as np
import pytest

from adapters.contract import Layout, PendingReduction
from conformance.corpus.cases import CORPUS
from conformance.findings.verdict import Verdict
from reference.aggregation import (
    AuxiliaryAggregation,
    Conventions,
    Mode,
    SampleUnit,
)
from reference.rounding import weight_bound
from reference.step import Sample, Step
from tests.conformance.given import BY_SAMPLE, Given
from tests.jobs import step_of

STEP = Step.of(
    [
        Sample(prompt_length=1, loss_mask=[1] * active + [0] * inactive, group=group)
        for active, inactive, group in [(3, 1, 0), (0, 2, 0), (5, 0, 1), (1, 3, 1), (2, 0, 2)]
    ]
)

CASES = {case.name: case for case in CORPUS}

ODD_GROUPS = CASES["odd_groups"].steps[0]
"""A step whose sizes all differ from the sizes of layouts."""

SUM, MEAN = PendingReduction.SUM, PendingReduction.MEAN
SUM_PER_SAMPLE = PendingReduction.SUM_PER_SAMPLE
SUM_PER_TOKEN = PendingReduction.SUM_PER_TOKEN
SUM_PER_COUNTED_TOKEN = PendingReduction.SUM_PER_COUNTED_TOKEN

ONE_OF_FIVE = Given(steps=(step_of([1], [0], [0], [0], [0], groups=range(5)),))
"""One active token among five samples. If each sample counts at least one token, the step has as
many tokens as samples."""

OWN = Given(steps=(STEP,))


@pytest.mark.parametrize("mode", Mode)
def test_reference_itself_conforms_without_error(mode: Mode) -> None:
    given = replace(OWN, mode=mode)
    judgement = given.judged(given.weights)

    assert judgement.verdict is Verdict.CONFORMS
    assert judgement.error == 0


@pytest.mark.parametrize("factors", [(1.0, 1.0), (1.0, 0.5), (np.nan, 1.0)])
def test_a_verdict_alone_is_that_of_the_judgement_and_explains_nothing(
    factors: tuple[float, float],
) -> None:
    given = replace(OWN, layout=Layout(dp=2))
    of_ranks = [given.weights * factor for factor in factors]
    whole, alone = given.judged(*of_ranks), given.judged(*of_ranks, explains=False)

    for name in ("verdict", "error", "tolerance", "rescalings", "expected"):
        assert getattr(alone, name) == getattr(whole, name)
    assert (whole.diagnosis is None) is (whole.verdict is Verdict.CONFORMS)
    assert (alone.diagnosis, alone.clues) == (None, None)
    assert whole.clues is not None


@pytest.mark.parametrize("factor", [0.999, 1.001])
def test_tolerance_is_the_derived_bound(factor: float) -> None:
    given = OWN
    judgement = given.judged(given.weights * (1 + factor * weight_bound("float32")))

    assert judgement.tolerance == weight_bound("float32")
    assert judgement.verdict is (Verdict.CONFORMS if factor < 1 else Verdict.MISMATCH)


def test_one_token_too_many_in_a_hundred_thousand_is_a_mismatch() -> None:
    step = step_of([1] * 100_000)
    given = Given(steps=(step,))
    judgement = given.judged(np.full(100_000, np.float64(np.float32(1 / 99_999))))

    assert judgement.verdict is Verdict.MISMATCH
    assert judgement.error == pytest.approx(1 / 99_999, rel=0.01)


@pytest.mark.parametrize(
    ("name", "layout"), [("dp", Layout(dp=2)), ("cp", Layout(cp=2)), ("pp", Layout(pp=2))]
)
@pytest.mark.parametrize(("verb", "power"), [("divided", -1), ("multiplied", 1)])
def test_factor_of_the_layout_is_named(name: str, layout: Layout, verb: str, power: int) -> None:
    given = Given(steps=(ODD_GROUPS,), layout=layout)
    judgement = given.judged(*[given.weights * 2.0**power] * layout.world_size)

    assert judgement.error == abs(2.0**power - 1)
    assert judgement.diagnosis.name == f"{verb}_by_{name}"
    assert judgement.diagnosis.numbers["ratio"] == 2.0**power
    assert judgement.diagnosis.numbers[name] == 2


def test_another_count_is_named_before_a_factor_that_happens_to_be_the_same() -> None:
    diagnosis = ONE_OF_FIVE.diagnosis(ONE_OF_FIVE.weights / 5)

    assert diagnosis.name == "empty_samples_counted"
    assert {"weights_of_sample_mean", "divided_by_prompts_or_samples"} < {*diagnosis.also}


def test_explanation_names_at_most_three_alternatives_the_likeliest() -> None:
    diagnosis = ONE_OF_FIVE.diagnosis(ONE_OF_FIVE.weights / 5)

    _, others = diagnosis.explanation.split("; or it is ")
    assert len(diagnosis.also) > 3
    assert others.split(", ") == diagnosis.also[:3]


@pytest.mark.parametrize(
    ("masks", "dp", "name"),
    [
        ([[1], [0], [0], [0], [0]], 5, "empty_samples_counted"),
        ([[1, 1], [0], [0]], 2, "divided_by_dp"),
    ],
)
def test_size_of_the_layout_is_named_after_another_count_only_for_a_single_active_token(
    masks: list[list[int]], dp: int, name: str
) -> None:
    """If each sample counts at least 1 token, 5 tokens are counted instead of 1, and 4 for 2."""
    step = step_of(*masks, groups=range(len(masks)))
    given = Given(steps=(step,), layout=Layout(dp=dp))
    diagnosis = given.diagnosis(given.weights / dp)

    assert diagnosis.name == name
    found = {each.split("_or_")[0] for each in (diagnosis.name, *diagnosis.also)}
    assert {"empty_samples_counted", "divided_by_dp"} <= found


def test_sizes_that_are_alike_are_named_together() -> None:
    given = Given(steps=(ODD_GROUPS,), layout=Layout(dp=2, cp=2))
    diagnosis = given.diagnosis(given.weights * 2)

    assert diagnosis.name == "multiplied_by_dp_or_cp"
    assert diagnosis.numbers == {"ratio": 2.0, "dp": 2, "cp": 2}


def test_group_size_is_the_rollouts_of_a_prompt_and_named_beside_a_layout_of_that_size() -> None:
    given = Given(mode=Mode.PROMPT_MEAN, steps=(CASES["unequal_groups"].steps[0],))
    alone = given.diagnosis(given.weights / 2)
    in_data_parallel = replace(given, layout=Layout(dp=2)).diagnosis(given.weights / 2)

    assert alone.name == "rollouts_counted_as_prompts"
    assert "divided_by_group_size" in alone.also
    assert in_data_parallel.name == "divided_by_dp_or_group_size"


def test_group_size_is_told_from_sizes_of_the_layout() -> None:
    given = Given(mode=Mode.PROMPT_MEAN, steps=(ODD_GROUPS,), layout=Layout(dp=2, cp=2))
    diagnosis = given.diagnosis(given.weights / 3)

    assert diagnosis.name == "samples_counted_as_prompts"
    assert diagnosis.also == ["rollouts_counted_as_prompts", "divided_by_group_size"]
    assert "24 samples are counted instead of 8 prompts" in diagnosis.explanation


@pytest.mark.parametrize(
    ("layout", "weight"), [(Layout(), 1.0), (Layout(dp=4), 0.25), (Layout(dp=2, cp=2), 0.25)]
)
def test_sum_that_is_not_divided_is_named(layout: Layout, weight: float) -> None:
    """As in miles' FSDP engine per token: the sum is not divided, but FSDP averages over ranks."""
    diagnosis = replace(OWN, layout=layout).judged(STEP.mask * weight).diagnosis

    assert diagnosis.name == "not_divided"
    assert diagnosis.numbers == pytest.approx(
        {"denominator": 1 / weight, "expected_denominator": 11}
    )


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weight_that_is_not_finite_is_a_mismatch(value: float) -> None:
    given = OWN
    broken = given.weights
    broken[0] = value
    judgement = given.judged(broken)

    assert judgement.verdict is Verdict.MISMATCH
    assert judgement.error is None
    assert judgement.diagnosis.name == "not_finite"


def test_every_rank_is_judged_not_only_the_first() -> None:
    given = replace(OWN, layout=Layout(dp=2))

    assert given.judged(given.weights, given.weights * 2).verdict is Verdict.MISMATCH


def test_contributions_are_put_together_as_the_train_step_would() -> None:
    given = replace(OWN, layout=Layout(dp=2))
    first = np.where(np.arange(len(given.weights)) < 4, given.weights, 0)
    second = given.weights - first

    assert given.judged(first, second, pending_reduction=SUM).verdict is Verdict.CONFORMS
    assert given.judged(2 * first, 2 * second, pending_reduction=MEAN).verdict is Verdict.CONFORMS
    assert given.judged(first, second, pending_reduction=MEAN).error == 0.5


@pytest.mark.parametrize(
    ("mode", "pending_reduction", "divisor"),
    [
        (Mode.TOKEN_MEAN, SUM_PER_TOKEN, 11),
        (Mode.TOKEN_MEAN, SUM_PER_COUNTED_TOKEN, 11),
        (Mode.SAMPLE_MEAN, SUM_PER_SAMPLE, 5),
    ],
)
def test_sums_are_divided_as_the_train_step_would(
    mode: Mode, pending_reduction: PendingReduction, divisor: int
) -> None:
    given = replace(OWN, mode=mode, layout=Layout(dp=2))
    first = np.where(np.arange(len(given.weights)) < 4, given.weights, 0)
    halves = [divisor * first, divisor * (given.weights - first)]

    assert (
        given.judged(*halves, pending_reduction=pending_reduction, counted_tokens=(5.5,)).verdict
        is Verdict.CONFORMS
    )
    counted_too_many = given.judged(
        *halves, pending_reduction=pending_reduction, counted_tokens=(6,)
    )
    wrong = pending_reduction is SUM_PER_COUNTED_TOKEN
    assert counted_too_many.verdict is (Verdict.MISMATCH if wrong else Verdict.CONFORMS)


def test_tensor_parallel_ranks_count_once_and_are_each_looked_at() -> None:
    given = replace(OWN, layout=Layout(dp=2, tp=2))
    half = given.weights / 2

    assert given.judged(half, half, half, half, pending_reduction=SUM).verdict is Verdict.CONFORMS
    assert given.judged(half, half, half, 0 * half, pending_reduction=SUM).error == 0.5


@pytest.mark.parametrize(("leak", "error"), [(1e-9, 1.0), (1 / 11, 1.0), (0.5, 5.5), (-0.5, 5.5)])
def test_weight_on_an_inactive_token_is_a_multiple_of_the_largest_and_at_least_1(
    leak: float, error: float
) -> None:
    given = OWN
    leaking = given.weights
    leaking[3] = leak

    assert given.judged(leaking).error == pytest.approx(error)


@pytest.mark.parametrize(("leak", "error"), [(0.0, 0.0), (1e-9, 1.0), (5.0, 5.0)])
def test_weight_in_a_step_without_active_tokens_is_given_as_it_is_and_at_least_as_1(
    leak: float, error: float
) -> None:
    step = step_of([0, 0])

    assert Given(steps=(step,)).judged(np.array([0, leak])).error == error


@pytest.mark.parametrize("pending_reduction", [SUM_PER_TOKEN, SUM_PER_COUNTED_TOKEN])
@pytest.mark.parametrize("active", [0, 1])
def test_sum_of_one_token_or_none_is_divided_by_one(
    pending_reduction: PendingReduction, active: int
) -> None:
    step = step_of([active, 0])
    judgement = Given(steps=(step,)).judged(
        np.array([active, 0.0]), pending_reduction=pending_reduction, counted_tokens=(active,)
    )

    assert judgement.error == 0


def test_sums_are_divided_by_rollouts_where_these_are_declared_to_be_the_samples() -> None:
    """The first two of three samples are one rollout, with three tokens."""
    step = step_of([1, 1], [1], [1], rollouts=[7, 7, 9])
    by_sample = Given(mode=Mode.SAMPLE_MEAN, steps=(step,))
    by_rollout = replace(by_sample, conventions=Conventions(sample_unit=SampleUnit.ROLLOUT))
    means, of_samples = np.array([1 / 3, 1 / 3, 1 / 3, 1]), np.array([1 / 2, 1 / 2, 1, 1])
    judgements = (
        given.judged(sums, pending_reduction=SUM_PER_SAMPLE)
        for given, sums in ((by_rollout, means), (by_sample, of_samples), (by_sample, means))
    )

    assert [one.verdict for one in judgements] == [
        Verdict.CONFORMS,
        Verdict.CONFORMS,
        Verdict.MISMATCH,
    ]


def test_agreement_is_that_of_the_token_that_is_most_wrong() -> None:
    given = OWN
    by_sample = np.repeat([1.0, 1.0, 4.0, 1.0, 0.5], STEP.response_lengths)

    assert given.judged(given.weights * by_sample).agreement == 0.25


@pytest.mark.parametrize("factor", [1, 2])
def test_expected_weights_of_each_step_have_a_checksum_whatever_the_verdict(factor: int) -> None:
    """In the first step, tokens 1, 2 and 4 are active; in the second step, token 2."""
    steps = [[[1, 1, 0], [1]], [[0, 1]]]
    given = Given(
        steps=tuple(
            Step.of([Sample(prompt_length=1, loss_mask=mask, group=0) for mask in masks])
            for masks in steps
        )
    )

    assert given.judged(factor * given.weights).expected == (
        ("weights of step 0, token_mean", pytest.approx((1 + 2 + 4) / 3)),
        ("weights of step 1, token_mean", 2.0),
    )


def test_checksum_is_named_by_all_that_weights_depend_on() -> None:
    constant = Given(mode=Mode.CONSTANT).context
    cut = Given(layout=Layout(dp=2, micro_batches=2), forward_pass_of_token=BY_SAMPLE).context
    averaged = cut.of_term(AuxiliaryAggregation.MICRO_BATCH_TOKEN_MEAN)

    assert constant.fingerprint.name == "weights of step 0, constant:40"
    assert averaged.fingerprint.name == (
        "weights of step 0, token_mean of equal micro-batches on dp2-cp1-mb2-bshd"
    )
