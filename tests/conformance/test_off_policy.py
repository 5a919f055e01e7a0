"""Wrong derivatives of policy losses, at ratios other than 1, are not reported as wrong weights."""

from dataclasses import replace

import numpy as np
import pytest

from adapters.contract import Description, Job, Layout, Observation
from adapters.contract.batch.probed_batch import ProbedBatch
from adapters.contract.batch.sequences import PADDING_ID
from adapters.contract.objective import (
    CONSTANTS,
    NORMALISED,
    OFF_POLICY,
    ONE_ADVANTAGE,
    SELECTING,
    Objective,
)
from conformance.corpus.cases import CORPUS
from conformance.expected.placement import TokenPlacement
from conformance.explain.catalogue.losses import wrong_derivatives, wrong_value_derivatives
from conformance.explain.catalogue.mistake import MISTAKES, Kind
from conformance.findings.verdict import Verdict
from conformance.judging.gradients import judge_off_policy
from conformance.judging.weights import Judgement, Trained
from reference.aggregation import Aggregation, Mode
from reference.losses import policy_losses
from reference.weights import token_weights
from tests.jobs import job_of

[CASE] = [case for case in CORPUS if case.name == "fully_masked_sample"]
[STEP] = CASE.steps
SAMPLE = ProbedBatch((STEP,)).sample
CUT = TokenPlacement(
    dp_rank=SAMPLE // 4, cp_rank=np.arange(len(SAMPLE)) % 2, micro_batch=SAMPLE % 4 // 2
)
"""Two data-parallel ranks of two slices, each with two micro-batches of two samples."""

SLICED = replace(CUT, dp_rank=0 * SAMPLE, micro_batch=0 * SAMPLE)
"""One micro-batch, cut into two slices."""


def placement(objective: Objective) -> TokenPlacement:
    return CUT if objective in SELECTING + NORMALISED else SLICED


def job(objective: Objective, cp: int = 1) -> Job:
    is_cut = cp > 1 and objective in SELECTING + NORMALISED
    layout = Layout(dp=2, cp=2, micro_batches=2) if is_cut else Layout(cp=cp)
    return job_of(STEP, layout=layout, objective=objective)


def judged(of: Job, gradient: np.ndarray) -> Judgement:
    """The judgement on a gradient of tokens, [tokens]; each rank holds its part of it."""
    batch = ProbedBatch(of.steps, of.objective)
    of_ids = np.zeros(batch.probe_size, np.float64)
    of_ids[np.concatenate(batch.responses)] = gradient
    cut = placement(of.objective) if of.layout.cp > 1 else replace(SLICED, cp_rank=0 * SAMPLE)
    holders = cut.dp_rank * of.layout.cp + cut.cp_rank
    observations = [
        Observation(
            token_weights=batch.split(batch.weights(of_ids)),  # type: ignore[arg-type]
            forward_passes=(np.where(holders == rank, cut.micro_batch, -1).astype(np.int32),),
        )
        for rank in range(of.layout.world_size)
    ]
    return judge_off_policy(Trained(of, observations, Description()))


def weights() -> np.ndarray:
    return token_weights(STEP, Aggregation(Mode.TOKEN_MEAN))


def right(objective: Objective) -> np.ndarray:
    return weights() * ProbedBatch((STEP,), objective).dloss_dlogprob


@pytest.mark.parametrize("objective", OFF_POLICY)
def test_the_formulas_derivative_conforms(objective: Objective) -> None:
    judgement = judged(job(objective), right(objective))

    assert judgement.verdict is Verdict.CONFORMS
    assert judgement.error == pytest.approx(0, abs=1e-15)


@pytest.mark.parametrize("objective", OFF_POLICY)
def test_step_has_clipped_tokens_and_others_of_either_sign(objective: Objective) -> None:
    """Without such tokens, a mistake in clipping could not be seen."""
    tokens = ProbedBatch((STEP,), objective).policy_tokens
    clipped = policy_losses.clipped(tokens.ratios, tokens, CONSTANTS)[STEP.mask]
    positive = tokens.advantages[STEP.mask] > 0

    for sign in (positive, ~positive):
        alike = objective in ONE_ADVANTAGE or objective is Objective.M2PO  # M2PO's ratios are 1
        assert {*clipped[sign]} == {True, False} or alike


READ_OFF = [name for name, mistake in MISTAKES.items() if mistake.is_read_off]

WRONG = [
    (objective, {name, *together}, factors)
    for objective in OFF_POLICY
    for name, factors, together in wrong_derivatives(
        objective, ProbedBatch((STEP,), objective).policy_tokens, weights(), placement(objective)
    )
]

VISIBLE = [
    (objective, names, factors)
    for objective, names, factors in WRONG
    if not np.allclose(factors[STEP.mask], right(objective)[STEP.mask] / weights()[STEP.mask])
]


