"""Steps that are trained by the stages of a pipeline."""

from collections.abc import Sequence

import pytest

from adapters.contract import Depth, Description, Job, Layout, Observation
from adapters.contract.objective import Metric, Objective
from adapters.native.adapter import NativeAdapter
from conformance.findings.verdict import Verdict
from conformance.judging.gradients import judge_combined
from conformance.judging.metrics import judge_logged
from conformance.judging.weights import Trained, judge_weights
from conformance.ranks.pool import RankPool
from conformance.runs.check import _missing
from conformance.views.worked_step import layout_words
from reference.aggregation import Mode
from tests.conformance.cells import CASES, cell
from tests.jobs import job_of
from tests.mutants.pipelines import PIPELINES
from tests.pools import pool_of, trained

CASE = CASES["fully_masked_sample"]

LAYOUTS = (
    Layout(pp=2, micro_batches=2, format="thd"),
    Layout(dp=2, pp=2, micro_batches="uneven"),
    Layout(cp=2, pp=2, micro_batches=2, format="thd"),
    Layout(pp=4),
)

pool = pool_of(NativeAdapter, 4)


def job(layout: Layout, objective: Objective = Objective.POLICY) -> Job:
    return job_of(
        *CASE.steps,
        aggregation=CASE.aggregation(Mode.PROMPT_MEAN),
        layout=layout,
        objective=objective,
    )


def observations(pool: RankPool, what: Job) -> Sequence[Observation]:
    outcome = trained(pool, what)
    return outcome.observations


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_stages_train_what_one_stage_trains(pool: RankPool, layout: Layout) -> None:
    what = job(layout)
    observed = observations(pool, what)

    for judgement in (
        judge_weights(Trained(what, observed, pool.description)),
        judge_logged(Trained(what, observed, pool.description)),
    ):
        assert judgement.verdict is Verdict.CONFORMS
        assert judgement.error is not None


@pytest.mark.parametrize("depth", [Depth.LOSS, Depth.REDUCER])
def test_stages_are_added_up_below_the_whole_step(pool: RankPool, depth: Depth) -> None:
    layout = Layout(dp=2, pp=2)
    what = Job(
        steps=CASE.steps, aggregation=CASE.aggregation(Mode.TOKEN_MEAN), layout=layout, depth=depth
    )

    judgement = judge_weights(Trained(what, observations(pool, what), pool.description))
    assert judgement.verdict is Verdict.CONFORMS


def test_all_terms_are_trained_by_the_last_stage(pool: RankPool) -> None:
    what = job(Layout(pp=2, micro_batches=2, format="thd"), Objective.COMBINED)

    judgement = judge_combined(Trained(what, observations(pool, what), pool.description))
    assert judgement.verdict is Verdict.CONFORMS


def test_last_stage_alone_holds_tokens_and_every_stage_logs(pool: RankPool) -> None:
    first, last = observations(pool, job(Layout(pp=2)))

    assert (first.token_weights, first.forward_passes, first.rows) == ((), (), ())
    assert last.token_weights[0].any()
    assert (last.forward_passes[0] == 0).all()
    assert first.reported == last.reported


@pytest.mark.parametrize(
    ("of_ranks", "name"),
    [
        ([0.0, 1.0], "policy_loss/nothing_reported_by_some_ranks"),
        ([0.0, 0.0], "policy_loss/nothing_reported"),
    ],
)
def test_zero_of_some_ranks_is_told_from_zero_of_all(
    pool: RankPool, of_ranks: list[float], name: str
) -> None:
    what = job(Layout(pp=2))
    [right, _] = [one.reported[Metric.POLICY_LOSS][0] for one in observations(pool, what)]
    assert right
    observed = [
        Observation(token_weights=(), reported={Metric.POLICY_LOSS: (factor * right,)})
        for factor in of_ranks
    ]

    judgement = judge_logged(Trained(what, observed, Description()))
    assert judgement.verdict is Verdict.MISMATCH
    assert [name] in [part for parts in judgement.clues.explanations for part in parts]


def test_framework_without_pipelines_is_not_run_on_them() -> None:
    description = NativeAdapter().describe()

    assert _missing(cell(CASE.name, Layout(pp=2)), description) is None
    without = Description(
        modes=description.modes, depths=description.depths, objectives=description.objectives
    )
    assert _missing(cell(CASE.name, Layout(pp=2)), without) == "no 2 pipeline stages"


def test_stages_are_said_in_words() -> None:
    words = "packed rows"

    assert [layout_words(layout, {}).removesuffix(words) for layout in PIPELINES[:3]] == [
        "2 pipeline stages of one rank, 2 micro-batches on each data-parallel rank, ",
        "4 pipeline stages of one rank, one micro-batch on each data-parallel rank, ",
        "2 pipeline stages of 2 context-parallel ranks, 2 micro-batches on each data-parallel"
        " rank, ",
    ]
