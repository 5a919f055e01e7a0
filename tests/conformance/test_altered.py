"""Columns that are poisoned at masked tokens or attached, and what is said of them."""

import math
from dataclasses import replace

import numpy as np
import pytest

from adapters.contract import Job, Layout, Observation
from adapters.contract.batch.altered import Attached
from adapters.contract.batch.probed_batch import ProbedBatch
from adapters.contract.job import OVERFLOWS, Column, Depth, Place, Poison
from adapters.contract.objective import Metric, Objective
from adapters.native.adapter import NativeAdapter
from adapters.toolkit.probe import token_table
from conformance.findings.verdict import Verdict
from conformance.judging.altered import judge_attached, judge_poisoned
from conformance.judging.gradients import judge_router
from conformance.plan.checks import POISONED, CheckSpec, check_spec
from reference.aggregation import AdvantageUnit, Aggregation, Conventions, Mode
from reference.step import Sample, Step

STEP = Step.of(
    [
        Sample(prompt_length=2, loss_mask=[1, 0, 1], group=0),
        Sample(prompt_length=1, loss_mask=[0, 0], group=0),
    ]
)
JOB = Job(
    steps=(STEP,),
    aggregation=Aggregation(Mode.TOKEN_MEAN),
    layout=Layout(),
    depth=Depth.STEP,
    objective=Objective.OFF_POLICY,
)
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


@pytest.mark.parametrize("spec", POISONED, ids=lambda spec: spec.slug)
def test_every_poison_is_in_the_batch_of_its_case(spec: CheckSpec) -> None:
    [case] = spec.cases
    job = replace(JOB, steps=case.steps, objective=spec.objective, poison=spec.poisoned)
    batch, plain = ProbedBatch.of(job), ProbedBatch.of(replace(job, poison=None))
    assert spec.poisoned is not None
    column = spec.poisoned.column
    tables = [
        token_table(one, getattr(one, column)).double().numpy()  # of responses and elsewhere
        for one in (batch, plain)
    ]
    differs = ~np.isclose(*tables, equal_nan=True)
    ids, mask = np.concatenate(batch.responses), np.concatenate(batch.masks)

    assert differs.any()
    match spec.poisoned.place:
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


def test_a_column_that_an_adapter_does_not_read_is_not_judged() -> None:
    unread = replace(observed(0.0), reads_poison=False)
    spec, job = check_spec("poison.returns"), poisoned(Column.RETURNS)
    judged = judge_poisoned(spec, job, [unread], [unread], DESCRIPTION, lambda _: None)

    assert judged.verdict is Verdict.UNSUPPORTED


def test_an_overflow_has_a_name_of_its_own() -> None:
    poison = Poison(column=Column.OLD_LOG_PROBS, place=Place.CLIPPED, values=OVERFLOWS)
    seen = [observed(math.nan)]
    judged = judge_poisoned(
        check_spec("poison.overflowing_ratios"),
        replace(JOB, poison=poison),
        seen,
        [observed(0.0)],
        DESCRIPTION,
        lambda _: seen,
    )

    assert judged.diagnosis is not None
    assert judged.diagnosis.name == "ratios_overflow"


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


def observed(weight: float, logged: float | None = 0.5) -> Observation:
    weights = np.where(STEP.mask, 0.5, 0.0)
    weights[1] = weight
    reported = {Metric.POLICY_LOSS: (logged,)}
    return Observation(token_weights=(weights,), reported=reported, reads_poison=True)


@pytest.mark.parametrize(
    ("weight", "logged", "is_logged", "verdict"),
    [
        (0.0, 0.5, False, Verdict.CONFORMS),
        (math.nan, 0.5, False, Verdict.MISMATCH),
        (math.nan, 0.5, True, Verdict.CONFORMS),
        (0.0, math.nan, True, Verdict.MISMATCH),
        (0.0, None, True, Verdict.MISMATCH),
        (0.0, math.nan, False, Verdict.CONFORMS),
    ],
)
def test_poison_may_change_neither_gradients_nor_logs(
    weight: float, logged: float | None, is_logged: bool, verdict: Verdict
) -> None:
    spec = check_spec(f"poison.{'logged_' if is_logged else ''}old_log_probs")
    seen = [observed(weight, logged)]
    judged = judge_poisoned(
        spec, poisoned(Column.OLD_LOG_PROBS), seen, [observed(0.0)], DESCRIPTION, lambda _: seen
    )

    assert judged.verdict is verdict


@pytest.mark.parametrize("steady", [frozenset({"its/number"}), frozenset()])
def test_poison_may_change_no_logged_number_without_a_formula_either(
    steady: frozenset[str],
) -> None:
    right, wrong = (replace(observed(0.0), logged={"its/number": (of,)}) for of in (0.5, math.nan))
    spec, job = check_spec("poison.logged_old_log_probs"), poisoned(Column.OLD_LOG_PROBS)
    judged = judge_poisoned(spec, job, [wrong], [right], DESCRIPTION, lambda _: [wrong], steady)

    assert judged.verdict is (Verdict.MISMATCH if steady else Verdict.CONFORMS)
    assert not steady or (judged.diagnosis and "`its/number`" in judged.diagnosis.explanation)


def test_what_a_framework_states_nowhere_is_advice() -> None:
    silent = replace(DESCRIPTION, rules={})
    seen = [observed(math.nan)]
    judged = judge_poisoned(
        check_spec("poison.old_log_probs"),
        poisoned(Column.OLD_LOG_PROBS),
        seen,
        [observed(0.0)],
        silent,
        lambda _: seen,
    )

    assert judged.verdict is Verdict.ADVICE
    assert judged.diagnosis is not None
    assert judged.diagnosis.name == "masked_values_multiplied"


def test_a_finite_value_that_changes_a_weight_was_read() -> None:
    seen = [observed(1e24)]
    judged = judge_poisoned(
        check_spec("poison.advantages"),
        poisoned(Column.ADVANTAGES),
        seen,
        [observed(0.0)],
        DESCRIPTION,
        lambda _: seen,
    )

    assert judged.diagnosis is not None
    assert judged.diagnosis.name == "masked_values_read"


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

    assert judge_attached(job, [seen], DESCRIPTION).verdict is verdict


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
    judged = judge_router(job, [seen], DESCRIPTION)

    assert (judged.diagnosis and judged.diagnosis.name) == name
    is_advice = name == "router_losses_per_token"
    expected = Verdict.ADVICE if is_advice else Verdict.MISMATCH
    assert judged.verdict is (Verdict.CONFORMS if name is None else expected)
