"""AReaL's real code on its FSDP and Megatron engines: what adapters hand over, and read."""

from __future__ import annotations

import json
import os
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from adapters.areal.framework import AREAL
from adapters.areal.fsdp import ArealFsdpAdapter
from adapters.areal.megatron import ArealMegatronAdapter
from adapters.contract import Description, Job
from adapters.contract.description import conventions_of
from adapters.contract.objective import Metric, Objective
from adapters.contract.probed_batch import ProbedBatch
from conformance.findings.verdict import Verdict
from conformance.judging.gradients import judge_advantages, judge_off_policy
from conformance.judging.metrics import judge_logged
from conformance.ranks.messages import Declined
from conformance.ranks.pool import Crashed, Ran, RankPool
from reference.aggregation import Mode
from reference.rounding import weight_bound
from tests import command
from tests.adapters import steps
from tests.adapters.steps import MASKED, released

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.areal,
    pytest.mark.skipif(
        find_spec("lark") is None or find_spec("colorlog") is None,
        reason="the extra areal is not installed",
    ),
]

CLONE = Path(os.environ.get(command.SOURCES, "nowhere")) / "areal"
needs_clone = pytest.mark.skipif(
    not CLONE.exists(), reason=f"{command.SOURCES} names no folder with a clone of AReaL"
)

RELEASE = "pypi:1.0.4"
TWO = "dp2-cp1-mb2-thd"
weights_error = partial(steps.weights_error, conventions=conventions_of(AREAL.conventions))


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    with RankPool(ArealFsdpAdapter(), released(ArealFsdpAdapter(), RELEASE), 4) as pool:
        yield pool


@pytest.fixture(scope="module")
def megatron() -> Iterator[RankPool]:
    pytest.importorskip("megatron.core", reason="the extra megatron is not installed")
    with RankPool(ArealMegatronAdapter(), released(ArealMegatronAdapter(), RELEASE), 4) as pool:
        yield pool


def description() -> Description:
    """What the judge knows of AReaL here: its conventions."""
    return Description(declared=AREAL.conventions)


def job(case: str = MASKED.name, layout: str = TWO, objective: Objective = Objective.POLICY) -> Job:
    """A mean over tokens, as all of AReaL's are."""
    return steps.job(case, Mode.TOKEN_MEAN, layout, objective)


def test_every_option_of_the_loss_is_known(pool: RankPool) -> None:
    assert pool.description.new_options == ()


@pytest.mark.parametrize(
    "layout",
    ["dp1-cp1-mb1-thd", TWO, "dp2-cp1-mbtokens-thd", "dp2-cp2-mb2-thd", "dp4-cp1-mb1-thd"],
)
@pytest.mark.parametrize("case", [MASKED.name, "two_steps"])
def test_weights_are_those_of_a_mean_over_tokens(pool: RankPool, case: str, layout: str) -> None:
    given = job(case, layout)

    assert weights_error(pool.run(given), given) <= weight_bound("float32")


@pytest.mark.parametrize(
    "layout",
    [
        "dp1-cp1-mb1-thd",
        TWO,
        "dp2-cp1-mbtokens-thd",
        "dp1-cp4-mb2-thd",
        "dp2-cp2-mb2-thd",
        "dp2-cp2-mb2-thd+average_in_collective",
        "dp2-cp2-mb2-thd+overlap_grad_reduce",
        "dp2-cp1-tp2-mb2-thd",
        "dp1-cp2-pp2-mb2-thd",
        "dp1-cp1-pp2-mb2-thd+interleaved",
    ],
)
@pytest.mark.parametrize("case", [MASKED.name, "two_steps"])
def test_weights_on_megatron_are_those_of_a_mean_over_tokens(
    megatron: RankPool, case: str, layout: str
) -> None:
    given = job(case, layout)

    assert weights_error(megatron.run(given), given) <= weight_bound("float32")


@pytest.mark.parametrize(
    ("engine", "layout"),
    [("pool", "dp2-cp2-mb2-thd"), ("megatron", TWO), ("megatron", "dp1-cp1-pp2-mb2-thd")],
)
def test_weights_of_a_critic_are_those_of_a_mean_over_tokens(
    engine: str, layout: str, request: pytest.FixtureRequest
) -> None:
    given = job(layout=layout, objective=Objective.VALUE)
    outcome = request.getfixturevalue(engine).run(given)

    assert weights_error(outcome, given) <= weight_bound("float32")


