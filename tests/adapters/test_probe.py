"""The probe numbers tokens so that their weights can be read back exactly."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from adapters.contract import Rank
from adapters.contract.batch.altered import SELECTED, painting
from adapters.contract.batch.probed_batch import ProbedBatch
from adapters.contract.batch.token_values import ADVANTAGES, ENTROPIES
from adapters.contract.job import Column, Paint
from adapters.contract.objective import CONSTANTS, CORRECTIONS, Objective
from adapters.toolkit import outputs
from adapters.toolkit.probe import CERTAIN_LOGIT, ProbeSeam, Records, selected, token_table
from adapters.toolkit.worlds import cached
from conformance.corpus.strategies import steps
from reference.aggregation import AdvantageUnit, Conventions
from reference.step import Sample, Step
from tests.jobs import step_of


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


def test_advantages_are_signed_powers_of_two() -> None:
    assert (np.abs(np.frexp(ADVANTAGES)[0]) == 0.5).all()
    assert {-1.0, 1.0} <= set(np.sign(ADVANTAGES))


def test_repeated_rows_are_counted_in_the_pass_that_holds_them() -> None:
    """The first step has two samples, the first of which comes twice more in the last pass."""
    two = Step.of([Sample(prompt_length=2, loss_mask=[1, 0], group=0) for _ in range(2)])
    one = step_of([1])
    batch = ProbedBatch((two, one))
    first, second, third = (
        np.concatenate(ids) for ids in zip(batch.prompts, batch.responses, strict=True)
    )
    passes = [np.concatenate([first, second]), third, np.concatenate([first, third[1:], first])]

    assert [rows.tolist() for rows in batch.rows(passes)] == [[2, 0, 2], [0, 1, 0]]


def test_a_clipped_tokens_own_gradient_stands_in_the_place_of_its_weight() -> None:
    step = step_of([1] * 40)
    batch = ProbedBatch((step,), Objective.OFF_POLICY)
    gradient = np.ones(batch.probe_size, np.float32)
    clipped = batch.dloss_dlogprob == 0

    assert clipped.any()
    assert (batch.weights(gradient)[clipped] == 1).all()
    assert batch.weights(gradient)[~clipped] == pytest.approx(1 / batch.dloss_dlogprob[~clipped])


OF_OTHER_RATIOS = (
    Objective.SEQUENCE_ICEPOP,
    Objective.PRODUCT_MASKED,
    Objective.OUTLIER_MASKED,
    Objective.M2PO,
)


@pytest.mark.parametrize("objective", [one for one in CORRECTIONS if one not in OF_OTHER_RATIOS])
def test_corrections_have_ratios_to_the_rollout_policy_on_either_side_of_the_bound(
    objective: Objective,
) -> None:
    step = step_of([1] * 5)
    batch = ProbedBatch((step,), objective)
    [old], [rollout] = batch.old_log_probs, batch.rollout_log_probs
    ratios = np.exp(old - rollout)

    assert ratios.min() < 1 < ratios.max()
    assert (ratios > CONSTANTS.truncation).any()


def test_values_of_response_tokens_are_looked_up_by_token_id() -> None:
    step = Step.of([Sample(prompt_length=1, loss_mask=[1] * length, group=0) for length in (2, 1)])
    values = [np.array([0.5, -1.0]), np.array([2.0])]

    table = token_table(ProbedBatch((step,)), values, fill=9.0)

    assert table.tolist() == [9.0, 9.0, 0.5, -1.0, 9.0, 2.0, 9.0, 9.0]


def test_seam_adds_the_probe_of_labels_that_a_framework_never_sees() -> None:
    seam, labels = ProbeSeam(), torch.tensor([1, 3])
    seam.probe = torch.tensor([0.0, 0.25, 0.5, 4.0])

    log_probs = seam.wrap_log_probs(lambda logits, labels: logits.squeeze(-1) + labels)

    assert log_probs(torch.zeros(2, 1), labels).tolist() == [0.25, 4.0]


def test_seam_adds_log_probabilities_that_a_loss_depends_on_and_not_to_entropies() -> None:
    batch = ProbedBatch((step_of([1] * 3),), Objective.COVARIANCE_CLIPPED)
    seam, labels = ProbeSeam(), torch.from_numpy(batch.responses[0])
    seam.probe, seam.log_prob_table = torch.zeros(batch.probe_size), batch.log_prob_table

    assert seam.log_probs(labels).tolist() == batch.log_probs[0].tolist()
    assert seam.entropies(labels, trained=True).tolist() == [ENTROPIES[i % 4] for i in labels]
    assert (batch.log_probs[0] < 0).all()
    assert (batch.old_log_probs[0] < 0).all()


@pytest.mark.parametrize(("options", "trained"), [({}, True), ({"requires_grad": False}, False)])
def test_seam_adds_entropies_with_a_gradient_unless_a_framework_needs_none(
    options: dict[str, bool], trained: bool
) -> None:
    seam = ProbeSeam()
    seam.probe, seam.predicted = torch.zeros(4, requires_grad=True), torch.tensor([[1, 2]])

    found = seam.wrap_entropies(lambda logits, **_: logits.sum(-1))(torch.zeros(2, 1), **options)

    assert found.tolist() == ENTROPIES[1:3].tolist()
    assert found.requires_grad is trained


def test_what_a_world_keeps_forgets_the_records_of_the_job_before() -> None:
    rank = Rank(index=0, world_size=1)
    first = cached(rank, "worker", lambda: SimpleNamespace(gradients=Records[float]()))
    first.gradients.append(1.0)

    again = cached(rank, "worker", lambda: SimpleNamespace())

    assert again is first
    assert again.gradients.drain() == []


@pytest.mark.parametrize(
    ("form", "logits"),
    [
        ("logits", lambda output: output),
        ("output", lambda output: output.logits),
        ("tuple", lambda output: output[0]),
        ("dict", lambda output: output["logits"]),
    ],
)
def test_logits_of_any_form_have_the_probe_as_log_probability(
    form: str, logits: Callable[[Any], torch.Tensor]
) -> None:
    ids, probe = torch.arange(1, 6), torch.zeros(16, requires_grad=True)

    log_probs = outputs.log_probs_of(logits(outputs.head(form)(ids, probe)), ids)
    log_probs.sum().backward()

    assert log_probs.tolist() == [-CERTAIN_LOGIT] * 4
    assert torch.equal(log_probs, outputs.head("log_probs")(ids, probe))
    assert probe.grad is not None
    assert probe.grad.tolist() == [0, 0] + [1] * 4 + [0] * 10


def test_a_sample_has_one_advantage() -> None:
    conventions = Conventions(advantage_unit=AdvantageUnit.SAMPLE)
    batch = ProbedBatch.make(conventions, (step_of([1, 0, 1], [1]),), Objective.POLICY)

    assert batch.sample_advantages.tolist() == [one[0] for one in batch.advantages]


def test_only_the_painted_tokens_entry_of_a_probe_has_a_gradient() -> None:
    probe = torch.zeros(4, requires_grad=True)
    with painting(Paint(0, 0, Column.REFERENCE_LOG_PROBS, id=2)):
        selected(probe).sum().backward()
        of_reference = selected(torch.zeros(1))

    assert probe.grad is not None
    assert probe.grad.tolist() == [0, 0, SELECTED, 0]
    assert of_reference.tolist() == [0]
