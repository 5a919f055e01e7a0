"""The weights that known mistakes would give."""

import tomllib
from dataclasses import replace

import numpy as np
import pytest

from adapters.contract import Layout, Option
from adapters.contract.objective import Metric, Objective
from conformance.corpus.cases import CORPUS
from conformance.expected.loss_terms import logged_terms, off_policy_term, plain_term
from conformance.expected.placement import passes_in_order
from conformance.explain.catalogue.misalignments import misaligned_by_padding
from conformance.explain.catalogue.mistake import MISTAKES
from conformance.explain.catalogue.predictions import predictions
from conformance.explain.diagnosis import diagnose
from conformance.explain.engine import Explained
from conformance.explain.measurement import Measurement
from conformance.findings.errors import UnknownCutError
from reference.aggregation import (
    AuxiliaryAggregation,
    Conventions,
    EmptyUnits,
    MicroBatchWeight,
    Mode,
    SampleUnit,
)
from reference.losses.policy_losses import PolicyTokens
from reference.step import Sample, Step
from tests import command
from tests.conformance.given import (
    BY_SAMPLE,
    FILLED_UP,
    REJECTED,
    ROWS,
    SCATTERED,
    SLICED,
    STEP,
    UNEVEN,
    Given,
    passes,
)
from tests.jobs import step_of


def denominators(given: Given, name: str) -> list[list[float]]:
    """The denominators of all tokens with a weight, for each prediction of a mistake."""
    weights = [mistake.weights for mistake in predictions(given.context) if mistake.name == name]
    return [np.round(1 / w[w != 0], 9).tolist() for w in weights]


def of_samples(a: float, b: float, d: float, e: float) -> list[float]:
    """Each sample's number, once for each of its 2, 1, 4 and 3 active tokens."""
    return [a] * 2 + [b] + [d] * 4 + [e] * 3


TWO = Layout(dp=2, micro_batches=2)
SAMPLE = Given(mode=Mode.SAMPLE_MEAN, layout=TWO, forward_pass_of_token=BY_SAMPLE)
PROMPT = Given(mode=Mode.PROMPT_MEAN, layout=TWO, forward_pass_of_token=BY_SAMPLE)
TOKEN = Given(mode=Mode.TOKEN_MEAN, layout=TWO, forward_pass_of_token=BY_SAMPLE)
SLICES = Given(layout=Layout(dp=2, cp=2, micro_batches=2), forward_pass_of_token=SLICED)
UNEQUAL = Given(layout=Layout(dp=2, micro_batches="uneven"), forward_pass_of_token=UNEVEN)
CONSTANT = Given(mode=Mode.CONSTANT, layout=TWO, forward_pass_of_token=BY_SAMPLE)
FILTERED = Layout(options=(Option.MASKED_TRUNCATION,))
OF_FULL = Conventions(empty_units=EmptyUnits.EXCLUDED)

BEFORE_TOKEN, BEFORE_SAMPLE = (
    Given(mode=mode, steps=(REJECTED,)) for mode in (Mode.TOKEN_MEAN, Mode.SAMPLE_MEAN)
)


