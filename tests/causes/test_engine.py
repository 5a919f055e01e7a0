"""An observation of one step is tested against every known mistake, alone and with another."""

from dataclasses import replace

import numpy as np
import pytest

from adapters.contract import Description, Layout, Observation
from adapters.contract.batch.probed_batch import ProbedBatch
from adapters.contract.objective import Metric, Objective
from conformance.corpus.cases import CORPUS
from conformance.expected.loss_terms import quantities
from conformance.expected.term import LossTerm
from conformance.explain.engine import Explained
from conformance.explain.measurement import Measurement
from conformance.findings.cause import Clues
from conformance.findings.verdict import Verdict
from conformance.judging.metrics import judge_logged
from conformance.judging.weights import Trained
from reference.aggregation import (
    Aggregation,
    AuxiliaryAggregation,
    Conventions,
    DenominatorMask,
    MicroBatchWeight,
    Mode,
)
from reference.step import Sample, Step
from reference.weights import token_weights
from tests.conformance import combined
from tests.conformance.given import BY_SAMPLE, FILLED_UP, REJECTED, ROWS, SLICED, Given
from tests.jobs import step_of

EMPTY = Sample(prompt_length=1, loss_mask=[0], group=1)
CP_4 = Given(layout=Layout(cp=4))
BY_TOKENS = Given(mode=Mode.SAMPLE_MEAN)


def clues(given: Given, *of_ranks: np.ndarray) -> Clues:
    found = given.judged(*of_ranks).clues
    assert found is not None
    return found


def explanations(given: Given, *of_ranks: np.ndarray) -> list[list[set[str]]]:
    """The explanations, as names without their prefix ``policy_loss/``."""
    return [
        [{name.removeprefix("policy_loss/") for name in part} for part in parts]
        for parts in clues(given, *of_ranks).explanations
    ]


def test_every_name_of_a_factor_is_kept() -> None:
    given = Given(layout=Layout(dp=2, cp=2))
    [[names], *_] = explanations(given, given.weights * 2)

    assert {"multiplied_by_dp", "multiplied_by_cp"} <= names


def test_what_is_right_excludes_what_would_show_and_nothing_else() -> None:
    found = clues(CP_4, CP_4.weights)

    assert found.explanations == []
    assert "policy_loss/multiplied_by_cp" in found.excluded
    assert "policy_loss/multiplied_by_dp" not in found.excluded


def test_what_is_within_the_bound_of_what_was_observed_is_not_excluded() -> None:
    """Counting one token too many among ten thousand changes a logged mean less than its bound."""
    step = Step.of([Sample(prompt_length=1, loss_mask=[1] * 9999, group=0), EMPTY])
    job = replace(combined.JOB, steps=(step,), aggregation=Aggregation(Mode.TOKEN_MEAN))
    job = replace(job, objective=Objective.POLICY)
    losses = quantities(Metric.POLICY_LOSS, ProbedBatch(job.steps, job.objective))
    logged = float((losses * step.mask).sum() / 10_000)
    observation = Observation(token_weights=(), reported={Metric.POLICY_LOSS: (logged,)})
    judged = judge_logged(Trained(job, [observation], Description()))

    assert judged.verdict is Verdict.CONFORMS
    assert "policy_loss/empty_samples_counted" not in judged.clues.excluded


def right_log(held: list[int]) -> Clues:
    """The clues of a right log of three samples of two tokens; ``held`` has the slice of each."""
    step = step_of([1, 1], [1, 1], [1, 1])
    job = replace(
        combined.JOB,
        steps=(step,),
        layout=Layout(cp=2),
        objective=Objective.POLICY,
        aggregation=Aggregation(Mode.TOKEN_MEAN),
    )
    losses = quantities(Metric.POLICY_LOSS, ProbedBatch(job.steps, job.objective))
    of_ranks = [np.where(np.array(held) == rank, 0, -1).astype(np.int32) for rank in range(2)]
    observations = [
        Observation(
            token_weights=(),
            forward_passes=(passes,),
            reported={Metric.POLICY_LOSS: (float(losses.mean()),)},
        )
        for passes in of_ranks
    ]
    clues = judge_logged(Trained(job, observations, Description())).clues
    assert clues is not None
    return clues


def test_a_right_log_excludes_lost_tokens_only_where_a_slice_cuts_a_response() -> None:
    """If a slice begins between two responses, the token that it loses may be a prompt's."""
    lost = "policy_loss/first_of_slices_left_out"

    assert lost in right_log([0, 0, 0, 1, 1, 1]).excluded
    assert lost not in right_log([0, 0, 0, 0, 1, 1]).excluded


