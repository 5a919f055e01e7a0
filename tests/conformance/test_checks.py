"""The checks of a run, and when they are made."""

from collections import Counter

import pytest

from adapters.contract import Depth
from adapters.contract.objective import Objective
from conformance.corpus.cases import ALL_CASES, CORPUS
from conformance.findings.verdict import Check
from conformance.plan.checks import CHECK_SPECS, check_spec


def test_ids_begin_with_names_of_their_own() -> None:
    slugs = [one.slug for one in CHECK_SPECS]

    assert len(set(slugs)) == len(slugs)
    assert slugs[:2] == ["weights", "metric"]
    assert check_spec("auxiliary.entropy").objective is Objective.ENTROPY


def test_subjects_that_share_a_run_are_next_to_each_other() -> None:
    objectives = [one.objective for one in CHECK_SPECS]
    runs = [b for a, b in zip([None, *objectives], objectives, strict=False) if a is not b]

    assert Counter(runs).most_common(1)[0][1] == 1


@pytest.mark.parametrize("objective", Objective)
def test_every_objective_is_looked_at(objective: Objective) -> None:
    assert any(one.objective is objective for one in CHECK_SPECS)


def test_policy_loss_is_looked_at_on_the_whole_corpus() -> None:
    assert check_spec("weights").cases == CORPUS
    assert check_spec("metric").cases == CORPUS
    assert all(case in ALL_CASES for one in CHECK_SPECS for case in one.cases)


def test_below_the_whole_step_only_losses_are_weighed() -> None:
    assert [one.slug for one in CHECK_SPECS if one.is_seen_at(Depth.REDUCER)] == ["weights"]
    at_loss = [one for one in CHECK_SPECS if one.is_seen_at(Depth.LOSS)]
    assert {one.check for one in at_loss} == {Check.WEIGHTS, Check.OFF_POLICY, Check.AUXILIARY}
    assert not any(one.metric for one in at_loss)
    assert all(one.is_seen_at(Depth.STEP) for one in CHECK_SPECS)
