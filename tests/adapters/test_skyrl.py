"""SkyRL's real code: the installed release always, other versions where a source is given."""

from __future__ import annotations

import os
import re
import tempfile
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
import pytest
import torch
import torch.distributed as dist

from adapters.contract import (
    CodeLocation,
    DepartureKind,
    Depth,
    Description,
    Job,
    Layout,
    LogEntry,
    Observation,
    Rank,
    Unsupported,
)
from adapters.contract.configuration import (
    DEFAULT_CONFIGURATION,
    Configuration,
    FaultInjection,
)
from adapters.contract.objective import OFF_POLICY, Metric, Objective
from adapters.contract.probed_batch import ProbedBatch
from adapters.skyrl.fsdp import SkyRLFsdpAdapter
from adapters.skyrl.megatron import SkyRLMegatronAdapter
from adapters.skyrl.trainer import Rollouts
from conformance.corpus.cases import CORPUS, REJECTION
from conformance.findings.report import Provenance
from conformance.findings.verdict import Verdict
from conformance.judging.gradients import judge_combined, judge_off_policy
from conformance.judging.metrics import judge_logged
from conformance.plugin.controller import NOT_DRIVEN
from conformance.ranks.messages import Declined
from conformance.ranks.pool import Ran, RankPool
from reference.aggregation import Aggregation, Conventions, DenominatorMask, Mode
from reference.rounding import weight_bound
from reference.weights import token_weights
from tests import command

if TYPE_CHECKING:
    from collections.abc import Iterator

    from adapters.skyrl.adapter import SkyRLAdapter
    from reference.step import Step

pytestmark = pytest.mark.skyrl

PLAIN = "weights/ or (metric/ and not rejection)"
"""The policy loss alone: its weights and its log."""

TELLING = ("uneven_lengths", "fully_masked_sample", "short_responses", "split_groups", "two_steps")
"""Cases that tell the modes apart; all of them are run by the first command of the README."""

OF_TELLING = f"({' or '.join(f'/{case}/' for case in TELLING)})"

OUTSIDE_ITS_CONTRACT = {"interleaved_groups": "refused", "dropped_rollouts": "unsupported"}
"""SkyRL takes the samples of a prompt to be adjacent, and as many rollouts for every prompt."""


def unexpected(findings: list[dict]) -> list[str]:
    """What does not conform though SkyRL is made for it."""
    return [
        finding.id
        for finding in findings
        if finding.verdict != OUTSIDE_ITS_CONTRACT.get(finding.case, "conforms")
    ]


def cases_on(layouts: list[str]) -> int:
    """How often the layouts run a case of the corpus."""
    return sum(case.runs_on(Layout.parse(layout)) for case in CORPUS for layout in layouts)


def test_forcing_dp_size_to_one_halves_every_weight_and_is_named(tmp_path: Path) -> None:
    cases = ("-k", f"({PLAIN}) and (short_responses or odd_groups)")
    result = command.run(tmp_path, "dpsizeone", "--layout=dp2-cp1-mb1-bshd", *cases)

    findings = [one for one in result.report.findings if one.check == "weights"]
    others = [one for one in result.report.findings if one not in findings]
    assert {finding.verdict for finding in others} == {"conforms"}, "the log has it right"
    assert [finding.verdict for finding in findings] == ["mismatch"] * 8
    for finding in findings:
        assert finding.error == pytest.approx(0.5, rel=1e-7)
        assert finding.diagnosis.numbers["dp"] == 2
    names = {finding.case: finding.diagnosis.name for finding in findings}
    assert names == {
        "odd_groups": "divided_by_dp",
        "short_responses": "divided_by_dp_or_group_size",
    }
    short = [finding for finding in findings if finding.case == "short_responses"]
    errors = {finding.mode: finding.error for finding in short}
    assert errors["sample_mean"] == 0.5, "its denominators, powers of two, round nothing"


@pytest.mark.parametrize("depth", ["reducer", "loss"])
def test_depths_below_the_step_conform(tmp_path: Path, depth: str) -> None:
    layouts = ["dp1-cp1-mb2-bshd", "dp2-cp2-mbtokens-thd"]
    chosen = ["--checks=weights", *(f"--layout={layout}" for layout in layouts)]
    result = command.run(tmp_path, "skyrl", f"--depth={depth}", "-k", OF_TELLING, *chosen)

    findings = result.report.findings
    assert len(findings) == len(TELLING) * len(layouts) * len(Mode)
    assert unexpected(findings) == [], result.output
    assert {finding.depth for finding in findings} == {depth}