def test_a_log_of_several_optimizer_steps_is_not_judged() -> None:
    logged = {Metric.POLICY_LOSS: (1.0,)}
    observation = Observation(token_weights=(), reported=logged, logs_together=True)

    judged = judge_logged(Trained(combined.JOB, [observation], Description()))

    assert judged.verdict is Verdict.UNSUPPORTED


def test_wrong_weights_exclude_the_mistakes_that_do_not_explain_them() -> None:
    found = clues(CP_4, CP_4.weights * 4)

    assert "policy_loss/divided_by_cp" in found.excluded
    assert "policy_loss/multiplied_by_cp" not in found.excluded


def test_a_factor_may_be_there_twice() -> None:
    """As dp is 1, each factor of cp may also be one of dp · cp."""
    factor = {"multiplied_by_cp", "multiplied_by_dp_cp"}

    assert [factor, factor] in explanations(CP_4, CP_4.weights * 16)


def test_a_factor_may_come_on_top_of_a_wrong_count() -> None:
    """The step has 10 active tokens, and one of its 5 samples has none."""
    [[factor, count]] = explanations(CP_4, CP_4.weights * 4 * 10 / 11)

    assert "multiplied_by_cp" in factor
    assert "empty_samples_counted" in count


def test_tokens_may_be_lost_on_top_of_a_mistake() -> None:
    given = Given(layout=Layout(dp=2), forward_pass_of_token=BY_SAMPLE)
    observed = np.where(np.arange(14) >= 11, 0, given.weights * 2)

    assert any(
        "multiplied_by_dp" in first and "micro_batches_lost" in second
        for first, second in explanations(given, observed)
    )


def test_every_rank_and_step_rules_out_explanations() -> None:
    """All ranks of dp 2 and cp 2 are wrong by a factor of 2; then three of the four are right."""
    given = Given(layout=Layout(dp=2, cp=2), forward_pass_of_token=SLICED)
    weights = given.weights

    alone = explanations(given, weights * 2)
    with_a_right_one = explanations(given, weights * 2, weights, weights, weights)

    assert any("multiplied_by_dp" in part for parts in alone for part in parts)
    assert not any("multiplied_by_dp" in part for parts in with_a_right_one for part in parts)


def test_what_fits_a_mistake_by_chance_may_be_another_with_a_factor() -> None:
    """23 active tokens and an empty sample on two slices, or 6 samples padded to 8: both are 48."""
    [case] = [case for case in CORPUS if case.name == "fully_masked_sample"]
    given = Given(steps=case.steps, layout=Layout(cp=2))
    found = explanations(given, given.weights * 23 / 48)

    assert [{"padding_counted"}] in found
    assert any(
        "divided_by_cp" in parts[0] and "empty_samples_counted" in parts[-1] for parts in found
    )
    assert "policy_loss/divided_by_cp" not in clues(given, given.weights * 23 / 48).excluded


@pytest.mark.parametrize("scale", [1.37, 10 / 17])
def test_what_no_known_mistake_explains_excludes_none(scale: float) -> None:
    assert clues(CP_4, CP_4.weights * scale).excluded == []


def test_empty_samples_may_count_a_token_more_as_all_others_do() -> None:
    """The ten active tokens are in four of the five samples."""
    for counted in (14, 15):
        found = explanations(CP_4, CP_4.weights * 10 / counted)
        assert any("tokens_per_sample_miscounted" in part for [part, *_] in found)


def test_a_term_without_gradient_hides_all_its_other_mistakes() -> None:
    judged = combined.judged(entropy=0.0)

    assert "policy_loss/not_divided" in judged.clues.excluded
    assert not any(name.startswith("entropy/") for name in judged.clues.excluded)


def test_all_terms_may_have_a_factor_on_top_of_another_mistake() -> None:
    size = combined.STEP.size
    of_tokens = token_weights(combined.STEP, Aggregation(Mode.TOKEN_MEAN))
    ratio = of_tokens / np.where(combined.STEP.mask, combined.POLICY, 1)
    judged = combined.judged(size * ratio, entropy=size, kl=size)

    names = [
        "policy_loss/multiplied_by_samples",
        "entropy/multiplied_by_samples",
        "kl/multiplied_by_samples",
        "policy_loss/weights_of_token_mean",
    ]
    assert any(
        len(parts) == len(names)
        and all(name in part for name, part in zip(names, parts, strict=True))
        for parts in judged.clues.explanations
    )


def test_terms_have_mistakes_of_their_own() -> None:
    judged = combined.judged(policy=4.0, entropy=0.0)
    assert judged.verdict is Verdict.MISMATCH

    assert judged.clues.terms == ["policy_loss", "entropy", "kl"]
    assert [
        any("policy_loss/multiplied_by_samples" in part for part in parts)
        and any("entropy/term_without_gradient" in part for part in parts)
        for parts in judged.clues.explanations
    ].count(True) == 1


