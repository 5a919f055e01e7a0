"""Every loss and logged number that is a sum over tokens is traced, by its own column."""

from collections.abc import Iterator

import pytest

from adapters.contract import Depth, Layout
from adapters.native.adapter import NativeAdapter
from conformance.corpus.cases import CORPUS
from conformance.corpus.configurations import CONFIG_CASES
from conformance.plan.checks import CheckSpec, check_spec
from conformance.plan.matrix import MatrixCell, StartupCell
from conformance.ranks.pool import RankPool
from conformance.tracing import tracer
from conformance.tracing.columns import is_traced
from conformance.tracing.trace import Trace
from reference.aggregation import Mode

[CASE] = [case for case in CORPUS if case.name == "fully_masked_sample"]


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    with RankPool(NativeAdapter(), None, 2) as pool:
        yield pool


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
    assert isinstance(job, tracer.TracedJob), job
    found = Trace.of(cell.id, job, None, None)

    assert not job.is_wrong
    assert found.chain is not None
    assert not found.is_pending
    assert found.chain.product / job.derivative == pytest.approx(job.expected, rel=1e-5)


@pytest.mark.parametrize(
    ("name", "expected"), [("divisor_by_default", True), ("custom_reducer", False)]
)
def test_an_unusual_configuration_is_traced_unless_no_mode_has_its_weights(
    name: str, expected: bool
) -> None:
    [case] = [case for case in CONFIG_CASES if case.name == name]
    cell = StartupCell(
        aggregation=CASE.aggregation(Mode.CONSTANT),
        case=CASE,
        layout=Layout(),
        depth=Depth.STEP,
        spec=CheckSpec(check=case.check, name=case.name),
        config_case=case,
    )

    assert is_traced(cell) is expected
