"""OpenRLHF's real code on the real DeepSpeed engine: what its adapter hands over, and reads."""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from adapters.contract import Description
from adapters.contract.conventions import conventions_of
from adapters.contract.objective import Metric, Objective
from adapters.contract.probed_batch import ProbedBatch
from adapters.openrlhf.adapter import CONVENTIONS, OpenRLHFAdapter
from conformance.findings.verdict import Verdict
from conformance.judging.gradients import judge_advantages, judge_off_policy
from conformance.ranks.messages import Declined
from conformance.ranks.pool import Ran, RankPool
from reference.aggregation import Mode
from reference.rounding import weight_bound
from reference.weights import token_weights
from tests import command
from tests.adapters import steps
from tests.adapters.steps import MASKED, job, released
from tests.conformance.test_leftovers import OF_OTHERS, forgotten_memory, names, processes_of
from tests.conformance.test_plugin import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.openrlhf,
    pytest.mark.skipif(find_spec("deepspeed") is None, reason="DeepSpeed is not installed"),
]

RELEASE = "pypi:0.11.2"
weights_error = partial(steps.weights_error, conventions=conventions_of(CONVENTIONS))


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    with RankPool(OpenRLHFAdapter(), released(OpenRLHFAdapter(), RELEASE), 2) as pool:
        yield pool


def description() -> Description:
    """What the judge knows of OpenRLHF here: its conventions."""
    return Description(declared=CONVENTIONS)


@pytest.mark.parametrize(
    "layout",
    [
        "dp2-cp1-mb2-bshd",
        "dp2-cp1-mb2-thd+zero_0",
        "dp2-cp1-mb2-thd+zero_1",
        "dp2-cp1-mb2-thd+zero_3",
        "dp2-cp1-mbtokens-thd+zero_0",
        "dp2-cp1-mbtokens-thd+zero_3",
        "dp2-cp1-mb2-thd+overlap_grad_reduce",
        "dp2-cp1-mb2-thd+two_epochs",
        "dp1-cp2-mb2-thd",
    ],
)
@pytest.mark.parametrize("case", [MASKED.name, "two_steps"])
def test_every_step_of_a_batch_is_a_train_batch_whose_weights_are_right(
    pool: RankPool, case: str, layout: str
) -> None:
    """OpenRLHF shuffles rows, and balances lengths over ranks: both would mix two steps."""
    given = job(case, Mode.SAMPLE_MEAN, layout)

    assert weights_error(pool.run(given), given) <= weight_bound("float32")


@pytest.mark.parametrize("stage", ["", "+zero_1"])
def test_stages_1_and_2_keep_the_last_of_several_backward_passes_alone(
    pool: RankPool, stage: str
) -> None:
    """With micro-batches by tokens each pass is a boundary: DeepSpeed 0.19.6 forgets the others."""
    given = job("odd_groups", layout=f"dp2-cp1-mbtokens-thd{stage}")
    outcome = pool.run(given)

    assert isinstance(outcome, Ran), outcome
    right = token_weights(given.steps[0], given.aggregation)
    for rank in outcome.observations:
        assert rank.token_weights[0] == pytest.approx(np.where(_is_last(outcome), right, 0))


def _is_last(outcome: Ran) -> np.ndarray:
    """Whether each token is in the last forward pass of the rank that has it: [tokens]."""
    passes = [rank.forward_passes[0] for rank in outcome.observations]
    return np.any([of_rank == of_rank.max() for of_rank in passes], axis=0)


def test_ranks_have_whole_samples_and_log_the_same(pool: RankPool) -> None:
    given = job("odd_groups", objective=Objective.COMBINED)
    outcome = pool.run(given)

    assert isinstance(outcome, Ran), outcome
    first, second = outcome.observations
    held = np.stack([rank.forward_passes[0] >= 0 for rank in (first, second)])
    assert (held.sum(axis=0) == 1).all()
    assert first.reported == second.reported
    assert first.reported.keys() == {
        Metric.POLICY_LOSS,
        Metric.CLIP_FRACTION,
        Metric.POLICY_KL,
        Metric.ENTROPY,
        Metric.KL,
        Metric.REWARD,
    }


def test_given_log_probabilities_are_those_of_the_tokens(pool: RankPool) -> None:
    """The mean of log-ratios is logged as what the policy has moved by."""
    given = job("odd_groups", objective=Objective.OFF_POLICY, layout="dp1-cp1-mb1-thd")
    outcome = pool.run(given)

    assert isinstance(outcome, Ran), outcome
    batch = ProbedBatch(given.steps, given.objective)
    old, mask = np.concatenate(batch.old_log_probs), np.concatenate(batch.masks)
    [moved] = outcome.observations[0].reported[Metric.POLICY_KL]
    assert moved == pytest.approx(old[mask].mean(), rel=1e-6)


def test_steps_of_a_batch_are_logged_one_by_one(pool: RankPool) -> None:
    given = job("two_steps", objective=Objective.COMBINED)
    outcome = pool.run(given)

    assert isinstance(outcome, Ran), outcome
    reported = outcome.observations[0].reported
    assert {len(values) for metric, values in reported.items() if metric is not Metric.REWARD} == {
        2
    }


