"""Lines are proven by runs in which they have the right values, or are edited."""

from __future__ import annotations

import linecache
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from adapters.contract import Depth, Job, Layout
from adapters.contract.job import Configuration, Edit
from adapters.contract.objective import Objective
from adapters.native.adapter import NativeAdapter
from conformance.corpus.cases import CORPUS, Case
from conformance.findings.cause import Cause, Severity
from conformance.findings.errors import UnknownCutError
from conformance.findings.report import PlanSize
from conformance.findings.verdict import Check, Verdict
from conformance.judging.outcome import judge_outcome
from conformance.judging.weights import Judgement
from conformance.plan.checks import CHECK_SPECS
from conformance.plan.matrix import MatrixCell
from conformance.ranks.hardware import RankBudget
from conformance.ranks.pool import Ran, RankPool
from conformance.ranks.recording.editing import span_of
from conformance.runs.jobs import SharedJobs
from conformance.runs.settings import Settings
from conformance.tracing.edits.search import edited_lines
from conformance.tracing.finding import traced_job, traces_of_causes
from conformance.tracing.placed import OrdinaryRun
from conformance.tracing.proof import MOST_EDITED, Prover, candidates, default_seconds
from conformance.tracing.source import Function, functions_of
from conformance.tracing.trace import Trace
from conformance.tracing.traced import TracedJob, tokens_of_steps
from conformance.tracing.tracer import most_wrong
from conformance.tracing.trials import Trials, Tried
from conformance.tracing.undone import Changes
from reference.aggregation import Aggregation, Mode
from tests.tracing import toys
from tests.tracing.mistaken import MistakenAdapter
from tests.tracing.rewarded import RewardedAdapter

CASES = ("uneven_lengths", "fully_masked_sample", "unequal_shards")


@dataclass(frozen=True, kw_only=True)
class OfWay(MatrixCell):
    """A matrix cell that the toy trains in one of its ways."""

    way: str

    @property
    def job(self) -> Job:
        return replace(super().job, configuration=Configuration(divisor=self.way))

    @property
    def job_id(self) -> str:
        return f"{super().job_id}/{self.way}"


def cells(way: str, objective: Objective) -> list[OfWay]:
    checked = Check.WEIGHTS if objective is Objective.POLICY else Check.ADVANTAGES
    [spec] = (one for one in CHECK_SPECS if (one.check, one.objective) == (checked, objective))
    cases: list[Case] = [case for case in CORPUS if case.name in CASES]
    return [
        OfWay(
            aggregation=Aggregation(Mode.TOKEN_MEAN),
            case=case,
            layout=Layout(dp=2),
            depth=Depth.STEP,
            spec=spec,
            way=way,
        )
        for case in cases
    ]


@pytest.fixture(scope="module")
def jobs() -> Iterator[SharedJobs]:
    with RankPool(MistakenAdapter(), None, 2) as pool:
        yield SharedJobs(pool)


@pytest.fixture(scope="module")
def jobs_of_rewards() -> Iterator[SharedJobs]:
    with RankPool(RewardedAdapter(), None, 2) as pool:
        yield SharedJobs(pool)


def wrong(way: str, jobs: SharedJobs, objective: Objective = Objective.POLICY) -> list[OfWay]:
    of_way = cells(way, objective)
    judged = [(cell, judge_outcome(cell, jobs.run(cell.job), jobs)) for cell in of_way]
    return [cell for cell, one in judged if one.verdict is Verdict.MISMATCH]


def traced(cell: OfWay, jobs: SharedJobs) -> Trace:
    found = traced_job(cell.job, jobs.pool)
    assert isinstance(found, TracedJob)
    return Trace.of(cell.way, found, None, None)


def function_in(file: str, name: str) -> Function:
    [function] = (one for one in functions_of(file) if one.name == name)
    return function


FEW = 150
"""The most edits that are tried for a mistake which no edit undoes."""


def told(
    of_cause: list[OfWay], jobs: SharedJobs, most_edited: int = MOST_EDITED
) -> list[tuple[str, str]]:
    """The lines of a cause after its proofs, each with the words about it."""
    found = Prover(jobs, most_edited).proven(traced(of_cause[0], jobs), of_cause)
    return [(linecache.getline(one.line.file, one.line.number), one.why) for one in found]


