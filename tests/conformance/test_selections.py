"""Losses that select tokens by comparing them: with which others, and how if some are equal."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from adapters.contract import Assumed, Description, Documented, Layout, Observation
from adapters.contract.batch.columns import DERIVATIVES
from adapters.contract.batch.probed_batch import ProbedBatch
from adapters.contract.description import Convention
from adapters.contract.objective import CONSTANTS, SELECTING, Objective
from conformance.findings.errors import UnknownCutError
from conformance.findings.verdict import Verdict
from conformance.judging.conventions import judge_by_conventions
from conformance.judging.outcome import judge
from conformance.judging.weights import Judgement, Trained
from conformance.plan.checks import check_spec
from reference.aggregation import Aggregation, ComparedTokens, Mode
from reference.losses import corrections, policy_losses
from reference.step import Step
from reference.weights import token_weights
from tests.jobs import job_of, step_of

STEP = step_of([1] * 2, [1] * 4, [1] * 4, [1] * 4)
MICRO_BATCH = np.repeat([0, 1], [6, 8])


def derivative(objective: Objective, *, of_micro_batches: bool) -> np.ndarray:
    tokens = ProbedBatch((STEP,), objective).policy_tokens
    compared = replace(tokens, batch=MICRO_BATCH) if of_micro_batches else tokens
    return DERIVATIVES[objective](compared, CONSTANTS)


def judged(
    objective: Objective,
    derivatives: np.ndarray,
    declared: Mapping[str, Convention],
    *,
    step: Step = STEP,
    is_told: bool = True,
) -> Judgement:
    """The judgement on a gradient of right weights times these derivatives, on one rank."""
    spec = check_spec(f"off_policy.{objective}")
    job = job_of(step, layout=Layout(micro_batches=2), mode=Mode.TOKEN_MEAN, objective=objective)
    batch = ProbedBatch(job.steps, objective)
    gradient = np.zeros(batch.probe_size)
    weights = token_weights(step, Aggregation(Mode.TOKEN_MEAN))
    gradient[np.concatenate(batch.responses)] = weights * derivatives
    passes = (MICRO_BATCH[: len(step.mask)].astype(np.int32),) if is_told else ()
    seen = [
        Observation(
            token_weights=batch.split(batch.weights(gradient)),  # type: ignore[arg-type]
            forward_passes=passes,
        )
    ]
    return judge_by_conventions(
        judge(spec), spec, Trained(job, seen, Description(declared=declared))
    )


WITHIN = ComparedTokens.MICRO_BATCH


@pytest.mark.parametrize("objective", SELECTING)
def test_selection_within_micro_batches_is_wrong_unless_it_is_declared(
    objective: Objective,
) -> None:
    within = derivative(objective, of_micro_batches=True)
    over_the_step = derivative(objective, of_micro_batches=False)

    assert judged(objective, over_the_step, {}).verdict is Verdict.CONFORMS
    wrong = judged(objective, within, {})
    assert wrong.verdict is Verdict.MISMATCH
    assert wrong.diagnosis.name == "selected_per_micro_batch"
    documented = {"selected": Documented(WITHIN, "a page")}
    assert judged(objective, within, documented).verdict is Verdict.CONFORMS
    assert judged(objective, over_the_step, documented).verdict is Verdict.MISMATCH


@pytest.mark.parametrize("objective", SELECTING)
def test_either_answer_to_an_assumed_selection_is_advice(objective: Objective) -> None:
    for is_within, answer in ((True, WITHIN), (False, ComparedTokens.STEP)):
        found = derivative(objective, of_micro_batches=is_within)
        judgement = judged(objective, found, {"selected": Assumed(WITHIN)})

        assert judgement.verdict is Verdict.ADVICE
        assert judgement.diagnosis.name == f"selected_{answer}"


def test_selection_within_unknown_micro_batches_is_no_verdict() -> None:
    found = derivative(Objective.M2PO, of_micro_batches=True)

    with pytest.raises(UnknownCutError):
        judged(Objective.M2PO, found, {"selected": Assumed(WITHIN)}, is_told=False)


@pytest.mark.parametrize("objective", SELECTING)
def test_a_step_without_active_tokens_has_nothing_to_compare(objective: Objective) -> None:
    step = step_of([0, 0], [0])

    assert judged(objective, np.zeros(3), {}, step=step).verdict is Verdict.CONFORMS


def test_either_of_two_equal_covariances_may_be_chosen() -> None:
    """The covariances of a step's only two tokens are always equal: (a - b)·(p - q) / 4."""
    step, objective = step_of([1, 1]), Objective.COVARIANCE_PENALISED
    tokens = ProbedBatch((step,), objective).policy_tokens
    plain = policy_losses.importance_sampling(tokens, CONSTANTS)
    penalised = policy_losses.kl_cov(tokens, CONSTANTS)
    first, second = np.array([True, False]), np.array([False, True])

    assert corrections.tied(tokens, CONSTANTS).all()
    for chosen in (first, second):
        found = np.where(chosen, penalised, plain)
        assert judged(objective, found, {}, step=step).verdict is Verdict.CONFORMS
    assert judged(objective, plain * 2, {}, step=step).verdict is Verdict.MISMATCH
