"""AReaL's real code on its FSDP and Megatron engines: its inputs and the results."""

import ast
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from adapters.areal.engines import ArealFsdpAdapter, ArealMegatronAdapter
from adapters.contract import Job
from adapters.contract.job import Edit
from adapters.contract.objective import Objective
from adapters.frameworks import LISTED
from conformance.findings.verdict import Verdict
from conformance.ranks.messages import Declined
from conformance.ranks.pool import Crashed, Ran, RankPool
from conformance.ranks.recording.editing import span_of
from conformance.tracing.source import is_at, source_line
from reference.aggregation import Mode
from tests import command
from tests.adapters import steps
from tests.adapters.steps import MASKED
from tests.pools import NEEDS_CLONES, clone, pool_of, released, trained

pytestmark = steps.marks("areal")

RELEASE = LISTED["areal"].source
TWO = "dp2-cp1-mb2-thd"


pool = pool_of(ArealFsdpAdapter, 4, RELEASE)


@pytest.fixture(scope="module")
def megatron() -> Iterator[RankPool]:
    pytest.importorskip("megatron.core", reason="the extra megatron is not installed")
    with RankPool(ArealMegatronAdapter(), released(ArealMegatronAdapter(), RELEASE), 4) as pool:
        yield pool


def job(case: str = MASKED.name, layout: str = TWO, objective: Objective = Objective.POLICY) -> Job:
    """A job of `token_mean`, the only mode of this version of AReaL."""
    return steps.job(case, Mode.TOKEN_MEAN, layout, objective)


def test_a_critic_on_megatron_compares_values_of_a_slice_with_returns_of_the_row(
    megatron: RankPool,
) -> None:
    """AReaL gathers slices only in the branch of an actor, where they are log-probabilities."""
    outcome = megatron.run(job(layout="dp1-cp2-mb2-thd", objective=Objective.VALUE))

    assert isinstance(outcome, Crashed), outcome
    assert "must match the size of tensor b" in outcome.message


def test_a_router_adds_its_losses_to_no_later_job(megatron: RankPool) -> None:
    """Jobs of a world share engines; once they also shared the engine of a mixture of experts."""
    plain = job(layout="dp1-cp1-mb2-thd")
    router = megatron.run(replace(plain, objective=Objective.ROUTER))
    later = megatron.run(plain)

    assert isinstance(router, Ran)
    assert isinstance(later, Ran)
    [weights] = later.observations[0].token_weights
    assert not weights[~plain.steps[0].mask].any()


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


@NEEDS_CLONES
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
    chosen = "--adapter=areal", f"--source={clone('areal')}@{revision}", "--layout=dp1-cp1-mb2-thd"
    of_groups = "--checks=advantages", "-k", "group_ and not whitened", f"--case-file={path}"
    process = command.start(tmp_path, *chosen, *of_groups)
    report = command.finish(process, tmp_path, "areal").report

    assert report.summary.verdicts == {verdict: 2}


@NEEDS_CLONES
@pytest.mark.processes
@pytest.mark.parametrize("engine", ["fsdp2", "megatron"])
def test_cispo_is_looked_at_where_a_version_has_it(tmp_path: Path, engine: str) -> None:
    """CISPO is new in 2.0.0, which on Megatron reads more attributes of mbridge than 1.0.4."""
    source, layout = f"--source={clone('areal')}@v2.0.0", "--layout=dp1-cp1-mb2-thd"
    chosen = "--adapter=areal", f"--engine={engine}", source, layout
    process = command.start(tmp_path, *chosen, "--checks=off_policy", "-k", "cispo and token_mean")
    report = command.finish(process, tmp_path, "areal").report

    assert report.summary.verdicts == {Verdict.CONFORMS: 2}


@NEEDS_CLONES
@pytest.mark.processes
def test_clipped_tokens_are_those_of_the_mask_that_rejection_does_not_narrow(
    tmp_path: Path,
) -> None:
    """AReaL's pull request 1572: 8 of 20 active tokens are clipped, two of them rejected."""
    chosen = "--adapter=areal", f"--source={clone('areal')}@cbff54d645", "--layout=dp1-cp1-mb2-thd"
    of_five = "--checks=rejection", "-k", "rejection.clip_fraction and rejected_of_five"
    process = command.start(tmp_path, *chosen, *of_five, "--modes=token_mean")
    report = command.finish(process, tmp_path, "areal").report

    assert report.summary.verdicts == {Verdict.CONFORMS: 1}


def test_an_edited_step_that_raises_leaves_no_numbers_behind(pool: RankPool) -> None:
    """Otherwise AReaL's trackers raise in every later step of the process."""
    given = job(layout="dp1-cp1-mb2-thd")  # its micro-batches have unequal sizes
    ordinary = trained(pool, given)
    recorded = trained(pool, replace(given, is_recorded=True))
    [tracked, *_] = (
        line
        for operation in recorded.traces[0].operations
        for line in operation.stack
        if line.function == "grpo_loss_fn" and source_line(line).startswith("stats_tracker.stat(")
    )
    [statement, *_] = (
        node
        for node in ast.walk(ast.parse(Path(tracked.file).read_text()))
        if isinstance(node, ast.Expr) and is_at(node, tracked.number)
    )
    raising = Edit(tracked.file, span_of(statement), "1 / 0")

    assert isinstance(pool.run(replace(given, replaced=raising)), Declined)
    for one, later in zip(ordinary.observations, trained(pool, given).observations, strict=True):
        assert one.reported == later.reported


def test_samples_are_dealt_by_areals_controller(pool: RankPool) -> None:
    """Samples are dealt by length: each rank gets four of eight, and rank 0 not the first four."""
    given = job("uneven_lengths", "dp2-cp1-mb1-thd")
    outcome = trained(pool, given)

    dealt = steps.dealt(outcome, given)
    assert [len(one) for one in dealt] == [4, 4]
    assert not np.intersect1d(*dealt).size
    assert dealt[0].tolist() != [0, 1, 2, 3]


def test_areal_itself_refuses_to_cut_one_sample_into_two_micro_batches(pool: RankPool) -> None:
    outcome = pool.run(job("worked_example", "dp1-cp1-mb2-thd"))

    assert isinstance(outcome, Crashed), outcome
    assert outcome.verdict is Verdict.REFUSED
    assert "Number of values 1 is smaller than min_groups 2" in outcome.message