def test_a_critic_on_megatron_compares_values_of_a_slice_with_returns_of_the_row(
    megatron: RankPool,
) -> None:
    """AReaL gathers slices of log-probabilities in the branch of an actor alone."""
    outcome = megatron.run(job(layout="dp1-cp2-mb2-thd", objective=Objective.VALUE))

    assert isinstance(outcome, Crashed), outcome
    assert "must match the size of tensor b" in outcome.message


@pytest.mark.parametrize(
    "objective",
    [
        Objective.OFF_POLICY,
        Objective.DUAL_CLIP,
        Objective.GSPO,
        Objective.SAPO,
        Objective.TIS_TOKEN,
        Objective.SEQUENCE_MASKED,
    ],
)
@pytest.mark.parametrize("engine", ["pool", "megatron"])
def test_off_policy_losses_have_the_derivatives_of_the_reference(
    engine: str, objective: Objective, request: pytest.FixtureRequest
) -> None:
    given = job(layout="dp1-cp2-mb2-thd", objective=objective)
    outcome = request.getfixturevalue(engine).run(given)

    assert isinstance(outcome, Ran), outcome
    judged = judge_off_policy(given, outcome.observations, description())
    assert judged.verdict is Verdict.CONFORMS, judged


ESTIMATORS = (Objective.GROUP_NORMALISED, Objective.GROUP_CENTRED, Objective.LEAVE_ONE_OUT)


@pytest.mark.parametrize("objective", ESTIMATORS)
def test_rewards_are_compared_with_those_of_the_prompt(
    pool: RankPool, objective: Objective
) -> None:
    given = job("split_groups", "dp1-cp2-mb2-thd", objective)
    outcome = pool.run(given)

    assert isinstance(outcome, Ran), outcome
    judged = judge_advantages(given, outcome.observations, description())
    assert judged.verdict is Verdict.CONFORMS, judged


UNEQUAL = {
    "schema": "rl-loss-conformance/case/1",
    "name": "unequal_prompts",
    "steps": [
        {
            "samples": [
                {"prompt_length": 2, "response_length": length, "group": group}
                for length, group in [(3, 0), (2, 0), (4, 1), (1, 1), (2, 1), (4, 2), (2, 2)]
            ]
        }
    ],
}


@needs_clone
@pytest.mark.processes
@pytest.mark.parametrize(
    ("revision", "verdict"),
    [("a315ea97d2f6", Verdict.MISMATCH), ("bbc10f0e95bf", Verdict.CONFORMS)],
    ids=["before", "after"],
)
def test_prompts_of_unequal_size_were_compared_across_their_bounds(
    tmp_path: Path, revision: str, verdict: Verdict
) -> None:
    """AReaL's pull request 1454: rewards were cut into slices of a fixed size."""
    path = tmp_path / "case.json"
    path.write_text(json.dumps(UNEQUAL))
    chosen = "--adapter=areal", f"--source={CLONE}@{revision}", "--layout=dp1-cp1-mb2-thd"
    of_groups = "--checks=advantages", "-k", "group_ and not whitened", f"--case-file={path}"
    process = command.start(tmp_path, *chosen, *of_groups)
    report = command.finish(process, tmp_path, "areal").report

    assert report.summary.verdicts == {verdict: 2}


@needs_clone
@pytest.mark.processes
def test_cispo_is_looked_at_where_a_version_has_it(tmp_path: Path) -> None:
    chosen = "--adapter=areal", f"--source={CLONE}@v2.0.0", "--layout=dp1-cp1-mb2-thd"
    process = command.start(tmp_path, *chosen, "--checks=off_policy", "-k", "cispo and token_mean")
    report = command.finish(process, tmp_path, "areal").report

    assert report.summary.verdicts == {Verdict.CONFORMS: 1}


def test_rejected_tokens_have_no_weight_and_count(pool: RankPool) -> None:
    """21 of 30 active tokens are left, each of weight 1/30."""
    given = job("rejected_tokens", objective=Objective.REJECTION)
    outcome = pool.run(given)

    assert weights_error(outcome, given) <= weight_bound("float32")
    assert isinstance(outcome, Ran), outcome
    assert outcome.observations[0].token_weights[0].max() == pytest.approx(1 / 30)