def test_megatron_engine_conforms_under_context_and_tensor_parallelism(tmp_path: Path) -> None:
    layouts = ["dp2-cp1-mb2-bshd", "dp2-cp2-mb2-thd", "dp1-cp2-mbtokens-thd", "dp1-cp1-tp2-mb2-thd"]
    chosen = [f"--layout={layout}" for layout in layouts]
    selected = ("-k", f"({PLAIN}) and {OF_TELLING}")
    result = command.run(tmp_path, "skyrl", "--engine=megatron", *selected, *chosen)

    findings = result.report.findings
    assert result.report.engine == "megatron"
    assert len(findings) == len(TELLING) * len(layouts) * len(Mode) * 2
    assert unexpected(findings) == [], result.output


@pytest.mark.parametrize("engine", ["fsdp", "megatron"])
def test_parameters_in_bfloat16_conform_within_their_bound(tmp_path: Path, engine: str) -> None:
    chosen = (f"--engine={engine}", "--dtype=bfloat16", "--layout=dp2-cp1-mb2-thd")
    result = command.run(tmp_path, "skyrl", *chosen, "--checks=weights", "-k", "dp2")
    findings = result.report.findings

    assert len(findings) == cases_on(["dp2-cp1-mb2-thd"]) * len(Mode)
    assert unexpected(findings) == [], result.output
    errors = [one.error for one in findings if one.verdict == "conforms"]
    assert 1e-4 < max(errors) < weight_bound("bfloat16"), "the probe is not in bfloat16"


def test_gradients_that_are_not_joined_into_one_collective_are_the_same(tmp_path: Path) -> None:
    layouts = ("--layout=dp2-cp2-mb2-thd", "--layout=dp2-cp2-mb2-thd+overlap_grad_reduce")
    chosen = ("--checks=weights", "--modes=token_mean", "-k", "uneven_lengths", *layouts)
    joined = command.run(tmp_path / "joined", "skyrl", "--engine=megatron", *chosen)
    result = command.run(tmp_path / "one_by_one", "onebyone", *chosen)
    together, overlapping = result.report.findings

    assert together == joined.report.findings[0]
    assert together.verdict == "conforms"
    assert overlapping.verdict == "unsupported"
    assert overlapping.message.startswith("no overlap of gradient reduction with gloo")


@pytest.mark.processes
def test_findings_under_torchrun_are_the_pool_s(tmp_path: Path) -> None:
    chosen = ("--layout=dp2-cp1-mb2-thd", "--checks=weights,metric", "-k", "one_token")
    pool = command.run(tmp_path / "pool", "skyrl", *chosen)
    two = command.torchrun(tmp_path / "two", "skyrl", *chosen, options=("--nproc-per-node=2",))

    assert two.status == pool.status
    assert two.findings == pool.findings


def test_megatron_engine_conforms_at_depth_loss(tmp_path: Path) -> None:
    arguments = ("--engine=megatron", "--depth=loss", "--checks=weights", "-k", OF_TELLING)
    result = command.run(tmp_path, "skyrl", *arguments, "--layout=dp2-cp2-mb2-thd")

    assert unexpected(result.report.findings) == []


@pytest.mark.processes
def test_workers_find_the_same_byte_for_byte(tmp_path: Path) -> None:
    selection = ("--layout=dp2-cp1-mbtokens-thd", "-k", f"({PLAIN}) and two_steps")
    folders = tmp_path / "alone", tmp_path / "shared"
    for folder in folders:
        folder.mkdir()
    alone = command.run(folders[0], "skyrl", *selection)
    shared = command.run(folders[1], "skyrl", *selection, "-n", "2")

    assert len(alone.report.findings) == len(Mode) * 2
    assert alone.findings == shared.findings


def test_a_metric_that_is_renamed_is_not_driven(tmp_path: Path) -> None:
    chosen = ("--layout=dp1-cp1-mb1-bshd", "--checks=metric", "-k", "one_token")
    result = command.run(tmp_path, "metricrenamed", *chosen)

    assert result.status == NOT_DRIVEN
    assert {finding.verdict for finding in result.report.findings} == {"not_driven"}