@pytest.mark.parametrize(
    ("way", "text", "words"),
    [
        ("clamped", "torch.clamp_min(mask.sum(), 1)", "active tokens of a sample in"),
        ("in_python_on_all", "row.sum().item()", "active tokens of a sample in"),
        ("weighed_by_all", "torch.ones_like(mask).sum()", "active tokens of a sample in"),
        ("one_more", "mask.sum() + 1", "active tokens of a micro-batch"),
        ("largest", "op=dist.ReduceOp.MAX", "active tokens of the step"),
        ("of_positions", "count = torch.tensor(", "of a micro-batch on its rank instead of"),
        ("cut", "shifted = padded[:, 1:]", "with a slice 1 entry earlier"),
        ("left_out", "kept[:, -1] = 0", "with 0 instead of -1"),
        ("last_left_out", "count += row.sum().item()", "as 2 parts are not counted here"),
        ("of_a_copy", "dist.all_reduce(count.clone())", "which this line makes and nothing uses"),
        ("logged_afterwards", 'count = rows["mask"].sum()', "active tokens of the step"),
        ("of_another_variable", "whole = own + self.", "which this line makes and nothing uses"),
        ("smaller", "self.normalised(torch.min(", "max instead of min"),
        ("other_tokens", 'kept = rows["mask"] <= 0', "> instead of <="),
        ("other_branch", "torch.where(", "with <= instead of >"),
        ("bounded_above", "losses.clamp(max=-1e9)", "with min= instead of max="),
        ("detached", "self.losses(rows).detach()", "without detach"),
        ("last_kept", "count = row.sum().item()", "as 6 parts are not counted here"),
        ("half_of_a_mask", "kept = padded[:, :-1]", "with a slice 1 entry later"),
        ("multiplied_in_place", "losses *= torch.exp(", "without it"),
        ("of_another_number", "* low / high", "with high instead of low"),
        ("without_the_last_row", "count = len(losses) - 1", "with 0 instead of 1"),
        ("without_a_row_between", "losses[:2], losses[3:]", "with 3 instead of 2"),
        ("of_handed_positions", "positions = float(sum(", "with sum instead of numel"),
        ("mean_of_a_row", "self.losses(rows).mean(-1)", "with sum instead of mean"),
        ("mean_over_padding", "means = losses.mean(-1)", "with a mean over rows"),
        ("mean_of_all", "self.losses(rows).mean()", "with sum instead of mean"),
        ("of_further_rows", "kept = mask[1:] > 0", "with 0 instead of 1"),
    ],
)
def test_the_line_is_proven_with_which_all_findings_conform(
    jobs: SharedJobs, way: str, text: str, words: str
) -> None:
    of_cause = wrong(way, jobs)
    [(line, why), *others] = told(of_cause, jobs)

    assert text in line
    assert why.startswith("proven: ")
    assert words in why
    extent = f"{len(of_cause)} of its findings conform" if len(of_cause) > 1 else "its only finding"
    assert extent in why
    assert not any(each.startswith("proven") for _, each in others)


def test_a_factor_that_is_as_wrong_on_one_rank_is_not_that_of_ranks(jobs: SharedJobs) -> None:
    [(line, why), *_] = told(wrong("half_as_large", jobs), jobs)

    assert "0.5 * self.losses(rows)" in line
    assert "proven: with 1 instead of 0.5, 4 of its findings conform" in why


@pytest.mark.parametrize("way", ["merged", "of_a_rank"])
def test_a_wrong_advantage_that_no_edit_mends_is_not_proven(
    jobs_of_rewards: SharedJobs, way: str
) -> None:
    """The first line is the wrong one; if a group is wrong, it is the line that chose the group."""
    objective = {"merged": Objective.GROUP_CENTRED, "of_a_rank": Objective.GROUP_WHITENED}[way]
    [(line, _), *_] = of_lines = told(wrong(way, jobs_of_rewards, objective), jobs_of_rewards, FEW)

    assert {"merged": "rewards.mean()", "of_a_rank": "dist.new_group([rank])"}[way] in line
    assert not any("conform" in why for _, why in of_lines)


