"""Columns that are poisoned at masked tokens or attached, and their judgements."""

import math
from dataclasses import replace

import numpy as np
import pytest

from adapters.contract import Job, Observation
from adapters.contract.batch.altered import Attached
from adapters.contract.batch.probed_batch import ProbedBatch
from adapters.contract.job import Column, Place, Poison
from adapters.contract.objective import Objective
from adapters.native.adapter import NativeAdapter
from adapters.toolkit.probe import token_table
from conformance.findings.verdict import Verdict
from conformance.judging.gradients import judge_router
from conformance.judging.laws import judge_attached, judge_same
from conformance.judging.weights import Judgement, Trained
from conformance.plan.checks import ALTERED, CheckSpec, check_spec
from conformance.ranks.pool import Ran
from reference.aggregation import AdvantageUnit, Conventions
from tests.conformance.cells import answered
from tests.jobs import job_of, step_of

STEP = step_of([1, 0, 1], [0, 0], prompts=[2, 1])
JOB = job_of(STEP, objective=Objective.OFF_POLICY)
DESCRIPTION = NativeAdapter().describe()


def poisoned(column: Column, **others: object) -> Job:
    return replace(JOB, poison=Poison(column=column), **others)  # type: ignore[arg-type]


OF_TOKENS = [column for column in Column if column is not Column.REWARDS]


@pytest.mark.parametrize("column", OF_TOKENS)
def test_poison_stands_at_masked_tokens_of_its_column_alone(column: Column) -> None:
    plain, batch = ProbedBatch.of(JOB), ProbedBatch.of(poisoned(column))
    differs = [
        np.concatenate(getattr(batch, other)) != np.concatenate(getattr(plain, other))
        for other in OF_TOKENS
    ]

    assert differs[OF_TOKENS.index(column)].tolist() == (~STEP.mask).tolist()
    assert sum(one.any() for one in differs) == 1


POISONED = [one for one in ALTERED if one.law and one.law.poison]


@pytest.mark.parametrize("spec", POISONED, ids=lambda spec: spec.slug)
def test_every_poison_is_in_the_batch_of_its_case(spec: CheckSpec) -> None:
    [case] = spec.cases
    assert spec.law is not None
    assert spec.law.poison is not None
    job = spec.law.after(replace(JOB, steps=case.steps, objective=spec.objective))
    batch, plain = ProbedBatch.of(job), ProbedBatch.of(replace(job, poison=None))
    column = spec.law.poison.column
    tables = [
        token_table(one, getattr(one, column)).double().numpy()  # tokens of prompts included
        for one in (batch, plain)
    ]
    differs = ~np.isclose(*tables, equal_nan=True)
    ids, mask = np.concatenate(batch.responses), np.concatenate(batch.masks)

    assert differs.any()
    match spec.law.poison.place:
        case Place.OUTSIDE:
            assert not differs[ids].any()
        case Place.CLIPPED:
            assert mask[differs[ids]].all()
        case _:
            assert not differs[ids][mask].any()


def test_model_outputs_are_poisoned_in_their_tables() -> None:
    batch = ProbedBatch.of(poisoned(Column.LOG_PROBS))
    masked = np.concatenate(batch.responses)[~STEP.mask]

    assert not np.isin(batch.log_prob_table[masked], ProbedBatch.of(JOB).log_prob_table).any()
    assert (batch.entropy_table == ProbedBatch.of(JOB).entropy_table).all()


def test_what_is_expected_is_that_of_the_plain_batch() -> None:
    batch = ProbedBatch.of(poisoned(Column.OLD_LOG_PROBS))

    assert np.isfinite(batch.dloss_dlogprob).all()
    assert (batch.dloss_dlogprob == ProbedBatch.of(JOB).dloss_dlogprob).all()


def test_an_advantage_of_a_sample_is_poisoned_if_no_token_has_it() -> None:
    conventions = Conventions(advantage_unit=AdvantageUnit.SAMPLE)
    batch = ProbedBatch.of(poisoned(Column.ADVANTAGES), conventions)
    plain = ProbedBatch.of(JOB, conventions)

    assert (batch.advantages[0] == plain.advantages[0]).all()
    assert (batch.advantages[1] != plain.advantages[1]).all()


def test_a_traced_column_has_the_values_of_the_plain_one() -> None:
    batch = ProbedBatch.of(replace(JOB, attached=Column.ADVANTAGES))

    assert isinstance(batch.advantages, Attached)
    assert not isinstance(batch.old_log_probs, Attached)
    assert all(map(np.array_equal, batch.advantages, ProbedBatch.of(JOB).advantages))