@pytest.mark.parametrize(
    ("given", "name", "expected"),
    [
        # Five samples have 2, 1, 0, 4 and 3 active tokens, 10 in all; three prompts have 3, 4 and
        # 3. Responses have 3, 1, 2, 5 and 3 tokens.
        (SAMPLE, "multiplied_by_prompts", [of_samples(10 / 3, 5 / 3, 20 / 3, 5)]),
        (SAMPLE, "divided_by_samples", [of_samples(50, 25, 100, 75)]),
        (SAMPLE, "divided_by_micro_batch_samples", [of_samples(20, 10, 20, 15)]),
        (SAMPLE, "multiplied_by_micro_batch_samples", [of_samples(5, 2.5, 20, 15)]),
        (SAMPLE, "not_divided", [[1.0] * 10, [2.0] * 10]),
        (SAMPLE, "masked_tokens_counted", [of_samples(15, 5, 25, 15)]),
        (SAMPLE, "prompt_tokens_counted", [of_samples(20, 15, 40, 20)]),
        (TOKEN, "empty_samples_counted", [[11.0] * 10]),
        # The third sample is a micro-batch of its own. If ranks have three micro-batches each, the
        # last one is padding.
        (TOKEN, "empty_micro_batches_counted", [[11.0] * 10]),
        (
            replace(TOKEN, layout=Layout(dp=2, micro_batches=3)),
            "empty_micro_batches_counted",
            [[11.0] * 10, [13.0] * 10],
        ),
        (TOKEN, "masked_tokens_counted", [[14.0] * 10]),
        (TOKEN, "prompt_tokens_counted", [[22.0] * 10]),
        # Four micro-batches have responses of 4, 2, 5 and 3 tokens, and sequences of 7, 3, 8 and 4.
        (
            TOKEN,
            "packed_length_as_divisor",
            [of_samples(16, 16, 20, 12), of_samples(28, 28, 32, 16)],
        ),
        # The third sample, two tokens of the second group, is left out but still counted.
        (replace(TOKEN, layout=FILTERED), "truncated_samples_counted", [[12.0] * 10]),
        (replace(PROMPT, layout=FILTERED), "truncated_samples_counted", [of_samples(9, 9, 18, 9)]),
        (TOKEN, "truncated_samples_counted", []),
        (
            Given(mode=Mode.SAMPLE_MEAN, layout=FILTERED, conventions=OF_FULL),
            "truncated_samples_counted",
            [of_samples(10, 5, 20, 15)],  # 5 samples, 4 of them with active tokens
        ),
        (
            Given(mode=Mode.CONSTANT, layout=FILTERED, conventions=OF_FULL),
            "truncated_samples_counted",
            [[200.0] * 10],
        ),
        (PROMPT, "empty_samples_counted", [of_samples(9, 9, 15, 9)]),
        (
            SAMPLE,
            "padding_counted",
            [
                [25.0] * 10,  # the longest response of the step has 5 tokens
                of_samples(15, 15, 25, 25),  # the longest responses of the ranks have 3 and 5
                of_samples(15, 15, 25, 15),  # the longest of micro-batches have 3, 2, 5 and 3
                of_samples(25, 25, 25, 15),  # longest in first micro-batches: 5, in second ones: 3
                [40.0] * 10,  # the longest sequence of the step has 8 tokens
                of_samples(20, 20, 40, 40),
                of_samples(20, 20, 40, 20),
                of_samples(40, 40, 40, 20),
            ],
        ),
        (
            SAMPLE,
            "tokens_per_sample_miscounted",
            [
                of_samples(15, 10, 25, 20),
                of_samples(5, 5, 15, 10),
                of_samples(20, 15, 30, 25),
                of_samples(5, 5, 10, 5),
                of_samples(15, 10, 25, 20),
                of_samples(20, 15, 30, 25),
            ],
        ),
        (
            TOKEN,
            "tokens_per_sample_miscounted",
            [[14.0] * 10, [6.0] * 10, [18.0] * 10, [3.0] * 10, [15.0] * 10, [20.0] * 10],
        ),
        (TOKEN, "weights_of_prompt_mean", [of_samples(9, 9, 12, 9)]),
        (SAMPLE, "weights_of_token_mean", [[10.0] * 10]),
        (SAMPLE, "rollout_units_counted", [of_samples(12, 12, 16, 12)]),
        (SAMPLE, "rollout_units_excluded", [of_samples(9, 9, 12, 9)]),
        (SAMPLE, "sample_units_excluded", [of_samples(8, 4, 16, 12)]),
        (SAMPLE, "rollouts_counted_as_samples", [of_samples(8, 4, 16, 12)]),
        (SAMPLE, "tokens_counted_as_samples", [of_samples(20, 10, 40, 30)]),
        (PROMPT, "samples_counted_as_prompts", [of_samples(15, 15, 20, 15)]),
        (CONSTANT, "prompts_counted_as_samples", [[120.0] * 10]),
        (CONSTANT, "divided_by_divisor", [[8000.0] * 10]),
        (
            CONSTANT,
            "padded_width_as_divisor",
            [
                of_samples(15, 15, 25, 15),  # 5 samples times micro-batches' longest responses
                of_samples(3, 3, 5, 3),
                of_samples(20, 20, 40, 20),  # 5 samples times micro-batches' longest sequences
                of_samples(4, 4, 8, 4),
                of_samples(15, 15, 35, 15),  # 5 samples times longest sequences less one token
                of_samples(3, 3, 7, 3),
                of_samples(25, 25, 25, 15),  # 5 samples times 5 (first micro-batches) or 3 (second)
                of_samples(5, 5, 5, 3),
                of_samples(40, 40, 40, 20),
                of_samples(8, 8, 8, 4),
                of_samples(35, 35, 35, 15),
                of_samples(7, 7, 7, 3),
            ],
        ),
        (
            TOKEN,
            "padded_width_as_divisor",
            [
                of_samples(24, 24, 20, 12),  # 4 micro-batches: 2 rows of 3, 1 row of 5, 1 row of 3
                of_samples(32, 32, 32, 16),
                of_samples(24, 24, 28, 12),
            ],
        ),
        # Before rejection, samples had 3, 1, 1, 4, 3 and 0 tokens. The first and the third lost one
        # each.
        (BEFORE_TOKEN, "rejection_left_out", [[12.0] * 12]),
        (BEFORE_SAMPLE, "rejection_left_out", [[18.0] * 3 + [6.0] * 2 + [24.0] * 4 + [18.0] * 3]),
        # One rank has 3 samples, 2 prompts and 3 tokens; the other 2 samples, 2 prompts, 7 tokens.
        (SAMPLE, "tokens_counted_per_rank", [of_samples(10, 5, 20, 15)]),
        (SAMPLE, "denominators_per_rank", [of_samples(12, 6, 16, 12)]),
        (TOKEN, "tokens_counted_per_rank", [of_samples(3, 3, 7, 7)]),
        (TOKEN, "denominators_per_rank", [of_samples(6, 6, 14, 14)] * 2),
        (CONSTANT, "denominators_per_rank", [of_samples(240, 240, 160, 160)]),
        # Four micro-batches, two on each rank, have 2, 1, 1 and 1 samples and 3, 0, 4 and 3 tokens.
        (TOKEN, "tokens_counted_per_micro_batch", [of_samples(3, 3, 4, 3)]),
        (TOKEN, "denominators_per_micro_batch", [of_samples(12, 12, 16, 12)] * 2),
        (CONSTANT, "denominators_per_micro_batch", [of_samples(320, 320, 160, 160)]),
        (SAMPLE, "micro_batch_means_added_up", [of_samples(4, 2, 4, 3), of_samples(8, 4, 8, 6)]),
        (TOKEN, "micro_batch_means_added_up", [of_samples(3, 3, 4, 3), of_samples(6, 6, 8, 6)]),
        (
            # The first micro-batch has the first and third samples; the third is empty.
            replace(SAMPLE, forward_pass_of_token=SCATTERED),
            "micro_batch_means_added_up",
            [
                of_samples(4, 1, 4, 3),
                of_samples(8, 2, 8, 6),
                of_samples(2, 1, 4, 3),
                of_samples(4, 2, 8, 6),
            ],
        ),
        (
            replace(
                CONSTANT,
                forward_pass_of_token=SCATTERED,
                conventions=Conventions(empty_units=EmptyUnits.EXCLUDED),
            ),
            "denominators_per_micro_batch",
            [of_samples(160, 160, 160, 160)],
        ),
        # The first micro-batches of both ranks have 7 tokens together, the second ones 3.
        (TOKEN, "tokens_counted_per_micro_batch_of_all_ranks", [of_samples(7, 7, 7, 3)]),
        (TOKEN, "denominators_per_micro_batch_of_all_ranks", [of_samples(14, 14, 14, 6)] * 2),
        # One rank has three micro-batches; the other has one, and may be given two of padding.
        (UNEQUAL, "tokens_counted_per_micro_batch_or_padding", [of_samples(2, 1, 7, 7)]),
        (UNEQUAL, "denominators_per_micro_batch_or_padding", [of_samples(12, 6, 42, 42)] * 2),
        # A token is divided by its rank's tokens in its micro-batch: between one and three.
        (
            SLICES,
            "tokens_counted_per_cp_slice_of_a_micro_batch",
            [[1.0] + [2.0] * 2 + [3.0] * 3 + [1.0] * 2 + [2.0] * 2],
        ),
        # Ten active tokens, and one counted for the empty sample.
        (SAMPLE, "weights_of_token_mean_counting_empty_samples", [[11.0] * 10]),
        # The micro-batches have 7, 3, 8 and 4 tokens with their prompts, 22 in all. Each of the two
        # cp ranks counts half of each, rounded down: 3, 1, 4 and 2, so together they count 20.
        (SLICES, "cp_shares_rounded_down", [[10 * 20 / 22] * 10]),
        (PROMPT, "runs_counted_as_prompts", [of_samples(9, 9, 12, 9)]),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)  # fmt: skip
def test_denominators_worked_by_hand(given: Given, name: str, expected: list[list[float]]) -> None:
    assert denominators(given, name) == [pytest.approx(each) for each in expected]


@pytest.mark.parametrize(
    ("dtype", "tokens", "counted"),
    [
        ("bfloat16", 257, 256),
        ("bfloat16", 259, 260),
        ("bfloat16", 256, 256),
        ("float16", 2049, 2048),
        ("float16", 2051, 2052),
        ("float16", 65_504, 65_504),
        ("float32", 2049, 2049),
    ],
)
def test_counts_are_rounded_to_even_as_the_dtype_does(
    dtype: str, tokens: int, counted: int
) -> None:
    step = step_of([1] * tokens)

    given = Given(steps=(step,))
    assert denominators(given, f"counted_in_{dtype}") == [pytest.approx([counted] * tokens)]


def test_count_beyond_the_largest_number_of_a_dtype_is_infinite() -> None:
    step = step_of([1] * 65_600)
    weights = [
        mistake.weights
        for mistake in predictions(Given(steps=(step,)).context)
        if mistake.name == "counted_in_float16"
    ]

    assert [w.any() for w in weights] == [False]


@pytest.mark.parametrize(
    ("conventions", "mode", "units"),
    [
        (Conventions(), Mode.SAMPLE_MEAN, 5),
        (Conventions(sample_unit=SampleUnit.ROLLOUT), Mode.SAMPLE_MEAN, 4),
        (Conventions(empty_units=EmptyUnits.EXCLUDED), Mode.SAMPLE_MEAN, 4),
        (Conventions(), Mode.PROMPT_MEAN, 3),
        (Conventions(), Mode.TOKEN_MEAN, 1),
    ],
)
def test_units_are_counted_as_the_reference_does(
    conventions: Conventions, mode: Mode, units: int
) -> None:
    context = Given(conventions=conventions, mode=mode).context

    assert context.units == units
    assert np.array_equal(context.weights(), context.expected)


def test_step_without_active_tokens_has_a_unit_where_empty_ones_do_not_count() -> None:
    empty = Step.of([Sample(prompt_length=1, loss_mask=[0], group=0)] * 2)
    excluded = Conventions(empty_units=EmptyUnits.EXCLUDED)
    context = Given(steps=(empty,), conventions=excluded, mode=Mode.SAMPLE_MEAN).context

    assert context.units == 1
    assert not context.weights().any()


def test_rejected_tokens_are_said_to_be_trained_on_only_where_they_have_a_weight() -> None:
    """A sample whose tokens are all rejected has a mean of 0, so that none of them has a weight."""
    sample = Sample(prompt_length=1, loss_mask=[1, 1], group=0)
    whole = Step.of([sample, replace(sample, loss_mask=[0, 0], original_mask=[1, 1])])
    context = Given(steps=(whole,), mode=Mode.SAMPLE_MEAN).context
    found = [one for one in predictions(context) if one.name == "rejected_tokens_weigh"]

    assert found
    assert all(one.weights[2:].any() for one in found)


def test_step_that_is_alone_has_no_batch_to_count() -> None:
    names = {mistake.name for mistake in predictions(replace(TOKEN, steps=(STEP,)).context)}

    assert not {"counted_over_batch", "mean_of_the_batch_counted"} & names


def test_all_steps_of_the_batch_are_counted() -> None:
    """The other step has three tokens in one sample, and so one prompt."""
    before = step_of([1, 1, 1])
    token, sample, prompt = (
        Given(mode=mode, steps=(before, STEP))
        for mode in (Mode.TOKEN_MEAN, Mode.SAMPLE_MEAN, Mode.PROMPT_MEAN)
    )

    assert denominators(token, "counted_over_batch") == [[13.0] * 10]
    assert denominators(sample, "counted_over_batch") == [of_samples(12, 6, 24, 18)]
    assert denominators(prompt, "counted_over_batch") == [of_samples(12, 12, 16, 12)]
    assert denominators(token, "mean_of_the_batch_counted") == [[6.5] * 10]
    assert denominators(sample, "mean_of_the_batch_counted") == [of_samples(6, 3, 12, 9)]


TOKENS, SAMPLES = (
    AuxiliaryAggregation.MICRO_BATCH_TOKEN_MEAN,
    AuxiliaryAggregation.MICRO_BATCH_SAMPLE_MEAN,
)
EQUAL, BY_ROWS = MicroBatchWeight.EQUAL, MicroBatchWeight.BY_SAMPLES


EMPTY_ON_ITS_OWN = passes([(slice(4), 0), (slice(6, 14), 1)], [(slice(4, 6), 0)])
"""Two ranks: one has two micro-batches; the other's only micro-batch is the third, empty sample."""


@pytest.mark.parametrize(
    ("forward_pass_of_token", "how", "weight", "expected"),
    [
        (UNEVEN, TOKENS, EQUAL, (12, 6, 14, 14)),
        (UNEVEN, SAMPLES, EQUAL, (12, 6, 16, 12)),
        (BY_SAMPLE, TOKENS, BY_ROWS, (9, 9, 16, 12)),
        (BY_SAMPLE, SAMPLES, BY_ROWS, (12, 6, 16, 12)),
    ],
)
def test_means_over_micro_batches_worked_by_hand(
    forward_pass_of_token: np.ndarray,
    how: AuxiliaryAggregation,
    weight: MicroBatchWeight,
    expected: tuple[float, ...],
) -> None:
    """`UNEVEN` has 3 and 1 micro-batches on its ranks, `BY_SAMPLE` has 2 on each of its ranks."""
    given = replace(
        TOKEN,
        forward_pass_of_token=forward_pass_of_token,
        conventions=Conventions(micro_batch_weight=weight),
    )
    weights = given.context.of_term(how).expected

    assert (1 / weights[weights != 0]).tolist() == pytest.approx(of_samples(*expected))


@pytest.mark.parametrize(
    ("forward_pass_of_token", "how", "weight", "name", "expected"),
    [
        # The second rank has one micro-batch where the first has three.
        (UNEVEN, TOKENS, EQUAL, "padding_micro_batches_averaged", [(12, 6, 42, 42)]),
        (SCATTERED, SAMPLES, EQUAL, "padding_micro_batches_averaged", []),
        # The rank with one micro-batch has no active token.
        (EMPTY_ON_ITS_OWN, TOKENS, EQUAL, "padding_micro_batches_averaged", []),
        # The second sample has a micro-batch of one row; the first micro-batch has two rows.
        (SCATTERED, SAMPLES, EQUAL, "dummy_rows_averaged", [(16, 8, 16, 12)]),
        (SCATTERED, TOKENS, EQUAL, "dummy_rows_averaged", []),
        (SCATTERED, SAMPLES, BY_ROWS, "dummy_rows_averaged", [(12, 12, 16, 12)]),
        (SCATTERED, AuxiliaryAggregation.SAMPLE_MEAN, EQUAL, "dummy_rows_averaged", []),
    ],
)
def test_what_fills_up_is_counted_in_a_mean_over_micro_batches(
    forward_pass_of_token: np.ndarray,
    how: AuxiliaryAggregation,
    weight: MicroBatchWeight,
    name: str,
    expected: list[tuple[float, ...]],
) -> None:
    given = replace(
        TOKEN,
        forward_pass_of_token=forward_pass_of_token,
        conventions=Conventions(micro_batch_weight=weight),
    )
    context = given.context.of_term(how)
    found = [mistake.weights for mistake in predictions(context) if mistake.name == name]

    denominators = [(1 / weights[weights != 0]).tolist() for weights in found]
    assert denominators == [pytest.approx(of_samples(*each)) for each in expected]


@pytest.mark.parametrize(
    ("how", "weight", "expected"),
    [
        # The second rank has three micro-batches: one with a copy beside sample 3, one with sample
        # 4, and one with only a copy. The first rank's mean is over its one micro-batch, or over
        # three, of which two are padding. Or each micro-batch of a rank counts as many rows as the
        # largest one of the rank: three, or two.
        (SAMPLES, EQUAL, [(12, 6, 48, 18), (36, 18, 48, 18), (12, 6, 48, 36)]),
        (TOKENS, EQUAL, [(6, 6, 24, 18), (18, 18, 24, 18)]),
        (SAMPLES, BY_ROWS, [(12, 6, 32, 24), (36, 18, 32, 24), (12, 6, 32, 48)]),
        (TOKENS, BY_ROWS, [(6, 6, 16, 24), (18, 18, 16, 24)]),
    ],
)
def test_repeated_rows_are_counted_where_they_are(
    how: AuxiliaryAggregation, weight: MicroBatchWeight, expected: list[tuple[float, ...]]
) -> None:
    """The first rank has three samples in one micro-batch, one of which is empty."""
    given = replace(
        TOKEN, forward_pass_of_token=FILLED_UP, conventions=Conventions(micro_batch_weight=weight)
    )
    context = replace(given.context.of_term(how), rows_of_passes=ROWS)
    found = {
        tuple((1 / mistake.weights[mistake.weights != 0]).round(6))
        for mistake in predictions(context)
        if mistake.name == "repeated_rows_averaged"
    }

    assert found == {tuple(of_samples(*each)) for each in expected}


@pytest.mark.parametrize(("steps", "expected"), [((STEP,), [20.0]), ((STEP, STEP), [])])
def test_micro_batch_of_padding_alone_counts_where_it_is_known_to_be_the_steps(
    steps: tuple[Step, ...], expected: list[float]
) -> None:
    """A rank trains ten active tokens in its first of two passes; the second has no sample.

    In a batch of two steps, the second pass may be of the other step.
    """
    whole = np.zeros((1, len(STEP.mask)), np.int32)
    context = Given(mode=Mode.TOKEN_MEAN, steps=steps, forward_pass_of_token=whole).context
    rows = np.array([[STEP.size, 0]], np.int32)
    filled = replace(context.of_term(TOKENS), step_index=0, rows_of_passes=rows)

    found = [each for each in predictions(filled) if each.name == "padding_micro_batches_averaged"]
    denominators = [(1 / each.weights[each.weights != 0]).tolist() for each in found]
    assert denominators == [pytest.approx([one] * 10) for one in expected]


def test_rows_that_fill_up_are_put_into_words() -> None:
    context = replace(TOKEN, forward_pass_of_token=SCATTERED).context.of_term(SAMPLES)
    words = [each.says for each in predictions(context) if each.name == "dummy_rows_averaged"]

    assert words == ["rows that pad a micro-batch to the rank's largest are averaged in as zeros"]


def test_single_rank_with_one_micro_batch_has_no_parts_to_count_in() -> None:
    whole = np.zeros((1, len(STEP.mask)), np.int32)
    names = {mistake.name for mistake in predictions(Given(forward_pass_of_token=whole).context)}

    assert not [name for name in names if "_per_rank" in name or "_per_micro_batch" in name]


def test_mean_over_micro_batches_needs_to_know_them() -> None:
    with pytest.raises(UnknownCutError) as unknown:
        _ = Given().context.of_term(TOKENS).expected

    assert str(unknown.value) == (
        "token_mean of micro-batches is declared, and not in which forward pass every token was;"
        " have the adapter tell its forward passes"
    )


def test_runs_of_a_group_that_is_not_adjacent_are_counted_each() -> None:
    """Groups a, b, b, a of 1, 2, 3 and 4 tokens: three runs for two prompts."""
    step = Step.of(
        [
            Sample(prompt_length=1, loss_mask=[1] * tokens, group=group)
            for tokens, group in ((1, 5), (2, 8), (3, 8), (4, 5))
        ]
    )
    given = Given(mode=Mode.PROMPT_MEAN, steps=(step,))
    words = [m.says for m in predictions(given.context) if m.name == "runs_counted_as_prompts"]

    assert denominators(given, "runs_counted_as_prompts") == [[3.0] + [15.0] * 5 + [12.0] * 4]
    assert words == ["3 runs of adjacent samples are counted instead of 2 prompts"]


def test_micro_batches_are_no_factor_where_ranks_have_unequally_many() -> None:
    """First, the two ranks have two and three micro-batches; then both have three."""
    first = np.repeat([0, 0, 1, -1, -1], [3, 1, 2, 5, 3])
    second = np.array([-1] * 6 + [0] * 4 + [1] + [2] * 3)
    layout = Layout(dp=2, micro_batches="tokens")
    unequal = Given(layout=layout, forward_pass_of_token=np.array([first, second]))
    equal = replace(
        unequal, forward_pass_of_token=np.array([np.where(np.arange(14) == 3, 2, first), second])
    )

    names = [{mistake.name for mistake in predictions(given.context)} for given in (unequal, equal)]
    assert not [name for name in names[0] if "by_micro_batches" in name]
    assert "divided_by_micro_batches_or_prompts" in names[1]


def test_single_token_is_counted_in_the_place_of_samples() -> None:
    step = Step.of([Sample(prompt_length=1, loss_mask=[active], group=0) for active in (0, 1, 0)])
    given = Given(mode=Mode.SAMPLE_MEAN, steps=(step,))

    assert denominators(given, "tokens_counted_as_samples") == [[1.0]]


def test_counter_in_float32_stops_at_two_to_the_24th() -> None:
    """Only the counts are this large, as a step of so many tokens would take a gigabyte."""
    step = Step.of([Sample(prompt_length=1, loss_mask=[1], group=group) for group in range(3)])
    vars(step)["active_tokens"] = np.array([2**24, 1, 1])
    given = Given(mode=Mode.TOKEN_MEAN, steps=(step,))

    assert denominators(given, "counted_in_float32") == [[2.0**24] * 3]


MISALIGNED = "log_probs_misaligned"

ALTERNATING = np.array([1.0, -2.0] * 7)
"""The derivatives of the losses of the 14 tokens of `STEP`, 1 and -2 in turn."""


def of_moved_losses(observed: list[float], given: Given = TOKEN) -> Measurement:
    """The measurement of weights: the gradient of each token of `STEP` over its derivative."""
    term = plain_term(given.context)
    return Measurement(
        terms=[term], observed=np.array(observed), tolerance=1e-6, derivatives=ALTERNATING
    )


@pytest.mark.parametrize(
    ("observed", "words"),
    [
        # Each loss of 1/10 · 1 or 1/10 · -2 is divided by the derivative of the token behind it.
        (
            [0, -0.05, -0.2, 0, 0, 0, 0, -0.05, -0.2, -0.05, -0.2, 0, -0.2, -0.05],
            "1 position later in the row: 2 masked tokens have a weight",
        ),
        # Each loss is divided by the derivative of the token before it.
        (
            [-0.2, 0, 0, 0, 0, 0, -0.2, -0.05, -0.2, 0, 0, -0.05, -0.2, 0],
            "1 position earlier in the row",
        ),
        # Losses move to the token two positions later, which has the same derivative.
        ([0, 0, 0.1, 0, 0, 0, 0, 0, 0.1, 0.1, 0.1, 0, 0, 0.1], "2 positions later in the row"),
        # Only the losses of the fourth sample are moved.
        (
            [0.1, 0.1, 0, 0.1, 0, 0, 0, -0.05, -0.2, -0.05, -0.2, 0.1, 0.1, 0.1],
            "1 position later in the row: 1 masked tokens have a weight",
        ),
    ],
)
def test_losses_on_other_log_probabilities_worked_by_hand(
    observed: list[float], words: str
) -> None:
    measurement = of_moved_losses(observed)
    found = diagnose(Explained(measurement))

    assert found.name == MISALIGNED
    assert words in found.explanation
    explained = Explained(measurement).explanations
    assert [{name.mistake for name in part} for [part] in explained] == [{MISALIGNED}]


@pytest.mark.parametrize(
    "observed",
    [
        [0.1, 0.1, 0, 0.1, 0, 0, 0.1, 0.1, 0.1, 0.1, 0, 0.1, 0.1, 0.1],  # right
        [0, 0.1, 0, 0.1, 0, 0, 0, 0.1, 0.1, 0.1, 0, 0, 0.1, 0.1],  # the first tokens are lost
        [0, 0.1, 0.1, 0.1, 0, 0, 0, 0.1, 0.1, 0.1, 0.1, 0, 0.1, 0.1],  # of other advantages
    ],
)
def test_nothing_is_misaligned_that_is_right_or_lost_or_has_its_own_advantage(
    observed: list[float],
) -> None:
    names = {
        name.mistake
        for parts in Explained(of_moved_losses(observed)).explanations
        for part in parts
        for name in part
    }

    assert MISALIGNED not in names


def test_ratio_of_a_sequence_is_that_of_the_tokens_its_losses_are_moved_to() -> None:
    """GSPO: two tokens have log-ratios of 1/4 and 3/8, and the position behind them one of 0.

    The first token's loss meets the second token, and the second token's the position behind: the
    ratio is exp((3/8 + 0) / 2), and its derivative by the second log-ratio has a factor of 1/2.
    """
    step = step_of([1, 1])
    context = Given(steps=(step,)).context
    tokens = PolicyTokens(
        advantages=np.array([-1.0, -1.0]),
        log_probs=np.zeros(2),
        log_ratios=np.array([0.25, 0.375]),
        rollout_log_ratios=np.zeros(2),
        mask=np.array([True, True]),
        sequence=np.zeros(2, np.int64),
        batch=np.zeros(2, np.int64),
    )
    term = off_policy_term(context, Objective.GSPO, tokens)
    observed = np.array([0.0, 0.5 * np.exp(0.375 / 2)])

    measurement = Measurement(terms=[term], observed=observed, tolerance=1e-6)
    assert diagnose(Explained(measurement)).name == MISALIGNED


def test_logged_share_of_clipped_tokens_looks_at_the_next_tokens_ratios() -> None:
    """In a micro-batch of width 11, 9 of 52 tokens seem clipped, not 22; of width 12, 14 of 51."""
    [case] = [one for one in CORPUS if one.name == "split_groups"]
    [step], layout = case.steps, Layout(cp=2, micro_batches=2, format="bshd")
    context = Given(
        steps=(step,), layout=layout, forward_pass_of_token=passes_in_order(step, layout)
    ).context
    pooled = replace(context, conventions=Conventions(diagnostics=AuxiliaryAggregation.TOKEN_MEAN))
    [term] = logged_terms(pooled, Objective.OFF_POLICY, Metric.CLIP_FRACTION)
    found = [
        float(one.products(term).sum())
        for one in misaligned_by_padding(term, predictions(term.context))
    ]

    assert term.expected == pytest.approx(36 / 103)
    assert found[0] == pytest.approx(23 / 103)
    assert any(one == pytest.approx((9 / 52 + 14 / 51) / 2) for one in found)


def test_mistakes_are_declared_once_and_each_effect_belongs_to_one() -> None:
    path = command.ROOT / "conformance" / "explain" / "catalogue" / "mistakes.toml"
    groups = tomllib.loads(path.read_text("utf-8"))["group"]
    names = [name for group in groups for name in group["says"]]

    assert len(names) == len({*names}) == len(MISTAKES)
    assert all(group.get("at_size", {}).keys() <= group["says"].keys() for group in groups)
