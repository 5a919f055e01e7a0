"""Irregular rollouts: mistakes in comparing their rewards are seen, named, and told apart."""

from collections.abc import Iterator
from itertools import product

import numpy as np
import pytest
import torch

from adapters.contract import Description, Layout, Observation
from adapters.contract.batch.formulas import estimator_conventions
from adapters.contract.batch.probed_batch import ProbedBatch
from adapters.contract.objective import Objective
from conformance.corpus.case import Case
from conformance.corpus.rollouts import ROLLOUTS
from conformance.expected.advantages import BatchPlacement, Estimate
from conformance.explain.catalogue.groups import wrong_groups
from conformance.findings.verdict import Verdict
from conformance.judging.gradients import judge_advantages
from conformance.judging.weights import Judgement
from conformance.plan.checks import IRREGULAR, OF_ESTIMATORS
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
)
from reference.rounding import ratio_bound
from reference.step import Sample, Step
from reference.weights import token_weights
from tests.conformance.given import OF_IRREGULAR
from tests.declaring import assumed
from tests.jobs import job_of

AGGREGATION = Aggregation(Mode.SAMPLE_MEAN)
CASES = {case.name: case for case in ROLLOUTS}
OPPOSITE = Conventions(
    compared=Compared.LONGEST_SAMPLES,
    rejected_rewards=Rejected.EXCLUDED,
    lone_reward=Lone.REWARD,
    missing_rewards=Missing.ZERO,
    deviation=Deviation.BIASED,
)
"""Other answers than the default ones."""


def estimate(
    objective: Objective, case: Case, conventions: Conventions = DEFAULT_CONVENTIONS
) -> Estimate:
    return Estimate(
        objective=objective,
        rollouts=ProbedBatch(case.steps, objective).rollouts,
        conventions=estimator_conventions(objective, conventions),
    )


def judged(right: Estimate, case: Case, advantages: np.ndarray) -> Judgement:
    """The judgement on the gradient of right weights times advantages, [tokens]."""
    [step] = case.steps
    job = job_of(step, aggregation=AGGREGATION, layout=Layout(), objective=right.objective)
    seen = Observation(
        token_weights=(token_weights(step, AGGREGATION) * advantages,),
        forward_passes=(np.zeros(len(step.mask), np.int32),),
    )
    by = OPPOSITE if right.conventions.lone is Lone.REWARD else DEFAULT_CONVENTIONS
    return judge_advantages(job, [seen], Description(declared=assumed(by)))


def placement(case: Case) -> BatchPlacement:
    return BatchPlacement(step=np.zeros(len(case.steps[0].mask), np.int64))


def looked_at() -> Iterator[tuple[Estimate, Case]]:
    for objective, conventions in product(IRREGULAR, (DEFAULT_CONVENTIONS, OPPOSITE)):
        for case in IRREGULAR[objective]:
            yield estimate(objective, case, conventions), case


PAIRS = [
    pytest.param(right, case, id=f"{right.objective}-{case.name}-{right.conventions.lone}")
    for right, case in looked_at()
]


@pytest.mark.parametrize(("right", "case"), PAIRS)
def test_the_estimators_advantages_conform(right: Estimate, case: Case) -> None:
    assert judged(right, case, right.advantages).verdict is Verdict.CONFORMS


@pytest.mark.parametrize(("right", "case"), PAIRS)
def test_every_wrong_advantage_is_named_if_it_can_be_seen(right: Estimate, case: Case) -> None:
    active = case.steps[0].mask
    bound = 2 * ratio_bound("float32", len(active)) * (np.abs(right.advantages) + right.rounding)
    for name, found in wrong_groups(right, placement(case)):
        judgement = judged(right, case, found)
        if (np.abs(found - right.advantages) <= bound)[active].all():
            continue
        assert judgement.verdict is Verdict.MISMATCH, name
        [[names], *_] = judgement.clues.explanations
        assert f"policy_loss/{name}" in names


def test_every_mistake_is_seen_in_some_case() -> None:
    unseen = set(OF_IRREGULAR)
    for right, case in looked_at():
        for name, found in wrong_groups(right, placement(case)):
            if name in unseen and judged(right, case, found).verdict is Verdict.MISMATCH:
                unseen.remove(name)

    assert not unseen


def by_squares(rewards: torch.Tensor) -> torch.Tensor:
    """A variance as the mean of squares minus the square of the mean, of float32 numbers."""
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
    right = estimate(objective, case)
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

    judgement = judged(right, case, np.array(found)[right.rollouts.sample])

    assert judgement.verdict is Verdict.MISMATCH
    assert judgement.diagnosis.name == "difference_of_squares"


@pytest.mark.parametrize(("right", "case"), PAIRS)
def test_float32_statistics_are_within_the_bound(right: Estimate, case: Case) -> None:
    """A mean and a deviation from it, by torch."""
    rewards, peers = torch.from_numpy(right.peers.rewards).float(), right.peers
    found = []
    for index in range(len(rewards)):
        group = peers.counted & (peers.groups == peers.groups[index])
        others = group & (np.arange(len(group)) != peers.entry[index])
        found.append(by_torch(right, rewards[index], rewards[group], rewards[others]))
    advantages = np.where(peers.missing, 0.0, found)[right.rollouts.sample]
    if right.objective is Objective.REINFORCE_PP_BASELINE:
        return

    assert judged(right, case, advantages).verdict is Verdict.CONFORMS


def deviation(rewards: torch.Tensor, conventions: EstimatorConventions) -> torch.Tensor:
    """The standard deviation of rewards."""
    if len(rewards) == 1:
        return torch.tensor(0.0)
    return rewards.std(correction=int(conventions.deviation is Deviation.UNBIASED))


def by_torch(
    right: Estimate, reward: torch.Tensor, group: torch.Tensor, others: torch.Tensor
) -> float:
    """The advantage of a reward."""
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

    judgement = judged(estimate(Objective.GROUP_CENTRED, equal), equal, np.array([0.25, 0.75]))

    assert judgement.verdict is Verdict.MISMATCH
    assert judgement.diagnosis.name == "unexplained"


@pytest.mark.parametrize("objective", [*IRREGULAR])
def test_corpus_has_no_step_in_which_rounding_hides_a_mistake(objective: Objective) -> None:
    """A difference of the squares of large rewards is off by more than itself."""
    for case in IRREGULAR[objective]:
        of_case = estimate(objective, case)
        sizes = np.abs(of_case.advantages)
        if case.name == "groups_of_one":  # all are 0
            continue
        bound = ratio_bound("float32", len(sizes)) * (sizes + of_case.rounding)
        typical = np.median(bound) / np.median(sizes[sizes > 0])
        assert typical < (1e-1 if case.name == "large_rewards" else 1e-3)


def test_irregular_cases_are_looked_at_besides_the_regular_ones() -> None:
    assert IRREGULAR.keys() <= OF_ESTIMATORS.keys()
    assert not [case for cases in OF_ESTIMATORS.values() for case in cases if case in ROLLOUTS]
