"""Losses and logged numbers that are sums over tokens are traced, each by a column of its own."""

from unittest import mock

import pytest

from adapters.contract import Depth, Job, Layout, Observation, Rank
from adapters.contract.batch.altered import SHADE
from adapters.contract.batch.probed_batch import ProbedBatch
from adapters.contract.objective import Metric
from adapters.native.adapter import NativeAdapter
from conformance.corpus.cases import CORPUS
from conformance.corpus.configurations import CONFIG_CASES
from conformance.plan.checks import CheckSpec, check_spec
from conformance.plan.matrix import MatrixCell, StartupCell
from conformance.ranks.pool import RankPool
from conformance.tracing import tracer
from conformance.tracing.columns import is_traced, traced_metric
from conformance.tracing.finding import traced_job
from conformance.tracing.trace import Trace
from conformance.tracing.traced import TracedJob
from conformance.views.traces import as_text
from reference.aggregation import Mode
from tests.pools import pool_of

[CASE] = [case for case in CORPUS if case.name == "fully_masked_sample"]


pool = pool_of(NativeAdapter, 2)


@pytest.mark.parametrize(
    "check",
    [
        "off_policy.gspo",
        "off_policy.geo_mean",
        "off_policy.kl_cov",
        "off_policy.reinforce_normalised",
        "auxiliary.entropy",
        "auxiliary.kl",
        "auxiliary.combined",
        "other_losses.sft",
        "other_losses.value",
        "metric.loss",
        "metric.entropy",
        "metric.kl",
        "metric.policy_kl",
        "metric.clip_fraction",
        "metric.value_loss",
    ],
)
def test_the_factors_are_the_weight(pool: RankPool, check: str) -> None:
    cell = MatrixCell(
        aggregation=CASE.aggregation(Mode.SAMPLE_MEAN),
        case=CASE,
        layout=Layout(dp=2, micro_batches=2, format="thd"),
        depth=Depth.STEP,
        spec=check_spec(check),
    )
    assert is_traced(cell)

    job = tracer.trace(cell.job, pool, metric=cell.spec.metric)
    assert isinstance(job, TracedJob), job
    found = Trace.of(cell.id, job, None, None)

    assert not job.is_wrong
    assert found.chain is not None
    assert not found.is_pending
    assert found.chain.product / job.derivative == pytest.approx(job.expected, rel=1e-5)


def _cell(check: str) -> MatrixCell:
    return MatrixCell(
        aggregation=CASE.aggregation(Mode.TOKEN_MEAN),
        case=CASE,
        layout=Layout(dp=2, micro_batches=2, format="thd"),
        depth=Depth.STEP,
        spec=check_spec(check),
    )


class GivenTwice(NativeAdapter):
    """Gets twice the returns, like a critic that trains half of the squared error."""

    def observe(self, job: Job, rank: Rank) -> Observation:
        twice = property(lambda batch: batch.raw_advantages)
        with mock.patch.object(ProbedBatch, "returns", twice):
            return super().observe(job, rank)


def test_a_critic_may_be_given_twice_the_returns() -> None:
    cell = _cell("other_losses.value")
    with RankPool(GivenTwice(), None, 2) as pool:
        job = traced_job(cell.job, pool)
    assert isinstance(job, TracedJob), job

    chain = Trace.of(cell.id, job, None, None).chain

    assert chain is not None
    assert chain.operation(chain.factors[0]).stack
    assert chain.graph.paint == 2 * SHADE


def test_a_masked_value_is_traced_to_where_a_mask_leaves_it_out(pool: RankPool) -> None:
    """A multiplication by the mask would keep poison, but `native` selects by the mask."""
    cell = _cell("poison.logged_reference_log_probs")
    assert is_traced(cell)
    assert traced_metric(cell) is Metric.KL

    job = traced_job(cell.job, pool, metric=traced_metric(cell))
    assert isinstance(job, TracedJob), job

    step = CASE.steps[0]
    starts = dict(zip(range(step.size), step.offsets, strict=False))
    assert not step.mask[starts[job.token.sample] + job.token.token]
    assert (job.observed, job.expected) == (0, 0)


def test_a_coefficient_is_traced_to_the_divergence_that_it_follows(pool: RankPool) -> None:
    cell = _cell("metric.kl_coefficient")

    assert is_traced(cell)
    assert traced_metric(cell) is Metric.KL


def test_a_number_that_no_value_of_a_token_adds_to_is_traced_as_a_whole(pool: RankPool) -> None:
    """No painted column adds to a mean ratio: tokens without a painted value have ratios of 1."""
    job = traced_job(_cell("metric.ratio").job, pool, metric=Metric.RATIO)

    assert isinstance(job, TracedJob), job
    trace = Trace.of("metric.ratio", job, None, None)
    assert job.observed == pytest.approx(job.expected, rel=1e-5)
    assert (job.is_wrong, trace.suspects, trace.of_cause.token) == (False, [], None)
    assert as_text(trace)[0].startswith("metric.ratio: the logged number is ")


def test_an_unusual_configuration_is_traced() -> None:
    """One example is a custom reducer, which gives tokens weights that no mode has."""
    [divisor, reducer] = [_configured("divisor_by_default"), _configured("custom_reducer")]

    assert is_traced(divisor)
    assert is_traced(reducer)


def _configured(name: str) -> StartupCell:
    [case] = [case for case in CONFIG_CASES if case.name == name]
    return StartupCell(
        aggregation=CASE.aggregation(Mode.CONSTANT),
        case=CASE,
        layout=Layout(),
        depth=Depth.STEP,
        spec=CheckSpec(check=case.check, name=case.name),
        config_case=case,
    )