def test_a_factor_may_come_on_top_of_what_looks_like_another_factor() -> None:
    """One of two samples is empty: if units exclude the empty sample, weights double."""
    step = Step.of([Sample(prompt_length=1, loss_mask=[1, 1, 1], group=0), EMPTY])
    given = Given(mode=Mode.SAMPLE_MEAN, steps=(step,), layout=Layout(cp=4))
    found = explanations(given, given.weights * 2 / 4)

    assert any(
        {"divided_by_cp", "sample_units_excluded"} <= set.union(*parts) and len(parts) == 2
        for parts in found
    )


def filled_up(metric: Metric, how: AuxiliaryAggregation | None) -> LossTerm:
    """A term of a step: the first rank has one micro-batch of three rows, the second has three.

    Two rows of the second rank repeat a sample: one in its first micro-batch, and one alone. Each
    rank is two context-parallel ranks, the first of which has every other token.
    """
    passes = np.where(np.stack([EVEN, ~EVEN]), FILLED_UP[:, np.newaxis], -1).reshape(4, 14)
    given = Given(layout=Layout(dp=2, cp=2), forward_pass_of_token=passes.astype(np.int32))
    context = replace(given.context.of_term(how), rows_of_passes=ROWS)
    return LossTerm(metric=metric, context=context, factors=np.linspace(1, 2, 14))


EVEN = np.arange(14) % 2 == 0
ACTIVE = np.array([1, 1, 0, 1, 0, 0, 1, 1, 1, 1, 0, 1, 1, 1])
BY_TOKENS_OF_MICRO_BATCHES = AuxiliaryAggregation.MICRO_BATCH_TOKEN_MEAN
BY_ROWS_OF_MICRO_BATCHES = AuxiliaryAggregation.MICRO_BATCH_SAMPLE_MEAN

OF_EQUAL_ROWS = 2 * np.repeat([3 * 2, 3 * 1, 1, 3 * 2 * 4, 3 * 2 * 3], [3, 1, 2, 5, 3])
"""The denominators of tokens if the first rank's mean is over one micro-batch of 3 rows, and the
second rank's over three micro-batches of 2 rows each."""


@pytest.mark.parametrize(
    ("how", "denominators", "other"),
    [
        (
            BY_TOKENS_OF_MICRO_BATCHES,
            2 * 3 * np.repeat([3, 4, 3], [6, 5, 3]),
            "padding_micro_batches_averaged",
        ),
        (BY_ROWS_OF_MICRO_BATCHES, OF_EQUAL_ROWS, "dummy_rows_averaged"),
    ],
)
def test_repeated_samples_and_padding_may_both_be_counted(
    how: AuxiliaryAggregation, denominators: np.ndarray, other: str
) -> None:
    """Each rank's mean is over three micro-batches, or over rows as many as its largest has."""
    term = filled_up(Metric.KL, how)
    observed = term.factors * ACTIVE / denominators

    found = Explained(Measurement(terms=[term], observed=observed, tolerance=1e-6))

    both = [{"kl/repeated_rows_averaged"}, {f"kl/{other}"}]
    assert both in found.explanations
    assert found.contradicted.isdisjoint(both[0] | both[1])


def test_each_term_of_a_logged_loss_may_have_two_mistakes() -> None:
    """The entropy lacks one context-parallel rank, and its mean counts a micro-batch of copies."""
    policy = filled_up(Metric.POLICY_LOSS, None)
    entropy = filled_up(Metric.ENTROPY, BY_TOKENS_OF_MICRO_BATCHES)
    kl = filled_up(Metric.KL, BY_ROWS_OF_MICRO_BATCHES)
    of_entropy = EVEN * ACTIVE / (2 * np.repeat([3, 3 * 4, 3 * 3], [6, 5, 3]))
    logged = (policy.products + kl.factors * ACTIVE / OF_EQUAL_ROWS).sum()
    logged += (entropy.factors * of_entropy).sum()

    found = Explained(
        Measurement(
            terms=[policy, entropy, kl],
            observed=np.array([logged]),
            tolerance=1e-12,
            is_per_token=False,
        )
    )

    assert [
        {"entropy/repeated_rows_averaged"},
        {"entropy/not_reduced_over_cp"},
        {"kl/repeated_rows_averaged"},
        {"kl/dummy_rows_averaged"},
    ] in found.explanations


TEN_SAMPLES = Step.of([Sample(prompt_length=1, loss_mask=[1], group=i) for i in range(10)])

IN_FOURS = np.array([[0] * 4 + [1] * 4 + [2] * 2], np.int32)
"""The micro-batches of ten samples, of one token each: four, four and two samples."""