def test_report_says_what_ran(tmp_path: Path) -> None:
    result = command.run(tmp_path, "skyrl", "--layout=dp1-cp1-mb1-bshd", "-k", "one_token")

    report = result.report
    assert report.source == Provenance(
        kind="installed", revision=None, version="0.3.0", ref=None, dirty=False
    )
    assert report.engine == "fsdp"
    assert "transformers" in report.environment.dependencies
    assert report.environment.stubs == ["flash_attn"]


@pytest.mark.skipif(
    command.SOURCES not in os.environ, reason=f"{command.SOURCES} names no folder of checkouts"
)
@pytest.mark.parametrize(
    ("ref", "unsupported"),
    [
        ("main", set()),
        ("refs/pull/1719/head", set()),
        ("skyrl-v0.3.0", set()),
        ("skyrl-v0.2.0", {"prompt_mean"}),
    ],
)
def test_other_versions_run_from_a_repository(
    tmp_path: Path, ref: str, unsupported: set[str]
) -> None:
    repository = Path(os.environ[command.SOURCES]) / "SkyRL"
    layouts = ["--layout=dp1-cp1-mb1-thd", "--layout=dp4-cp1-mb2-bshd"]
    result = command.run(tmp_path, "skyrl", f"--source={repository}@{ref}", "-k", PLAIN, *layouts)

    modes = result.report.summary.modes
    assert {mode for mode in modes if set(modes[mode]) == {"unsupported"}} == unsupported
    known = [finding for finding in result.report.findings if finding.mode not in unsupported]
    assert unexpected(known) == []
    assert result.report.source.ref == ref
    assert result.report.source.kind == "git"


@pytest.mark.skipif(
    command.SOURCES not in os.environ, reason=f"{command.SOURCES} names no folder of checkouts"
)
def test_megatron_engine_of_the_version_before_multiplies_by_cp(tmp_path: Path) -> None:
    """Mended by SkyRL's pull request 1751, which takes cp out of the loss's factor."""
    repository = Path(os.environ[command.SOURCES]) / "SkyRL"
    source = f"--source={repository}@skyrl-v0.2.0"
    layouts = ["--layout=dp2-cp1-mb2-thd", "--layout=dp1-cp2-mb1-thd"]
    chosen = ("--modes=token_mean", "-k", "weights/ and odd_groups", *layouts)
    arguments = (source, "--engine=megatron", *chosen)
    findings = command.run(tmp_path, "skyrl", *arguments).report.findings

    verdicts = {finding.layout.cp: finding.verdict for finding in findings}
    assert verdicts == {1: "conforms", 2: "mismatch"}
    [diagnosis] = [finding.diagnosis for finding in findings if finding.diagnosis]
    assert diagnosis.name == "multiplied_by_cp"
    assert diagnosis.numbers == {"ratio": pytest.approx(2, rel=1e-6), "cp": 2}


class TensorsOfRows(dict[str, torch.Tensor]):
    """Stands where SkyRL has a batch."""

    metadata: ClassVar = {"response_length": 5}


CASES = {case.name: case for case in (*CORPUS, *REJECTION)}
MASKED = CASES["fully_masked_sample"]
OF_BOTH_RANKS = Layout(dp=2, micro_batches=2)
SAMPLE_MEAN = Aggregation(Mode.SAMPLE_MEAN)
PROMPT_MEAN = Aggregation(Mode.PROMPT_MEAN)


@pytest.fixture(scope="module")
def fsdp() -> Iterator[RankPool]:
    with RankPool(SkyRLFsdpAdapter(), None, 2) as pool:
        yield pool


@pytest.fixture(scope="module")
def megatron() -> Iterator[RankPool]:
    with RankPool(SkyRLMegatronAdapter(), None, 2) as pool:
        yield pool


def job(
    objective: Objective = Objective.POLICY,
    *,
    case: str = MASKED.name,
    aggregation: Aggregation = SAMPLE_MEAN,
    layout: Layout = OF_BOTH_RANKS,
    configuration: Configuration = DEFAULT_CONFIGURATION,
) -> Job:
    return Job(
        steps=CASES[case].steps,
        aggregation=aggregation,
        layout=layout,
        depth=Depth.STEP,
        objective=objective,
        configuration=configuration,
    )


