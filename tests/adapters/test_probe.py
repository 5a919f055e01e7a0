"""The probe numbers tokens so that their weights can be read back exactly."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.contract.objective import CONSTANTS, CORRECTIONS, Objective
from adapters.contract.probed_batch import ADVANTAGES, ProbedBatch
from conformance.corpus.strategies import steps
from reference.step import Sample, Step


@given(st.lists(steps(), min_size=1, max_size=3))
def test_tokens_are_numbered_through_and_zero_is_left_for_padding(batch: list[Step]) -> None:
    probed = ProbedBatch(tuple(batch))
    ids = [
        token
        for sequence in zip(probed.prompts, probed.responses, strict=True)
        for part in sequence
        for token in part.tolist()
    ]

    assert ids == list(range(1, probed.probe_size))


@given(st.lists(steps(), min_size=1, max_size=3), st.integers(0, 2**32 - 1))
def test_weights_are_read_back_exactly(batch: list[Step], seed: int) -> None:
    probed = ProbedBatch(tuple(batch))
    size = sum(len(step.mask) for step in batch)
    weights = np.random.default_rng(seed).random(size, np.float32)
    gradient = np.zeros(probed.probe_size, np.float32)
    gradient[np.concatenate(probed.responses)] = -weights * np.concatenate(probed.advantages)

    assert probed.weights(gradient).tolist() == weights.tolist()
    assert [len(part) for part in probed.split(weights)] == [len(step.mask) for step in batch]


def test_forward_passes_are_told_apart_from_a_frameworks_padding() -> None:
    step = Step.of([Sample(prompt_length=2, loss_mask=[1, 0], group=group) for group in range(3)])
    batch = ProbedBatch((step,))
    first, second, third = (
        np.concatenate(ids) for ids in zip(batch.prompts, batch.responses, strict=True)
    )
    padding = np.array([batch.probe_size, 99])
    repeated = np.concatenate([second, padding])

    [held] = batch.forward_passes([np.concatenate([first, [0]]), third, repeated, first])

    assert held.tolist() == [0, 0, 2, 2, 1, 1]


def test_another_number_of_optimizer_steps_is_noticed() -> None:
    steps_of_one_sample = [
        Step.of([Sample(prompt_length=1, loss_mask=[1], group=0)]) for _ in range(2)
    ]
    batch = ProbedBatch(tuple(steps_of_one_sample))

    with pytest.raises(RuntimeError, match="1 optimizer steps were made of 2"):
        batch.weights_of_steps([np.zeros(batch.probe_size, np.float32)])


def test_advantages_are_signed_powers_of_two() -> None:
    assert (np.abs(np.frexp(ADVANTAGES)[0]) == 0.5).all()
    assert {-1.0, 1.0} <= set(np.sign(ADVANTAGES))


def test_repeated_rows_are_counted_in_the_pass_that_holds_them() -> None:
    """Steps of two samples and of one; the first is repeated in the last two passes."""
    two = Step.of([Sample(prompt_length=2, loss_mask=[1, 0], group=0) for _ in range(2)])
    one = Step.of([Sample(prompt_length=1, loss_mask=[1], group=0)])
    batch = ProbedBatch((two, one))
    first, second, third = (
        np.concatenate(ids) for ids in zip(batch.prompts, batch.responses, strict=True)
    )
    passes = [np.concatenate([first, second]), third, np.concatenate([first, third[1:], first])]

    assert [rows.tolist() for rows in batch.rows(passes)] == [[2, 0, 2], [0, 1, 0]]


def test_a_clipped_tokens_own_gradient_stands_in_the_place_of_its_weight() -> None:
    step = Step.of([Sample(prompt_length=1, loss_mask=[1] * 40, group=0)])
    batch = ProbedBatch((step,), Objective.OFF_POLICY)
    gradient = np.ones(batch.probe_size, np.float32)
    clipped = batch.dloss_dlogprob == 0

    assert clipped.any()
    assert (batch.weights(gradient)[clipped] == 1).all()
    assert batch.weights(gradient)[~clipped] == pytest.approx(1 / batch.dloss_dlogprob[~clipped])


@pytest.mark.parametrize("objective", CORRECTIONS)
def test_corrections_have_ratios_to_the_rollout_policy_on_either_side_of_the_bound(
    objective: Objective,
) -> None:
    step = Step.of([Sample(prompt_length=1, loss_mask=[1] * 5, group=0)])
    batch = ProbedBatch((step,), objective)
    [old], [rollout] = batch.old_log_probs, batch.rollout_log_probs
    ratios = np.exp(old - rollout)

    assert ratios.min() < 1 < ratios.max()
    assert (ratios > CONSTANTS.truncation).any()