IN_THIRDS = np.repeat([1 / 12, 1 / 6], [8, 2])
"""Weights if the micro-batches of 4, 4 and 2 weigh 1/3 each instead of 0.4, 0.4 and 0.2."""


@pytest.mark.parametrize(
    ("rows", "name"),
    [([4, 4, 2], "denominators_per_micro_batch"), ([4, 4, 4], "repeated_rows_averaged")],
)
def test_reasons_for_the_weight_of_a_short_micro_batch_are_told_apart(
    rows: list[int], name: str
) -> None:
    given = Given(
        steps=(TEN_SAMPLES,),
        forward_pass_of_token=IN_FOURS,
        conventions=Conventions(micro_batch_weight=MicroBatchWeight.BY_SAMPLES),
    )
    context = replace(
        given.context.of_term(BY_TOKENS_OF_MICRO_BATCHES), rows_of_passes=np.array([rows], np.int32)
    )
    term = LossTerm(metric=Metric.ENTROPY, context=context, factors=np.ones(10))
    found = Explained(Measurement(terms=[term], observed=IN_THIRDS, tolerance=1e-6))

    names = set().union(*(part for parts in found.explanations for part in parts))
    assert f"entropy/{name}" in names


def test_inactive_tokens_that_weigh_hide_no_other_mistake() -> None:
    inactive = CP_4.weights == 0
    [[weighing]] = explanations(CP_4, CP_4.weights + inactive)
    of_both = explanations(CP_4, CP_4.weights * 4 + inactive)

    assert weighing == {"inactive_tokens_weigh"}
    assert any("multiplied_by_cp" in factor for _, factor in of_both)
    assert all(parts[0] == weighing for parts in of_both)


def test_what_only_lost_tokens_would_show_is_not_named_besides_them() -> None:
    """As in ms-swift: a count of kept tokens would change only the first sample, which is lost."""
    of_original = Conventions(denominator_mask=DenominatorMask.ORIGINAL)
    given = Given(mode=Mode.SAMPLE_MEAN, steps=(REJECTED,), conventions=of_original)
    observed = given.weights.copy()
    observed[:2] = 0
    lost = explanations(given, observed)
    observed[2] = 0.1

    assert lost
    assert all(len(parts) == 1 for parts in lost)
    assert explanations(given, observed) == [[{"inactive_tokens_weigh"}]]


def test_conditions_are_facts_of_the_step_and_its_cut() -> None:
    cut = Given(layout=Layout(dp=2), forward_pass_of_token=BY_SAMPLE)
    found = clues(cut, cut.weights)

    assert "where a sample has no active token" in found.conditions
    assert "where a rollout has several samples" in found.conditions
    assert "where data-parallel ranks differ in active tokens" in found.conditions
    assert "where tokens are rejected" not in found.conditions


@pytest.mark.parametrize(("scale", "cosine"), [(2.0, 1.0), (0.5, 1.0)])
def test_a_factor_scales_the_learning_rate_and_turns_nothing(scale: float, cosine: float) -> None:
    judged = CP_4.judged(CP_4.weights * scale)

    assert judged.scale == pytest.approx(scale)
    assert judged.cosine == pytest.approx(cosine)


def test_losing_half_of_equal_weights_halves_the_rate_and_turns_by_45_degrees() -> None:
    """Ten equal weights w, five of them lost: o · e = 5 w², |e|² = 10 w², |o| |e| = √50 w²."""
    given = Given()
    active = np.flatnonzero(given.weights)
    observed = given.weights.copy()
    observed[active[5:]] = 0
    judged = given.judged(observed)

    assert judged.scale == pytest.approx(1 / 2)
    assert judged.cosine == pytest.approx(5 / np.sqrt(50))


def test_large_steps_say_what_small_ones_do() -> None:
    """Two samples have five thousand tokens, four thousand of them active, on two slices."""
    step = step_of([1] * 3000 + [0] * 1000, [1] * 1000, groups=[0, 1])
    passes = np.where(np.arange(5000) % 2 == np.arange(2)[:, None], 0, -1).astype(np.int32)
    given = Given(
        mode=Mode.SAMPLE_MEAN, steps=(step,), layout=Layout(cp=2), forward_pass_of_token=passes
    )
    lost = given.weights.copy()
    lost[1] = 0

    assert any("multiplied_by_cp" in part for [part] in explanations(given, given.weights * 2))
    assert any(
        all("multiplied_by_cp" in part for part in parts)
        for parts in explanations(given, given.weights * 4)
    )
    assert any("tokens_lost" in part for [part] in explanations(given, lost))
    assert not any("not_reduced_over_cp" in part for [part] in explanations(given, lost))
    assert "policy_loss/multiplied_by_cp" in clues(given, given.weights).excluded