def observed(pool: RankPool, what: Job) -> Observation:
    outcome = pool.run(what)
    assert isinstance(outcome, Ran), outcome
    return outcome.observations[0]


def declined(pool: RankPool, configuration: Configuration, mode: Mode) -> Declined:
    aggregation = MASKED.aggregation(mode)
    outcome = pool.run(job(aggregation=aggregation, configuration=configuration))
    assert isinstance(outcome, Declined), outcome
    return outcome


def active(weights: np.ndarray, step: Step) -> list[float]:
    """What an active token of each sample weighs, as what it is divided by."""
    by_sample = [weights[response][step.mask[response]] for response in step.responses]
    return [round(1 / of_sample[0], 4) for of_sample in by_sample if len(of_sample)]


@pytest.mark.parametrize("objective", [Objective.KL, Objective.VALUE])
def test_losses_and_terms_of_sample_means_conform(fsdp: RankPool, objective: Objective) -> None:
    [weights] = observed(fsdp, job(objective)).token_weights

    expected = token_weights(MASKED.steps[0], SAMPLE_MEAN)
    np.testing.assert_allclose(weights, expected, rtol=3e-7)


LACKING = {Objective.GEO_MEAN, Objective.GPG, Objective.DRO, Objective.SEQUENCE_MASKED}
"""Policy losses that SkyRL has not."""


@pytest.mark.parametrize("objective", [one for one in OFF_POLICY if one not in LACKING])
def test_ratios_other_than_one_are_clipped_and_corrected(
    fsdp: RankPool, objective: Objective
) -> None:
    """All but the penalty of kl-cov, which SkyRL adds after it has divided the advantages."""
    what = job(objective)
    judgement = judge_off_policy(what, [observed(fsdp, what)], fsdp.description)

    if objective is Objective.KL_COV:
        assert judgement.diagnosis is not None
        assert judgement.diagnosis.name == "penalty_not_divided"
    else:
        assert judgement.verdict is Verdict.CONFORMS


@pytest.mark.parametrize("mode", [Mode.SAMPLE_MEAN, Mode.PROMPT_MEAN, Mode.TOKEN_MEAN])
@pytest.mark.parametrize("engine", ["fsdp", "megatron"])
def test_rejected_tokens_weigh_nothing_and_are_counted(
    engine: str, mode: Mode, request: pytest.FixtureRequest
) -> None:
    aggregation = Aggregation(mode)
    what = job(Objective.REJECTION, case="rejected_tokens", aggregation=aggregation)
    [weights] = observed(request.getfixturevalue(engine), what).token_weights

    conventions = Conventions(denominator_mask=DenominatorMask.ORIGINAL)
    expected = token_weights(what.steps[0], aggregation, conventions)
    np.testing.assert_allclose(weights, expected, rtol=3e-7)


@pytest.mark.parametrize("engine", ["fsdp", "megatron"])
def test_entropy_is_a_token_mean_of_each_micro_batch(
    engine: str, request: pytest.FixtureRequest
) -> None:
    """Ten and thirteen active tokens in one of two micro-batches each, of 23 in the step."""
    what = job(Objective.ENTROPY, layout=Layout(micro_batches=2))
    [weights] = observed(request.getfixturevalue(engine), what).token_weights

    assert active(weights, what.steps[0]) == [20.0] * 3 + [26.0] * 4


@pytest.mark.parametrize("storage", ["thd", "bshd"])
def test_stages_of_a_pipeline_train_and_log_what_one_stage_does(
    megatron: RankPool, storage: Literal["thd", "bshd"]
) -> None:
    what = job(Objective.COMBINED, layout=Layout(pp=2, micro_batches=2, format=storage))
    outcome = megatron.run(what)

    assert isinstance(outcome, Ran)
    assert [len(one.token_weights) for one in outcome.observations] == [1, 1]
    assert judge_combined(what, outcome.observations, megatron.description).verdict == "conforms"
    for metric in (Metric.POLICY_LOSS, Metric.LOSS, Metric.ENTROPY):
        assert judge_logged(what, outcome.observations, megatron.description, metric).verdict == (
            "conforms"
        )


