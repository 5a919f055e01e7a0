"""Wrong advantages that a framework computes are named, and are not reported as wrong weights."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch

from adapters.contract import Description, Layout, Observation
from adapters.contract.batch.probed_batch import ProbedBatch
from adapters.contract.objective import FROM_REWARDS, Objective
from conformance.comparing.report_file import load
from conformance.corpus.case import Case
from conformance.corpus.cases import CORPUS
from conformance.corpus.rollouts import ROLLOUTS
from conformance.expected.advantages import BatchPlacement, Estimate
from conformance.expected.estimators import ESTIMATORS, estimator_conventions, rollouts_of
from conformance.explain.catalogue.advantages import values_of_others, wrong_advantages
from conformance.explain.catalogue.groups import ANSWERS, wrong_groups
from conformance.explain.catalogue.mistake import MISTAKES, Kind
from conformance.findings.verdict import Verdict
from conformance.judging.gradients import judge_advantages
from conformance.judging.weights import Judgement, Trained
from conformance.plan.checks import IRREGULAR, OF_ESTIMATORS
from reference.advantages import Rollouts
from reference.aggregation import (
    DEFAULT_CONVENTIONS,
    Aggregation,
    Compared,
    Conventions,
    Deviation,
    EstimatorConventions,
    Lone,
    Missing,
    Mode,
    Rejected,
    TokenSet,
)
from reference.rounding import ratio_bound
from reference.step import Sample, Step
from reference.weights import token_weights
from tests import command
from tests.declaring import assumed
from tests.jobs import job_of

STEPS = tuple(
    step for case in CORPUS if case.name in ("long_prompts", "split_groups") for step in case.steps
)
"""Two optimizer steps of one batch: one has masks with holes, one has groups split over ranks."""

OF_IRREGULAR = {
    "groups_cut_into_runs",
    "groups_of_a_fixed_size",
    "missing_siblings_counted",
    *(name for names in ANSWERS.values() for name in names.values()),
}
"""Mistakes that only irregular rollouts show."""

LAYOUT = Layout(dp=2, cp=2)
AGGREGATION = Aggregation(Mode.SAMPLE_MEAN)
LENGTHS = [len(step.mask) for step in STEPS]
PLACEMENT = BatchPlacement(
    step=np.repeat([0, 1], LENGTHS),
    dp_rank=np.concatenate(
        [np.repeat(np.arange(step.size) * 2 // step.size, step.response_lengths) for step in STEPS]
    ),
    cp_rank=np.arange(sum(LENGTHS)) // 2 % 2,
)

SKIPS_TOKENS = EstimatorConventions(transitions=TokenSet.ACTIVE, rewarded=TokenSet.RESPONSE)
SKIPPING = Conventions(of_returns=SKIPS_TOKENS, of_values=SKIPS_TOKENS)
"""The conventions by which returns skip masked tokens, although a masked token may have the reward.
"""


def estimate(
    objective: Objective,
    conventions: Conventions = DEFAULT_CONVENTIONS,
    steps: tuple[Step, ...] = STEPS,
) -> Estimate:
    return Estimate(
        objective=objective,
        rollouts=rollouts_of(ProbedBatch(steps, objective)),
        conventions=estimator_conventions(objective, conventions),
    )


def judged(
    objective: Objective,
    advantages: np.ndarray,
    factor: float = 1.0,
    conventions: Conventions = DEFAULT_CONVENTIONS,
) -> Judgement:
    """The judgement on the gradient of right weights times advantages, [tokens of all steps]."""
    job = job_of(*STEPS, aggregation=AGGREGATION, layout=LAYOUT, objective=objective)
    weights = [factor * token_weights(step, AGGREGATION) for step in STEPS]
    split = np.split(advantages, [LENGTHS[0]])
    products = tuple(one * of_step for one, of_step in zip(weights, split, strict=True))
    return judge_advantages(
        Trained(job, observations(products), Description(declared=assumed(conventions)))
    )


def observations(products: tuple[np.ndarray, ...]) -> Sequence[Observation]:
    holder = PLACEMENT.dp_rank * LAYOUT.cp + PLACEMENT.cp_rank  # type: ignore[operator]
    return [
        Observation(
            token_weights=products,
            forward_passes=tuple(
                np.where(of_step == rank, number, -1).astype(np.int32)
                for number, of_step in enumerate(np.split(holder, [LENGTHS[0]]))
            ),
        )
        for rank in range(LAYOUT.world_size)
    ]


@pytest.mark.parametrize("objective", FROM_REWARDS)
def test_the_estimators_advantages_conform(objective: Objective) -> None:
    judgement = judged(objective, estimate(objective).advantages)

    assert judgement.verdict is Verdict.CONFORMS
    assert judgement.error == pytest.approx(0, abs=1e-15)


WRONG = [
    (objective, name, advantages)
    for objective in FROM_REWARDS
    for name, advantages in wrong_advantages(estimate(objective), PLACEMENT)
]


@pytest.mark.parametrize(
    ("objective", "name", "advantages"),
    [pytest.param(*each, id=f"{each[0]}-{each[1]}-{n}") for n, each in enumerate(WRONG)],
)
def test_every_wrong_advantage_is_named_if_it_can_be_seen(
    objective: Objective, name: str, advantages: np.ndarray
) -> None:
    """Some mistakes change no active token's advantage, such as masked tokens' divergences."""
    active = np.concatenate([step.mask for step in STEPS])
    right, judgement = estimate(objective), judged(objective, advantages)

    if np.allclose(advantages[active], right.advantages[active], rtol=1e-5, atol=1e-5):
        assert judgement.verdict is Verdict.CONFORMS
        return
    assert judgement.verdict is Verdict.MISMATCH
    assert name in (judgement.diagnosis.name, *judgement.diagnosis.also)
    [[names], *_] = judgement.clues.explanations
    assert f"policy_loss/{name}" in names


def test_every_mistake_is_seen_somewhere_and_has_its_statement() -> None:
    active = np.concatenate([step.mask for step in STEPS])
    seen = {
        name
        for objective, name, advantages in WRONG
        if not np.allclose(advantages[active], estimate(objective).advantages[active])
    }

    looked_at_below = {"reward_at_a_masked_token_lost", "values_of_other_samples"}
    assert seen | looked_at_below | OF_IRREGULAR == {
        "values_of_other_samples",
        *(name for name, mistake in MISTAKES.items() if mistake.kind is Kind.ADVANTAGE),
    }


@pytest.mark.parametrize(
    ("of_second", "together"),
    [
        # The second sample's last token has the advantage 2 - 0, the token before it 3/4 · 0 - 1 +
        # 3/8 · 2.
        ([-0.25, 2.0], ()),
        # A padding token behind it has 0 - 2, so the last token has 2 + 3/4 · 2 - 0 + 3/8 · -2.
        ([0.03125, 2.75], ("padding_bootstrapped",)),
    ],
)
def test_values_of_another_order_are_read_off_advantages(
    of_second: list[float], together: tuple[str, ...]
) -> None:
    """Two samples, with values 1, 0, 2 and 0, 1, get each other's values.

    The first sample has a third value, that of padding, 2. From its last token back, its advantages
    are 1 - 2, 3/4 · 2 - 1 + 3/8 · -1 and 3/4 · 1 - 0 + 3/8 · 1/8.
    """
    rollouts = Rollouts(
        rewards=np.array([1.0, 2.0]),
        groups=np.zeros(2, np.int64),
        trajectories=np.arange(2),
        rejected=np.zeros(2, np.bool_),
        sample=np.array([0, 0, 0, 1, 1]),
        mask=np.ones(5, np.bool_),
        values=np.array([1.0, 0.0, 2.0, 0.0, 1.0]),
        divergences=np.zeros(5),
    )
    swapped = np.array([0.796875, 0.125, -1.0, *of_second])
    whitened = (swapped - swapped.mean()) / swapped.std(ddof=1)
    of_two = Estimate(
        objective=Objective.GAE, rollouts=rollouts, conventions=EstimatorConventions()
    )
    placement = BatchPlacement(step=np.zeros(5, np.int64))

    fitting = [
        (name, besides)
        for name, found, besides in values_of_others(of_two, placement, whitened)
        if np.allclose(found, whitened)
    ]

    assert fitting == [("values_of_other_samples", together)]


def test_values_of_a_sample_that_cannot_be_seen_are_its_own() -> None:
    rollouts = estimate(Objective.GAE).rollouts
    masked = replace(rollouts, mask=rollouts.mask & (rollouts.sample != 1))
    right = replace(estimate(Objective.GAE), rollouts=masked)
    seen = np.where(masked.mask, right.advantages, np.nan)

    assert not [
        name
        for name, found, _ in values_of_others(right, BatchPlacement(step=PLACEMENT.step), seen)
        if np.allclose(found[masked.mask], seen[masked.mask])
    ]


def test_values_of_another_order_are_not_looked_for_in_a_large_batch() -> None:
    """The number of comparisons grows with the square of the samples."""
    tokens = 2**20
    rollouts = Rollouts(
        rewards=np.ones(2),
        groups=np.zeros(2, np.int64),
        trajectories=np.arange(2),
        rejected=np.zeros(2, np.bool_),
        sample=np.repeat([0, 1], tokens // 2),
        mask=np.ones(tokens, np.bool_),
        values=np.zeros(tokens),
        divergences=np.zeros(tokens),
    )
    large = Estimate(objective=Objective.GAE, rollouts=rollouts, conventions=EstimatorConventions())

    placement = BatchPlacement(step=np.zeros(tokens, np.int64))
    assert not [*values_of_others(large, placement, np.zeros(tokens))]


@pytest.mark.parametrize("objective", [Objective.REINFORCE_PP, Objective.GAE])
def test_reward_that_is_lost_at_a_skipped_token_is_named(objective: Objective) -> None:
    """The last token of the fifth sample of the first step is masked."""
    right = estimate(objective, SKIPPING)
    predicted = wrong_advantages(right, PLACEMENT)
    wrong = next(found for name, found in predicted if name == "reward_at_a_masked_token_lost")

    judgement = judged(objective, wrong, conventions=SKIPPING)

    assert judgement.verdict is Verdict.MISMATCH
    assert judgement.diagnosis.name == "reward_at_a_masked_token_lost"
    lost = right.rollouts.rewards.copy()
    lost[4] = 0.0
    assert np.array_equal(wrong, right.having(rewards=lost))
    assert judged(objective, right.advantages, conventions=SKIPPING).verdict is Verdict.CONFORMS


@pytest.mark.parametrize("objective", FROM_REWARDS)
def test_wrong_weights_are_found_under_right_advantages(objective: Objective) -> None:
    judgement = judged(objective, estimate(objective).advantages, factor=2)

    assert "policy_loss/multiplied_by_cp" in judgement.clues.explanations[0][0]


@pytest.mark.parametrize("objective", FROM_REWARDS)
def test_corpus_has_no_step_in_which_rounding_hides_a_mistake(objective: Objective) -> None:
    """A bound of a thousandth of a typical advantage tells n from n - 1 in some hundred tokens."""
    for case in OF_ESTIMATORS[objective]:
        of_case = estimate(objective, steps=case.steps)
        sizes = np.abs(of_case.advantages)
        bound = ratio_bound("float32", len(sizes)) * (sizes + of_case.rounding)
        assert bound.max() < 2e-3 * np.median(sizes)


def test_every_estimator_is_looked_at() -> None:
    assert OF_ESTIMATORS.keys() == ESTIMATORS.keys() == {*FROM_REWARDS}


@pytest.mark.parametrize(
    ("rounding", "verdict"), [(1e-6, Verdict.CONFORMS), (1e-4, Verdict.MISMATCH)]
)
def test_errors_are_relative_to_what_a_mean_is_subtracted_from(
    rounding: float, verdict: Verdict
) -> None:
    """The first advantage is near 0, so its error relative to itself is many times the bound."""
    right = estimate(Objective.GAE)

    assert judged(Objective.GAE, right.advantages + rounding * right.rounding).verdict is verdict


def test_advantages_are_looked_at_in_a_mode_that_the_framework_has(tmp_path: Path) -> None:
    chosen = ("--layout=dp1-cp1-mb2-thd", "--checks=advantages,rollouts")
    result = command.run(tmp_path, "tests.minimal.mistaken:HavingTokenMeanAlone", *chosen)
    report = load(tmp_path / "reports" / "latest" / "native.json")

    assert result.status == 0, result.output
    assert report.summary.modes == {Mode.TOKEN_MEAN: {Verdict.CONFORMS: 72}}


def test_missing_mode_is_said_to_be_the_only_one_of_advantages(tmp_path: Path) -> None:
    chosen = ("--layout=dp1-cp1-mb2-thd", "--checks=advantages", "-k", "gae")
    result = command.run(tmp_path, "tests.minimal.mistaken:NamingNoMode", *chosen)

    alone = "no mode sample_mean, and advantages are looked at in no other unless --modes"
    assert alone in " ".join(result.output.split())


def test_missing_estimator_is_said_before_a_missing_mode(tmp_path: Path) -> None:
    chosen = ("--layout=dp1-cp1-mb2-thd", "--checks=advantages", "-k", "advantages.gae/")
    result = command.run(tmp_path, "tests.minimal.mistaken:ComputingNoAdvantages", *chosen)

    assert "unsupported: no objective gae (" in result.output


CASES = {case.name: case for case in ROLLOUTS}
OPPOSITE = Conventions(
    compared=Compared.LONGEST_SAMPLES,
    rejected_rewards=Rejected.EXCLUDED,
    lone_reward=Lone.REWARD,
    missing_rewards=Missing.ZERO,
    deviation=Deviation.BIASED,
)
"""The conventions whose answers all differ from the defaults."""


def judged_of_case(right: Estimate, case: Case, advantages: np.ndarray) -> Judgement:
    """The judgement on the gradient of right weights times advantages, [tokens]."""
    [step] = case.steps
    job = job_of(step, aggregation=AGGREGATION, layout=Layout(), objective=right.objective)
    seen = Observation(
        token_weights=(token_weights(step, AGGREGATION) * advantages,),
        forward_passes=(np.zeros(len(step.mask), np.int32),),
    )
    by = OPPOSITE if right.conventions.lone is Lone.REWARD else DEFAULT_CONVENTIONS
    return judge_advantages(Trained(job, [seen], Description(declared=assumed(by))))


def placement(case: Case) -> BatchPlacement:
    return BatchPlacement(step=np.zeros(len(case.steps[0].mask), np.int64))


def looked_at() -> Iterator[tuple[Estimate, Case]]:
    for objective, conventions in product(IRREGULAR, (DEFAULT_CONVENTIONS, OPPOSITE)):
        for case in IRREGULAR[objective]:
            yield estimate(objective, conventions, case.steps), case


PAIRS = [
    pytest.param(right, case, id=f"{right.objective}-{case.name}-{right.conventions.lone}")
    for right, case in looked_at()
]


@pytest.mark.parametrize(("right", "case"), PAIRS)
def test_advantages_of_irregular_rollouts_conform(right: Estimate, case: Case) -> None:
    assert judged_of_case(right, case, right.advantages).verdict is Verdict.CONFORMS


@pytest.mark.parametrize(("right", "case"), PAIRS)
def test_every_wrong_advantage_is_named_of_irregular_rollouts(right: Estimate, case: Case) -> None:
    active = case.steps[0].mask
    bound = 2 * ratio_bound("float32", len(active)) * (np.abs(right.advantages) + right.rounding)
    for name, found in wrong_groups(right, placement(case)):
        judgement = judged_of_case(right, case, found)
        if (np.abs(found - right.advantages) <= bound)[active].all():
            continue
        assert judgement.verdict is Verdict.MISMATCH, name
        [[names], *_] = judgement.clues.explanations
        assert f"policy_loss/{name}" in names


def test_every_mistake_is_seen_in_some_case() -> None:
    unseen = set(OF_IRREGULAR)
    for right, case in looked_at():
        for name, found in wrong_groups(right, placement(case)):
            if name in unseen and judged_of_case(right, case, found).verdict is Verdict.MISMATCH:
                unseen.remove(name)

    assert not unseen


def by_squares(rewards: torch.Tensor) -> torch.Tensor:
    """The variance of float32 numbers, from the mean of squares minus the square of the mean."""
    n = len(rewards)
    biased = (rewards**2).sum() / n - (rewards.sum() / n) ** 2
    return (biased * (n / (n - 1))).clamp(min=0)


@pytest.mark.parametrize(
    ("objective", "name"),
    [
        (Objective.GROUP_NORMALISED, "large_rewards"),
        (Objective.OTHERS_NORMALISED, "large_rewards"),
        (Objective.OTHERS_NORMALISED, "equal_rewards"),
    ],
)
def test_variance_that_float32_loses_is_named(objective: Objective, name: str) -> None:
    case = CASES[name]
    right = estimate(objective, steps=case.steps)
    rewards, groups = torch.from_numpy(right.rollouts.rewards).float(), right.rollouts.groups
    found = []
    for index, group in enumerate(groups):
        members = np.flatnonzero(groups == group)
        if objective is Objective.OTHERS_NORMALISED:
            members = members[members != index]
        spread = float(by_squares(rewards[members]).sqrt())
        centred = float(rewards[index] - rewards[members].mean())
        is_divided = spread > 0 or objective is Objective.GROUP_NORMALISED
        found.append(centred / (spread + 1e-6) if is_divided else centred)

    judgement = judged_of_case(right, case, np.array(found)[right.rollouts.sample])

    assert judgement.verdict is Verdict.MISMATCH
    assert judgement.diagnosis.name == "difference_of_squares"


@pytest.mark.parametrize(("right", "case"), PAIRS)
def test_float32_statistics_are_within_the_bound(right: Estimate, case: Case) -> None:
    """Advantages from float32 means and standard deviations of torch conform."""
    rewards, peers = torch.from_numpy(right.peers.rewards).float(), right.peers
    found = []
    for index in range(len(rewards)):
        group = peers.counted & (peers.groups == peers.groups[index])
        others = group & (np.arange(len(group)) != peers.entry[index])
        found.append(by_torch(right, rewards[index], rewards[group], rewards[others]))
    advantages = np.where(peers.missing, 0.0, found)[right.rollouts.sample]
    if right.objective is Objective.REINFORCE_PP_BASELINE:
        return

    assert judged_of_case(right, case, advantages).verdict is Verdict.CONFORMS


def deviation(rewards: torch.Tensor, conventions: EstimatorConventions) -> torch.Tensor:
    """The standard deviation of rewards."""
    if len(rewards) == 1:
        return torch.tensor(0.0)
    return rewards.std(correction=int(conventions.deviation is Deviation.UNBIASED))


def by_torch(
    right: Estimate, reward: torch.Tensor, group: torch.Tensor, others: torch.Tensor
) -> float:
    """The advantage of a reward, computed by torch in float32."""
    if not len(others):
        return float(reward) if right.conventions.lone is Lone.REWARD else 0.0
    epsilon = right.conventions.std_epsilon
    match right.objective:
        case Objective.GROUP_NORMALISED:
            spread = deviation(group, right.conventions)
            return float((reward - group.mean()) / (spread + epsilon))
        case Objective.MEAN_NORMALISED:
            return float((reward - group.mean()) / (group.mean() + epsilon))
        case Objective.LEAVE_ONE_OUT:
            return float(reward - others.mean())
        case Objective.OTHERS_NORMALISED:
            spread = deviation(others, right.conventions)
            centred = reward - others.mean()
            return float(centred / (spread + epsilon) if spread > 0 else centred)
    return float(reward - group.mean())


def test_a_gradient_where_all_advantages_are_0_is_no_fault_of_ours() -> None:
    samples = [Sample(prompt_length=1, loss_mask=[1], group=0, reward=0.5) for _ in range(2)]
    equal = Case(name="equal", catches="", steps=(Step.of(samples),))

    judgement = judged_of_case(
        estimate(Objective.GROUP_CENTRED, steps=equal.steps), equal, np.array([0.25, 0.75])
    )

    assert judgement.verdict is Verdict.MISMATCH
    assert judgement.diagnosis.name == "unexplained"


@pytest.mark.parametrize("objective", [*IRREGULAR])
def test_no_irregular_rollouts_hide_a_mistake_by_rounding(
    objective: Objective,
) -> None:
    """The bound is small relative to a typical advantage, but less so for large rewards."""
    for case in IRREGULAR[objective]:
        of_case = estimate(objective, steps=case.steps)
        sizes = np.abs(of_case.advantages)
        if case.name == "groups_of_one":  # all advantages are 0
            continue
        bound = ratio_bound("float32", len(sizes)) * (sizes + of_case.rounding)
        typical = np.median(bound) / np.median(sizes[sizes > 0])
        assert typical < (1e-1 if case.name == "large_rewards" else 1e-3)


def test_irregular_cases_are_looked_at_besides_the_regular_ones() -> None:
    assert IRREGULAR.keys() <= OF_ESTIMATORS.keys()
    assert not [case for cases in OF_ESTIMATORS.values() for case in cases if case in ROLLOUTS]