def judged(
    slug: str,
    weight: float = 0.0,
    number: float | None = None,
    *,
    is_read: bool = True,
    **described: object,
) -> Judgement:
    """The judgement on a trainer in which poison changes a masked token's weight and the log.

    Without poison the logged number is the mean of entropies, and so depends on values of tokens.
    """

    def run(job: Job) -> Ran:
        weights = np.where(np.concatenate([step.mask for step in job.steps]), 0.5, 0.0)
        right = float(np.concatenate(ProbedBatch.of(replace(job, poison=None)).entropies).mean())
        logged = right if number is None or job.poison is None else number
        if job.poison is not None:
            weights[np.flatnonzero(weights == 0)[0]] = weight
        seen = Observation(
            token_weights=(weights,), logged={"its/number": (logged,)}, reads_poison=is_read
        )
        return Ran((seen,), 0.0)

    spec = check_spec(slug)
    assert spec.law is not None
    job = spec.law.after(replace(JOB, objective=spec.objective))
    return judge_same(spec, job, run(job), answered(run, **described))


def test_a_column_that_an_adapter_does_not_read_is_not_judged() -> None:
    assert judged("poison.returns", math.nan, is_read=False).verdict is Verdict.UNSUPPORTED


@pytest.mark.parametrize(
    ("weight", "number", "slug", "verdict"),
    [
        (0.0, None, "poison.old_log_probs", Verdict.CONFORMS),
        (math.nan, None, "poison.old_log_probs", Verdict.MISMATCH),
        (math.nan, None, "poison.logged_old_log_probs", Verdict.CONFORMS),
        (0.0, math.nan, "poison.logged_old_log_probs", Verdict.MISMATCH),
        (0.0, math.nan, "poison.old_log_probs", Verdict.CONFORMS),
    ],
)
def test_poison_may_change_neither_gradients_nor_logs(
    weight: float, number: float | None, slug: str, verdict: Verdict
) -> None:
    assert judged(slug, weight, number).verdict is verdict


def test_a_number_that_poison_changes_is_told_before_and_after() -> None:
    judgement = judged("poison.logged_old_log_probs", number=math.nan)

    assert judgement.diagnosis is not None
    assert judgement.diagnosis.explanation.startswith("`its/number` changes from ")
    assert "to nan when old_log_probs of masked tokens are nan, " in judgement.diagnosis.explanation


@pytest.mark.parametrize(
    ("slug", "weight", "name"),
    [
        ("poison.old_log_probs", math.nan, "masked_values_multiplied"),
        ("poison.advantages", 1e24, "masked_values_read"),
        ("poison.overflowing_ratios", math.nan, "ratios_overflow"),
    ],
)
def test_a_finite_value_that_changes_a_weight_was_read(slug: str, weight: float, name: str) -> None:
    judgement = judged(slug, weight)

    assert judgement.diagnosis is not None
    assert judgement.diagnosis.name == name


def test_what_a_framework_states_nowhere_is_advice() -> None:
    judgement = judged("poison.old_log_probs", math.nan, rules={})

    assert judgement.verdict is Verdict.ADVICE
    assert judgement.diagnosis is not None
    assert judgement.diagnosis.name == "masked_values_multiplied"


@pytest.mark.parametrize(
    ("gradient", "verdict"),
    [
        (np.zeros(8, np.float32), Verdict.CONFORMS),
        (np.eye(1, 8, dtype=np.float32)[0], Verdict.MISMATCH),
        (None, Verdict.UNSUPPORTED),
    ],
)
def test_a_traced_column_gets_no_gradient(gradient: np.ndarray | None, verdict: Verdict) -> None:
    job = replace(JOB, attached=Column.OLD_LOG_PROBS)
    seen = Observation(token_weights=(), attached_gradient=gradient)

    assert judge_attached(job, Ran((seen,), 0.0), DESCRIPTION).verdict is verdict


@pytest.mark.parametrize(
    ("coefficient", "routed", "name"),
    [
        (1.0, 0, None),
        (1.0, 8, None),
        (8.0, 8, "router_losses_not_divided"),
        (8 / 5, 8, "router_losses_per_token"),
        (0.0, 0, "nothing_reported"),
        (0.7, 0, "unexplained"),
    ],
)
def test_router_losses_have_their_coefficient(
    coefficient: float, routed: int, name: str | None
) -> None:
    job = replace(JOB, objective=Objective.ROUTER)
    seen = Observation(
        token_weights=(), own_losses={"load_balancing": (coefficient,)}, routed=routed
    )
    judged = judge_router(Trained(job, [seen], DESCRIPTION))

    assert (judged.diagnosis and judged.diagnosis.name) == name
    is_advice = name == "router_losses_per_token"
    expected = Verdict.ADVICE if is_advice else Verdict.MISMATCH
    assert judged.verdict is (Verdict.CONFORMS if name is None else expected)