@pytest.mark.parametrize(
    ("way", "text", "words"),
    [
        ("own_values", "following = values[:, token + shift]", "with an operand one place later"),
        (
            "early",
            "placed[range(len(placed)), last_of(rows) - 1] = rewards",
            "with an operand one place later",
        ),
    ],
)
def test_the_line_that_takes_or_writes_the_value_of_another_token_is_named(
    jobs_of_rewards: SharedJobs, way: str, text: str, words: str
) -> None:
    """Only a case without masked tokens is tried, as the toy cannot handle them in responses."""
    of_cause = wrong(way, jobs_of_rewards, Objective.GAE)
    unmasked = [one for one in of_cause if one.case.name == "unequal_shards"]
    [why] = [why for line, why in told(unmasked, jobs_of_rewards) if text in line]

    assert why.startswith(words)


def test_a_right_count_that_would_make_good_another_is_not_proven(jobs: SharedJobs) -> None:
    of_lines = told(wrong("ranks_alike", jobs), jobs)

    assert "share = self.tokens(rows) / dist.get_world_size()" in of_lines[0][0]
    assert "proven: with 13 (active tokens of its micro-batch) instead of 17.5" in of_lines[0][1]
    assert not any(why.startswith("proven") for _, why in of_lines[1:])


def test_a_factor_is_suspected_where_it_is_made_and_not_used(jobs: SharedJobs) -> None:
    [(line, why), *_] = told(wrong("of_an_unscaled_loss", jobs), jobs)

    assert "scaled = loss * dist.get_world_size()" in line
    assert why == "multiplies by 2, which the weight lacks, and nothing uses it"


def test_nothing_is_proven_where_no_right_count_is_needed(jobs: SharedJobs) -> None:
    assert not any("conform" in why for _, why in told(wrong("rows_alike", jobs), jobs, FEW))


@pytest.mark.parametrize(
    ("way", "text", "words"),
    [
        ("averaged", "self.gradient.div_(", "with 1 instead of 2, 3 of its findings conform"),
        ("times_ranks", "count * dist.get_world_size()", "(active tokens of the step / ranks)"),
    ],
)
def test_a_factor_that_any_line_could_make_good_is_proven_of_none(
    jobs: SharedJobs, way: str, text: str, words: str
) -> None:
    [(line, why), *others] = told(wrong(way, jobs), jobs)

    assert text in line
    assert words in why
    assert not any("proven" in each for _, each in [(line, why), *others])


@pytest.mark.parametrize(("way", "is_proven"), [("averaged", False), ("left_out", True)])
def test_the_only_edit_that_helps_proves_a_line_unless_the_factor_is_that_of_ranks(
    jobs: SharedJobs, monkeypatch: pytest.MonkeyPatch, way: str, is_proven: bool
) -> None:
    cell = wrong(way, jobs)[0]
    trials, trace = Prover(jobs).trials, traced(cell, jobs)
    run = trials.ordinary(cell)
    assert run is not None
    helping = iter([True])

    def conforming(
        _: Trials, run: OrdinaryRun, edits: Iterable[Edit], *__: object
    ) -> Iterator[Tried]:
        return (Tried(one, next(helping, False), moves=True) for one in edits)

    monkeypatch.setattr(Trials, "conforming", conforming)

    [found] = edited_lines(trials, trace, [run], is_of_size=not is_proven)

    assert found.why.startswith("proven: ") is is_proven