def test_kl_of_megatron_counts_rows_that_fill_micro_batches_up(megatron: RankPool) -> None:
    """Micro-batches of one, one and two samples on a rank: each sample 1 of 6 in place of 4."""
    layout = Layout(dp=2, micro_batches="tokens", format="thd")
    what = job(Objective.KL, layout=layout)
    [weights] = observed(megatron, what).token_weights

    of_first_rank = active(weights, what.steps[0])[:3]
    assert of_first_rank == [2 * 6 * tokens for tokens in (3, 2, 5)]


@pytest.mark.parametrize("engine", ["fsdp", "megatron"])
def test_micro_batches_that_only_pad_hold_no_tokens(
    engine: str, request: pytest.FixtureRequest
) -> None:
    layout = Layout(dp=2, micro_batches="tokens", format="thd")
    outcome = request.getfixturevalue(engine).run(job(layout=layout))
    assert isinstance(outcome, Ran)

    held = np.stack([one.forward_passes[0] >= 0 for one in outcome.observations])
    assert held.sum(axis=0).tolist() == [1] * held.shape[1], "each token is on one rank"


COLLIDING = ("--layout=dp2-cp2-mbtokens-thd", "--checks=metric", "-k", "clip and masked_sample")


def test_micro_batches_that_only_pad_change_nothing_whatever_tokens_they_hold(
    tmp_path: Path,
) -> None:
    plain = command.run(tmp_path / "plain", "skyrl", "--engine=megatron", *COLLIDING)
    colliding = command.run(tmp_path / "colliding", "paddingcollides", *COLLIDING)

    assert {finding.verdict for finding in plain.report.findings} == {"advice"}
    assert {finding.diagnosis.name for finding in plain.report.findings} == {"mean_of_means"}
    assert colliding.findings == plain.findings


def test_run_is_stopped_where_micro_batches_that_only_pad_are_taken_for_others(
    tmp_path: Path,
) -> None:
    result = command.run(tmp_path, "paddingkept", *COLLIDING)

    assert result.status == pytest.ExitCode.INTERNAL_ERROR
    assert "fault of the harness: clip_fraction in clip_fraction of off_policy" in result.output
    assert "the adapter misreports how steps were cut" in result.output


def test_fsdp_averages_micro_batches_that_only_pad_into_its_log(
    fsdp: RankPool, megatron: RankPool
) -> None:
    """Rejected are 1 of 3 micro-batches on one rank and 5/4 of 4 on the other: for FSDP 1 of 4."""
    layout = Layout(dp=2, micro_batches="tokens", format="thd")
    what = job(Objective.REJECTION, case="rejected_sample", layout=layout)
    means = [observed(pool, what).reported[Metric.REJECTED][0] for pool in (fsdp, megatron)]

    assert means == pytest.approx([(1 / 4 + 5 / 16) / 2, (1 / 3 + 5 / 16) / 2])


def test_megatron_logs_the_entropy_of_a_context_parallel_rank_in_the_final_loss(
    megatron: RankPool,
) -> None:
    what = job(Objective.COMBINED, layout=Layout(cp=2, format="thd"))
    outcome = megatron.run(what)
    assert isinstance(outcome, Ran)

    losses = [one.reported[Metric.LOSS][0] for one in outcome.observations]
    rest = {one.reported[metric] for one in outcome.observations for metric in [Metric.ENTROPY]}
    assert len(rest) == 1, "logged next to it, the entropy is that of all ranks"
    assert abs(losses[0] - losses[1]) > 0.4  # type: ignore[operator]


def test_everything_is_reported_that_a_worker_returns_and_a_trainer_logs(fsdp: RankPool) -> None:
    assert set(observed(fsdp, job()).reported) == {
        Metric.POLICY_LOSS,
        Metric.LOSS,
        Metric.CLIP_FRACTION,
        Metric.ENTROPY,
        Metric.REWARD,
        Metric.ADVANTAGE,
    }
    assert Metric.DIVERGENCE in observed(fsdp, job(Objective.REINFORCE_PP)).reported
    assert Metric.KL in observed(fsdp, job(Objective.KL)).reported
    assert Metric.REJECTED in observed(fsdp, job(Objective.REJECTION)).reported


def test_megatron_reports_no_divergence_that_it_does_not_compute(megatron: RankPool) -> None:
    assert Metric.KL not in observed(megatron, job()).reported
    assert Metric.KL in observed(megatron, job(Objective.KL)).reported