@pytest.mark.parametrize(
    ("objective", "names", "derivative"),
    [
        pytest.param(*each, id=f"{each[0]}-{'-'.join(sorted(each[1]))}-{n}")
        for n, each in enumerate(VISIBLE)
    ],
)
def test_every_wrong_derivative_is_named(
    objective: Objective, names: set[str], derivative: np.ndarray
) -> None:
    """Different operators may have the same result, such as the loss without its option."""
    judgement = judged(job(objective, cp=2), weights() * derivative)
    alike = {
        name
        for one, several, factors in VISIBLE
        for name in several
        if one is objective and np.allclose(factors[STEP.mask], derivative[STEP.mask])
    }

    assert judgement.verdict is Verdict.MISMATCH
    assert judgement.diagnosis.name in alike
    named = [{name for part in parts for name in part} for parts in judgement.clues.explanations]
    assert {f"policy_loss/{name}" for name in names} <= set().union(*named)
    first, *others = judgement.clues.explanations
    assert set().union(*first) <= {f"policy_loss/{name}" for name in alike}
    inferred = {f"policy_loss/{each}" for each in READ_OFF}  # clipped tokens may look like these
    allowed = inferred | {f"policy_loss/{name}" for name in alike}
    # two mistakes may combine to one factor
    single = [parts[0] for parts in others if len(parts) == 1]
    assert allowed.issuperset(each for part in single for each in part)


def test_every_mistake_of_a_loss_is_visible_in_one() -> None:
    of_critics = wrong_value_derivatives(ProbedBatch((STEP,), Objective.VALUE_CLIPPED).value_tokens)
    of_policies = set().union(*(names for _, names, _ in VISIBLE))

    assert of_policies | {name for name, _ in of_critics} == {
        name for name, mistake in MISTAKES.items() if mistake.kind is Kind.DERIVATIVE
    }


@pytest.mark.parametrize("objective", OFF_POLICY)
def test_wrong_weights_are_found_under_a_right_derivative(objective: Objective) -> None:
    judgement = judged(job(objective), right(objective) * 23)

    assert judgement.diagnosis.name == "not_divided"


def test_factor_and_wrong_derivative_are_both_found() -> None:
    """The gradient is twice that of the unclipped loss, on two context-parallel ranks."""
    unclipped = replace(CONSTANTS, clip_low=np.inf, clip_high=np.inf)
    tokens = ProbedBatch((STEP,), Objective.OFF_POLICY).policy_tokens
    gradient = 2 * weights() * policy_losses.ppo(tokens, unclipped)

    judgement = judged(job(Objective.OFF_POLICY, cp=2), gradient)

    [[first, second]] = judgement.clues.explanations
    assert "policy_loss/multiplied_by_cp" in first
    assert second == ["policy_loss/clipping_left_out"]


def test_gradient_of_a_clipped_token_is_no_mistake_in_weights() -> None:
    """One clipped token has half of its unclipped gradient, which no mistake explains."""
    gradient = right(Objective.OFF_POLICY)
    [clipped, *_] = np.flatnonzero((gradient == 0) & STEP.mask)
    gradient[clipped] = 0.5 / 23

    judgement = judged(job(Objective.OFF_POLICY), gradient)

    assert judgement.verdict is Verdict.MISMATCH
    assert judgement.diagnosis.name == "unexplained"


def test_tokens_that_are_lost_are_not_those_that_are_clipped() -> None:
    """All tokens of the first sample are lost; one of them is clipped anyway."""
    gradient = right(Objective.OFF_POLICY)
    gradient[: STEP.response_lengths[0]] = 0

    judgement = judged(job(Objective.OFF_POLICY), gradient)

    assert judgement.diagnosis.name == "samples_lost"


def test_tokens_that_are_clipped_whatever_the_rule_are_not_lost() -> None:
    """Tokens are clipped on both sides, whatever the sign of their advantage."""
    tokens = ProbedBatch((STEP,), Objective.OFF_POLICY).policy_tokens
    of_other_sign = policy_losses.ppo(replace(tokens, advantages=-tokens.advantages), CONSTANTS)
    gradient = np.where(of_other_sign == 0, 0, right(Objective.OFF_POLICY))

    judgement = judged(job(Objective.OFF_POLICY), gradient)

    assert judgement.diagnosis.name == "tokens_clipped"
    assert judgement.diagnosis.also == ["tokens_lost"]


def test_padding_has_no_policy() -> None:
    tokens = ProbedBatch((STEP,), Objective.TIS_SEQUENCE).policy_tokens

    assert PADDING_ID not in np.concatenate(ProbedBatch((STEP,)).responses)
    assert set(tokens.sequence) == set(range(STEP.size))