def test_of_edits_that_help_those_count_that_change_the_fewest_logged_numbers(
    jobs: SharedJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other numbers may become wrong without a finding that judges them."""
    cell = wrong("left_out", jobs)[0]
    trials, trace = Prover(jobs).trials, traced(cell, jobs)
    run = trials.ordinary(cell)
    assert run is not None
    changed: dict[int, int] = {}

    def conforming(
        _: Trials, run: OrdinaryRun, edits: Iterable[Edit], *__: object
    ) -> Iterator[Tried]:
        for one in edits:
            helps = one.span[0] not in changed and len(changed) < 3
            logs = changed.setdefault(one.span[0], 3 - len(changed)) if helps else 0
            yield Tried(one, helps, moves=True, logs=logs)

    monkeypatch.setattr(Trials, "conforming", conforming)
    monkeypatch.setattr(Trials, "conforms", lambda *_: True)

    [found] = edited_lines(trials, trace, [run], is_of_size=False)

    assert changed[found.line.number] == 1


def test_an_edit_with_which_a_logged_number_becomes_wrong_proves_nothing(
    jobs: SharedJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = wrong("left_out", jobs)[0]
    trials, trace = Prover(jobs, FEW).trials, traced(cell, jobs)
    run = trials.ordinary(cell)
    assert run is not None

    def judged(of_cell: MatrixCell, ran: Ran, jobs: SharedJobs) -> Judgement:
        if of_cell.spec.metric is None:
            return judge_outcome(of_cell, ran, jobs)
        is_unchanged = ran.observations is run.observations
        return Judgement(verdict=Verdict.CONFORMS if is_unchanged else Verdict.MISMATCH)

    assert edited_lines(trials, trace, [run], is_of_size=False)
    monkeypatch.setattr("conformance.tracing.trials.is_offered", lambda *_: True)
    monkeypatch.setattr("conformance.tracing.trials.judge_outcome", judged)

    assert not edited_lines(Prover(jobs, FEW).trials, trace, [run], is_of_size=False)


def test_another_case_tells_apart_edits_that_both_help(
    jobs: SharedJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = wrong("left_out", jobs)[0]
    trials, trace = Prover(jobs).trials, traced(cell, jobs)
    run = trials.ordinary(cell)
    assert run is not None
    helping: list[tuple[int, ...]] = []

    def conforming(
        _: Trials, run: OrdinaryRun, edits: Iterable[Edit], *__: object
    ) -> Iterator[Tried]:
        for one in edits:
            if one.span not in helping and len(helping) < 2:
                helping.append(one.span)
            yield Tried(one, one.span in helping, moves=True)

    def conforms(_: Trials, run: OrdinaryRun, edit: Edit) -> bool:
        return run.cell.case is cell.case or edit.span == helping[1]

    monkeypatch.setattr(Trials, "conforming", conforming)
    monkeypatch.setattr(Trials, "conforms", conforms)

    [found] = edited_lines(trials, trace, [run], is_of_size=False)

    assert found.why.startswith("proven: ")
    assert found.line.number in range(helping[1][0], helping[1][2] + 1)


def test_an_edit_proves_nothing_if_a_right_finding_of_another_loss_no_longer_conforms(
    jobs: SharedJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = wrong("left_out", jobs)[0]
    trials, trace = Prover(jobs, FEW).trials, traced(cell, jobs)
    run, other = (trials.ordinary(one) for one in (cell, cells("reduced", Objective.POLICY)[0]))
    assert run is not None
    assert other is not None
    conforms, is_kept = Trials.conforms, True

    def kept(trials: Trials, of_run: OrdinaryRun, edit: Edit) -> bool:
        return is_kept if of_run.cell == other.cell else conforms(trials, of_run, edit)

    monkeypatch.setattr(Trials, "conforms", kept)
    monkeypatch.setattr(Trials, "right_elsewhere", lambda *_: iter([other]))

    assert edited_lines(trials, trace, [run], is_of_size=False)
    is_kept = False
    assert not edited_lines(trials, trace, [run], is_of_size=False)


def test_conforming_runs_of_other_losses_are_right_elsewhere() -> None:
    [cell, *_] = (one for one in cells("", Objective.POLICY) if one.case.name == "uneven_lengths")
    plain = MatrixCell(
        aggregation=cell.aggregation, case=cell.case, layout=Layout(dp=2), depth=cell.depth
    )
    with RankPool(NativeAdapter(), None, 2) as pool:
        trials = Prover(SharedJobs(pool)).trials
        run = trials.ordinary(plain)
        assert run is not None
        several = [*islice(trials.right_elsewhere(run), 6)]

    objectives = {one.cell.spec.objective for one in several}
    assert len(objectives) == len(several) == 6
    assert Objective.POLICY not in objectives


@pytest.mark.parametrize("moves", [True, False])
def test_a_statement_whose_edits_change_no_number_is_edited_later(
    jobs: SharedJobs, monkeypatch: pytest.MonkeyPatch, moves: bool
) -> None:
    cell = wrong("left_out", jobs)[0]
    trials, trace = Prover(jobs, FEW).trials, traced(cell, jobs)
    run = trials.ordinary(cell)
    assert run is not None
    lines: list[int] = []

    def conforming(
        _: Trials, run: OrdinaryRun, edits: Iterable[Edit], *__: object
    ) -> Iterator[Tried]:
        for one in edits:
            lines.append(one.span[0])
            yield Tried(one, conforms=False, moves=moves or one.span[0] != lines[0])

    monkeypatch.setattr(Trials, "conforming", conforming)
    edited_lines(trials, trace, [run], is_of_size=False)

    assert len(lines) == FEW
    assert (lines[: FEW // 3].count(lines[0]) > 8) is moves


def test_a_count_that_another_mode_needs_is_not_proven_wrong(
    jobs: SharedJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The toy does not declare its ways, so its modes are not offered."""
    monkeypatch.setattr("conformance.tracing.trials.is_offered", lambda *_: True)
    of_samples = [
        replace(one, aggregation=Aggregation(Mode.SAMPLE_MEAN))
        for one in cells("tokens_in_every_mode", Objective.POLICY)
    ]
    assert all(
        judge_outcome(one, jobs.run(one.job), jobs).verdict is Verdict.MISMATCH
        for one in of_samples
    )

    lines = told(of_samples, jobs, most_edited=0)

    assert not any("count = sum" in line and why.startswith("proven") for line, why in lines)


@pytest.mark.parametrize("way", ["other_sign", "of_either_number", "of_another_tensor"])
def test_a_mistake_that_several_lines_could_undo_is_proven_of_none(
    jobs: SharedJobs, way: str
) -> None:
    of_lines = told(wrong(way, jobs), jobs)

    assert sum("as with a value elsewhere" in why for _, why in of_lines) > 1
    assert not any("proven" in why for _, why in of_lines)


def test_two_mistakes_that_no_single_edit_undoes_are_not_proven(jobs: SharedJobs) -> None:
    of_lines = told(wrong("without_rows_at_either_end", jobs), jobs, FEW)

    assert not any("conform" in why for _, why in of_lines)


def test_a_value_that_makes_weights_infinite_proves_nothing(jobs: SharedJobs) -> None:
    cell = wrong("of_a_rank", jobs)[0]
    trials = Prover(jobs).trials
    run = trials.ordinary(cell)
    assert run is not None
    at = candidates(traced(cell, jobs))[0].replacement
    ran = trials.ran(run, replaced=replace(at, entries=()))
    assert ran is not None

    zeros = tuple(tuple((0.0,) * len(each) for each in of_rank) for of_rank in ran.held)

    assert not trials.conforms(run, replace(at, entries=zeros))


def test_no_count_proves_a_line_where_ranks_reduce_unequal_numbers(
    jobs_of_rewards: SharedJobs,
) -> None:
    of_cause = wrong("of_tokens_of_a_rank", jobs_of_rewards, Objective.GROUP_WHITENED)

    whys = [why for _, why in told(of_cause, jobs_of_rewards, most_edited=0)]

    assert whys
    assert not any(why.startswith("proven") for why in whys)


def test_a_step_that_no_judge_expects_proves_nothing(
    jobs: SharedJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One example is a step whose forward passes the edited code no longer reports."""
    cell = wrong("of_a_rank", jobs)[0]
    trials = Prover(jobs).trials
    run, one = trials.ordinary(cell), candidates(traced(cell, jobs))[0]
    assert run is not None

    def unknown_cut(*_: object) -> None:
        raise UnknownCutError("not in which forward pass every token was")

    monkeypatch.setattr("conformance.tracing.trials.judge_outcome", unknown_cut)

    assert not trials.conforms(run, replace(one.replacement, entries=()))


def test_no_line_is_proven_when_the_time_is_over(jobs: SharedJobs) -> None:
    of_cause = wrong("of_a_rank", jobs)
    trace = traced(of_cause[0], jobs)
    proven, late = Prover(jobs), Prover(jobs, seconds=0.0)

    assert any(one.why.startswith("proven: ") for one in proven.proven(trace, of_cause))
    assert late.proven(trace, of_cause) == trace.suspects
    assert (proven.given_up, late.given_up) == (set(), {trace.finding})


def test_lines_of_audited_causes_are_traced_and_not_proven() -> None:
    """Their lines are worked out by hand, and the time is left to new causes."""
    settings = Settings.of(
        adapter="tests.broken:OneTokenShort",
        engine=None,
        source=None,
        modes="token_mean",
        checks="weights",
        depth="step",
        layouts=["dp1-cp1-mb1-bshd"],
        plan_size=PlanSize.FULL,
        rank_budget=RankBudget.of(1),
        time_limit=60.0,
        report=Path(),
        examples=0,
        seed="0",
    )
    cause = Cause(
        name="count_off_by_one",
        condition=[],
        severity=Severity.GRADIENT,
        statement="a count of tokens is off by one",
        findings=["weights/token_mean/uneven_lengths/dp1-cp1-mb1-bshd"],
    )
    with RankPool(settings.adapter, None, 1) as pool:
        made = partial(traces_of_causes, [cause], settings, Prover(SharedJobs(pool)), None)
        audited = [*made(lambda traced: bool(traced.suspects))]
        new = [*made(lambda _: False)]

    assert [name for name, _ in audited] == cause.findings
    assert [name for name, _ in new] == cause.findings * 2
    assert new[0] == audited[0]


def test_the_last_cause_may_take_all_of_the_remaining_time(jobs: SharedJobs) -> None:
    of_cause = wrong("of_a_rank", jobs)
    trace, seconds = traced(of_cause[0], jobs), 600.0
    several, last = Prover(jobs, seconds=seconds), Prover(jobs, seconds=seconds)
    begin = time.monotonic()

    several.proven(trace, of_cause, others=5)
    last.proven(trace, of_cause)

    assert several.trials.until - begin == pytest.approx(seconds / 3, rel=0.2)
    assert last.trials.until - begin >= seconds


def test_proofs_of_a_long_run_may_take_longer() -> None:
    assert [default_seconds(of_run) for of_run in (5.0, 60.0, 600.0)] == [20.0, 20.0, 120.0]
    assert default_seconds(5.0, Changes({"loss.py": "@@ -1 +1 @@"})) == 60.0


def test_a_finding_conforms_only_with_the_tokens_that_it_had(jobs: SharedJobs) -> None:
    """Otherwise an edit that leaves tokens out could hide that they are wrong."""
    [cell, *_] = cells("reduced", Objective.POLICY)
    trials, file = Prover(jobs).trials, str(toys.__file__)
    elsewhere = Edit(file, span_of(function_in(file, "meant").body[0]), "pass")
    run = trials.ordinary(cell)
    assert run is not None
    [context] = run.contexts
    cut = replace(context, forward_pass_of_token=context.forward_pass_of_token + 1)

    assert trials.conforms(run, elsewhere)
    assert not trials.conforms(replace(run, contexts=(cut,)), elsewhere)


def test_an_edit_that_loops_without_end_is_stopped_early(
    jobs: SharedJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it would take an ordinary job's time limit, which other edits would then lack."""
    [cell, *_] = cells("reduced", Objective.POLICY)
    trials, file = Prover(jobs).trials, str(toys.__file__)
    endless = Edit(file, span_of(function_in(file, "losses").body[-1]), "while True: pass")
    monkeypatch.setattr("conformance.ranks.time_limits.SECONDS_OF_AN_EDIT", 1.0)
    run = trials.ordinary(cell)
    assert run is not None
    begin = time.monotonic()

    assert not trials.conforms(run, endless)
    assert time.monotonic() - begin < 60
    assert trials.conforms(run, Edit(file, span_of(function_in(file, "meant").body[0]), "pass"))


def test_a_token_of_infinite_weight_is_the_most_wrong(jobs: SharedJobs) -> None:
    job = cells("largest", Objective.POLICY)[0].job
    trained = jobs.train(job)
    assert trained is not None
    observations = trained.observations
    weights = [one.copy() for one in observations[0].token_weights]
    weights[0][3] = np.inf
    infinite = replace(observations[0], token_weights=tuple(weights))

    token = most_wrong(job, [infinite, *observations[1:]], jobs.description)

    assert token == next(tokens_of_steps(job))[3]