def test_rejected_fraction_is_averaged_over_micro_batches(pool: RankPool) -> None:
    """By hand: each micro-batch's rejected share of its active tokens, by AReaL's own cut."""
    given = job("rejected_tokens", "dp1-cp1-mb2-thd", Objective.REJECTION)
    outcome = pool.run(given)

    assert isinstance(outcome, Ran), outcome
    [rank] = outcome.observations
    [step] = given.steps
    active, [passes] = step.mask_before_rejection, rank.forward_passes
    shares = [
        (active & ~step.mask)[passes == one].sum() / active[passes == one].sum() for one in (0, 1)
    ]
    assert rank.reported[Metric.REJECTED] == pytest.approx((np.mean(shares),))
    judged = judge_logged(given, outcome.observations, description(), Metric.REJECTED)
    assert judged.diagnosis is not None
    assert judged.diagnosis.name == "denominators_per_micro_batch"


def test_a_pipeline_has_two_micro_batches_of_each_stage(megatron: RankPool) -> None:
    """Their rejected fractions are averaged: 4/10, 1/7, 1/6 and 3/7 of the samples' tokens."""
    layout = "dp1-cp1-pp2-mb2-thd+interleaved"
    outcome = megatron.run(job("rejected_tokens", layout, Objective.REJECTION))

    assert isinstance(outcome, Ran), outcome
    last_stage = outcome.observations[-1]
    assert np.unique(last_stage.forward_passes[0]).tolist() == [0, 1, 2, 3]
    averaged = (4 / 10 + 1 / 7 + 1 / 6 + 3 / 7) / 4
    assert last_stage.reported[Metric.REJECTED] == pytest.approx((averaged,))


@pytest.mark.parametrize("metric", [Metric.POLICY_LOSS, Metric.CLIP_FRACTION, Metric.POLICY_KL])
def test_logged_numbers_are_means_over_the_tokens_of_all_ranks(
    pool: RankPool, metric: Metric
) -> None:
    given = job(layout="dp2-cp1-mbtokens-thd", objective=Objective.OFF_POLICY)
    outcome = pool.run(given)

    assert isinstance(outcome, Ran), outcome
    assert all(rank.reported[metric] for rank in outcome.observations)
    judged = judge_logged(given, outcome.observations, description(), metric)
    assert judged.verdict is Verdict.CONFORMS


def test_samples_are_dealt_by_areals_controller(pool: RankPool) -> None:
    """By length: of eight samples, each rank has four, and those of rank 0 are not the first."""
    given = job("uneven_lengths", "dp2-cp1-mb1-thd")
    outcome = pool.run(given)

    assert isinstance(outcome, Ran), outcome
    sample = ProbedBatch(given.steps).sample
    dealt = [np.unique(sample[rank.forward_passes[0] >= 0]) for rank in outcome.observations]
    assert [len(one) for one in dealt] == [4, 4]
    assert not np.intersect1d(*dealt).size
    assert dealt[0].tolist() != [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("case", "layout", "reason"),
    [
        ("nine_samples", TWO, "divisible by K"),
        ("no_active_token", TWO, "total loss weight must be positive"),
        ("worked_example", "dp1-cp1-mb2-thd", "no 2 micro-batches of 1 samples"),
    ],
)
def test_steps_that_areal_does_not_take_are_declined(
    pool: RankPool, case: str, layout: str, reason: str
) -> None:
    outcome = pool.run(job(case, layout))

    assert isinstance(outcome, Declined), outcome
    assert reason in outcome.message


@pytest.mark.processes
@pytest.mark.parametrize("engine", ["fsdp2", "megatron"])
def test_quick_plan_names_causes_that_are_known(tmp_path: Path, engine: str) -> None:
    chosen = "--adapter=areal", f"--engine={engine}", f"--source={RELEASE}"
    process = command.start(tmp_path, *chosen)
    report = command.finish(process, tmp_path, "areal").report

    advice = {"denominator_mask_original", "mean_of_means"}
    assert {cause.name for cause in report.causes} == {"crashed", *advice}