def test_sizes_that_ranks_do_not_divide_are_no_train_batches(pool: RankPool) -> None:
    outcome = pool.run(job("nine_samples"))

    assert isinstance(outcome, Declined)
    assert outcome.verdict == "unsupported"
    assert "train batches are multiples of 2 ranks, 9 samples are none" in outcome.message


@pytest.mark.parametrize(
    "objective", [Objective.TIS_TOKEN, Objective.SEQUENCE_MASKED, Objective.DUAL_CLIP]
)
def test_losses_with_constants_of_their_own_have_right_derivatives(
    pool: RankPool, objective: Objective
) -> None:
    given = job(objective=objective)
    outcome = pool.run(given)

    assert isinstance(outcome, Ran), outcome
    judgement = judge_off_policy(given, outcome.observations, description())
    assert judgement.verdict is Verdict.CONFORMS


def test_gspo_is_a_mean_over_samples(pool: RankPool) -> None:
    given = job(mode=Mode.SAMPLE_MEAN, objective=Objective.GSPO)
    outcome = pool.run(given)

    assert isinstance(outcome, Ran), outcome
    judgement = judge_off_policy(given, outcome.observations, description())
    assert judgement.verdict is Verdict.CONFORMS
    assert isinstance(pool.run(job(objective=Objective.GSPO)), Declined)


def test_dropped_tokens_have_no_weight_and_count(pool: RankPool) -> None:
    """21 of 30 active tokens are left."""
    given = job("rejected_tokens", objective=Objective.REJECTION)
    outcome = pool.run(given)

    assert isinstance(outcome, Ran), outcome
    [step] = given.steps
    for rank in outcome.observations:
        assert rank.token_weights[0] == pytest.approx(step.mask / 30, rel=1e-6)
        assert rank.reported[Metric.REJECTED] == pytest.approx((9 / 30,))


@pytest.mark.parametrize(
    ("objective", "case"),
    [
        (Objective.GROUP_CENTRED, "split_groups"),
        (Objective.LEAVE_ONE_OUT, "split_groups"),
        (Objective.REINFORCE_PP_BASELINE, "split_groups"),
    ],
)
def test_advantages_of_openrlhfs_estimators_are_the_references(
    pool: RankPool, objective: Objective, case: str
) -> None:
    given = job(case, Mode.SAMPLE_MEAN, objective=objective)
    outcome = pool.run(given)

    assert isinstance(outcome, Ran), outcome
    judgement = judge_advantages(given, outcome.observations, description())
    assert judgement.verdict is Verdict.CONFORMS


def test_critics_loss_is_a_mean_over_tokens(pool: RankPool) -> None:
    given = job(objective=Objective.VALUE)

    assert weights_error(pool.run(given), given) <= weight_bound("float32")
    assert isinstance(pool.run(job(mode=Mode.SAMPLE_MEAN, objective=Objective.VALUE)), Declined)


@pytest.mark.processes
def test_nothing_is_left_and_two_runs_have_the_same_report(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path_factory.mktemp("t")
    monkeypatch.setenv("TMPDIR", str(temporary))
    memory = forgotten_memory(temporary)
    layouts = [f"--layout=dp2-cp1-mb1-bshd{stage}" for stage in ("", "+zero_3")]
    options = (f"--source={RELEASE}", "--checks=weights,metric", *layouts, "-k", "one_token")
    reports = []
    for _ in range(2):
        process = command.start(tmp_path, "--adapter=openrlhf", *options)
        result = command.finish(process, tmp_path, "openrlhf")
        reports.append((tmp_path / "reports" / "latest" / "openrlhf.json").read_bytes())
        wait_for(lambda: not processes_of(temporary))
        wait_for(lambda: not forgotten_memory(temporary) - memory)

        assert result.report.complete, result.output
        assert [name for name in names(temporary) if not name.startswith(OF_OTHERS)] == []

    assert reports[0] == reports[1]


@pytest.mark.processes
def test_older_version_has_one_mode_and_does_not_count_what_is_dropped(tmp_path: Path) -> None:
    """Each source needs processes of its own."""
    options = ("--source=pypi:0.10.4", "--checks=weights,rejection", "--layout=dp2-cp1-mb2-bshd")
    cases = ("-k", "odd_groups or rejected_tokens")
    process = command.start(tmp_path, "--adapter=openrlhf", *options, *cases)
    report = command.finish(process, tmp_path, "openrlhf").report

    conforming, others = set(), set()
    for finding in report.findings:
        found = conforming if finding.verdict is Verdict.CONFORMS else others
        found.add((finding.identity.slug, finding.mode, finding.verdict))
    assert conforming == {("weights", Mode.TOKEN_MEAN, Verdict.CONFORMS)}
    assert ("rejection.metric", Mode.TOKEN_MEAN, Verdict.UNSUPPORTED) in others
    advice = {found for found in others if found[2] is not Verdict.UNSUPPORTED}
    assert advice == {("rejection", Mode.TOKEN_MEAN, Verdict.ADVICE)}, "an assumed mask"