def test_a_weight_taken_from_micro_batches_multiplies_the_terms_alone(tmp_path: Path) -> None:
    chosen = ("--layout=dp2-cp1-mb2-bshd", "--modes=sample_mean", "-k", MASKED.name)
    report = command.run(tmp_path, "microbatchesunweighted", *chosen).report

    findings = {finding.id.partition("/")[0]: finding for finding in report.findings}
    assert findings["weights"].verdict == "conforms"
    assert findings["auxiliary.kl"].verdict == "mismatch"
    assert findings["auxiliary.kl"].error == pytest.approx(1, rel=1e-6), "twice as much"


def test_default_is_token_mean(fsdp: RankPool) -> None:
    aggregation = Aggregation(Mode.TOKEN_MEAN)
    default = job(aggregation=aggregation, configuration=Configuration(says_mode=False))
    assert fsdp.description.default_mode is Mode.TOKEN_MEAN
    said = observed(fsdp, job(aggregation=aggregation)).token_weights[0]

    assert observed(fsdp, default).token_weights[0].tobytes() == said.tobytes()


@pytest.mark.parametrize(
    ("configuration", "mode", "verdict", "words"),
    [
        (Configuration(divisor=""), Mode.CONSTANT, "refused", "max_seq_len"),
        (Configuration(batch_size=3), Mode.PROMPT_MEAN, "unsupported", "prompts"),
        (
            Configuration(fault_injection=FaultInjection.GROUP_INCOMPLETE),
            Mode.PROMPT_MEAN,
            "refused",
            "Mismatch between prompts (8) and responses (7)",
        ),
    ],
)
def test_configurations_are_declined(
    fsdp: RankPool, configuration: Configuration, mode: Mode, verdict: str, words: str
) -> None:
    outcome = declined(fsdp, configuration, mode)

    assert outcome.verdict == verdict
    assert words in outcome.message


def test_divisor_reaches_the_loss_as_typed(fsdp: RankPool) -> None:
    configuration = Configuration(divisor="-40")
    aggregation = MASKED.aggregation(Mode.CONSTANT)
    what = job(aggregation=aggregation, configuration=configuration)

    expected = -token_weights(MASKED.steps[0], aggregation)
    np.testing.assert_allclose(observed(fsdp, what).token_weights[0], expected, rtol=3e-7)


@pytest.mark.parametrize(("typed", "finite"), [("inf", True), ("nan", False)])
def test_divisors_are_numbers_where_they_are_typed_as_such(
    fsdp: RankPool, typed: str, finite: bool
) -> None:
    """SkyRL divides by infinity, or by NaN, and not by words."""
    aggregation = MASKED.aggregation(Mode.CONSTANT)
    what = job(aggregation=aggregation, configuration=Configuration(divisor=typed))
    [weights] = observed(fsdp, what).token_weights

    of_active = weights[MASKED.steps[0].mask]
    assert (of_active == 0).all() if finite else np.isnan(of_active).all()


def trajectories() -> list[tuple[str, bool]]:
    SkyRLFsdpAdapter().load(None)
    rollouts = Rollouts(ProbedBatch(CASES["unequal_groups"].steps), job(case="unequal_groups"))
    output = rollouts.output(["step0-group0", "step0-group2"], step_wise=True)
    names = [trajectory.to_string() for trajectory in output["trajectory_ids"]]
    return [*zip(names, output["is_last_step"], strict=True)]


def test_rollouts_of_several_samples_are_told_apart_as_a_generator_would() -> None:
    """Prompts 0 and 2 of four."""
    assert in_a_process(trajectories) == [
        ("step0-group0_0", False),
        ("step0-group0_0", True),
        ("step0-group0_1", True),
        ("step0-group2_4", False),
        ("step0-group2_4", False),
        ("step0-group2_4", True),
        ("step0-group2_5", True),
    ]


def test_prompts_that_do_not_share_out_over_ranks_are_dropped_and_missed() -> None:
    """Of three prompts of two samples SkyRL keeps two on four ranks, and asserts three.

    The only prompt of eight samples is dropped on three ranks.
    """
    with RankPool(SkyRLFsdpAdapter(), None, 4) as pool:
        outcomes = [
            pool.run(job(case=case, layout=Layout(dp=ranks)))
            for case, ranks in (("fibonacci_lengths", 4), ("one_prompt", 3))
        ]

    assert outcomes == [
        Declined("refused", "AssertionError: "),
        Declined("refused", "RuntimeError: No outputs generated"),
    ]


