"""What is looked at, and when."""

from __future__ import annotations

from collections import Counter

import pytest

from adapters.contract import Depth, Place
from adapters.objective import Objective
from conformance.cases import ALL_CASES, CORPUS
from conformance.report import Check
from conformance.subjects import SUBJECTS, Subject, place, subject


def test_ids_begin_with_names_of_their_own() -> None:
    slugs = [one.slug for one in SUBJECTS]

    assert len(set(slugs)) == len(slugs)
    assert slugs[:2] == ["weights", "metric"]
    assert subject("auxiliary.entropy").objective is Objective.ENTROPY


def test_subjects_that_share_a_run_are_next_to_each_other() -> None:
    objectives = [one.objective for one in SUBJECTS]
    runs = [b for a, b in zip([None, *objectives], objectives, strict=False) if a is not b]

    assert Counter(runs).most_common(1)[0][1] == 1


@pytest.mark.parametrize("objective", Objective)
def test_every_objective_is_looked_at(objective: Objective) -> None:
    assert any(one.objective is objective for one in SUBJECTS)


def test_policy_loss_is_looked_at_on_the_whole_corpus() -> None:
    assert subject("weights").cases == CORPUS
    assert subject("metric").cases == CORPUS
    assert all(case in ALL_CASES for one in SUBJECTS for case in one.cases)


def test_below_the_whole_step_only_the_policy_loss_is_weighed() -> None:
    assert [one.slug for one in SUBJECTS if one.is_seen_at(Depth.LOSS)] == ["weights"]
    assert all(one.is_seen_at(Depth.STEP) for one in SUBJECTS)


@pytest.mark.parametrize(
    ("slug", "where"),
    [
        ("weights", Place.POLICY_LOSS),
        ("rejection", Place.POLICY_LOSS),
        ("auxiliary.gspo", Place.POLICY_LOSS),
        ("auxiliary.entropy", Place.TERMS),
        ("auxiliary.together", Place.TERMS),
        ("other_losses.value", Place.OTHER_LOSSES),
        ("sharding", Place.SHARDING),
        ("metric.loss", Place.LOG),
        ("rejection.metric", Place.LOG),
    ],
)
def test_place_to_look_at_is_that_of_what_went_wrong(slug: str, where: Place) -> None:
    assert place(subject(slug)) is where


def test_refused_configurations_are_looked_for_in_validation() -> None:
    assert place(Subject(check=Check.ARGUMENTS, name="divisor_zero")) is Place.ARGUMENTS