def test_rollouts_are_answered_where_skyrl_put_their_tokens() -> None:
    """A row that is added repeats the first one."""
    batch = ProbedBatch(CASES["two_prompts"].steps)
    prompt, response = batch.prompts[1], batch.responses[1]
    row = torch.tensor([0, *prompt, *response, 0])
    data = TensorsOfRows({"sequences": torch.stack([row, row])})
    answers = Rollouts(batch, job(Objective.KL, case="two_prompts")).log_probs_or_values(
        "ref", data
    )

    expected = [*batch.reference_log_probs[1], 0]
    assert answers.tolist() == [expected, expected]


@cache
def process_of(engine: str) -> ProcessPoolExecutor:
    """A process for functions that load an engine, as SkyRL stays where it was imported."""
    return ProcessPoolExecutor(1, mp_context=command.warm_context())


@pytest.fixture(scope="module", autouse=True)
def end_of_processes() -> Iterator[None]:
    yield
    for engine in ("fsdp", "megatron"):
        process_of(engine).shutdown()


def in_a_process(function: object, *arguments: object, engine: str = "fsdp") -> object:
    """What a function returns in the process of an engine."""
    return process_of(engine).submit(function, *arguments).result()  # type: ignore[arg-type]


def aggregated(entries: list[LogEntry]) -> dict[str, float] | str:
    adapter = SkyRLFsdpAdapter()
    adapter.load(None)
    with tempfile.TemporaryDirectory() as folder:
        store = dist.FileStore(f"{folder}/store", 1)  # type: ignore[attr-defined]
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        try:
            return dict(adapter.aggregate(entries, Rank(index=0, world_size=1)))
        except Unsupported as reason:
            return str(reason)
        finally:
            dist.destroy_process_group()


def test_logs_of_micro_batches_are_summed_or_averaged_by_name() -> None:
    entries = [
        LogEntry(keys=("policy_loss", "policy_entropy"), values=(1.0, 2.0)),
        LogEntry(keys=("policy_loss", "policy_entropy"), values=(3.0, 4.0)),
    ]

    assert in_a_process(aggregated, entries) == {"policy_loss": 4.0, "policy_entropy": 3.0}


@pytest.mark.parametrize(
    "entry",
    [
        LogEntry(keys=("loss", "kl"), values=(1.0, 2.0), normalizers=(2.0, 2.0)),
        LogEntry(keys=("loss", "kl"), values=(1.0, 2.0), count=4.0),
        LogEntry(keys=("loss", "kl"), values=(1.0,)),
        LogEntry(keys=("kl", "loss"), values=(1.0, 2.0)),
    ],
)
def test_forms_of_log_entries_that_skyrl_lacks_are_unsupported(entry: LogEntry) -> None:
    first = LogEntry(keys=("loss", "kl"), values=(1.0, 2.0))

    assert "log entries" in str(in_a_process(aggregated, [first, entry]))


def described(adapter: SkyRLAdapter) -> Description:
    adapter.load(None)
    return adapter.describe()


ADAPTERS = pytest.mark.parametrize("adapter", [SkyRLFsdpAdapter(), SkyRLMegatronAdapter()])


@ADAPTERS
def test_places_and_rules_are_functions_of_skyrl(adapter: SkyRLAdapter) -> None:
    found = in_a_process(described, adapter, engine=adapter.engine)
    assert isinstance(found, Description)

    assert all(
        re.fullmatch(r"skyrl/[a-z/_]+\.py:\d+ \([\w.]+\)", function)
        for function in (*found.places.values(), *found.rules.values())
    )
    assert found.rules["divisor_missing"].endswith("(validate_cfg)")
    assert (CodeLocation.REDUCTION in found.places) == (adapter.engine == "megatron")


@ADAPTERS
def test_departures_are_of_every_kind(adapter: SkyRLAdapter) -> None:
    found = in_a_process(described, adapter, engine=adapter.engine)
    assert isinstance(found, Description)

    assert {one.kind for one in found.departures} >= {
        DepartureKind.NOT_RUN,
        DepartureKind.SET,
        DepartureKind.STUBBED,
    }
    assert len({one.what for one in found.departures}) == len(found.departures)
