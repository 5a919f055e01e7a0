"""SkyRL's real code: the installed release always, other versions where a source is given."""

from __future__ import annotations

import os
import re
import tempfile
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch.distributed as dist
from omegaconf import OmegaConf

from adapters.contract import Description, LogEntry, Rank, Unsupported
from adapters.skyrl import importing
from adapters.skyrl.adapter import SkyRLFsdpAdapter, SkyRLMegatronAdapter
from conformance.findings.report import Provenance
from reference.aggregation import Mode
from reference.rounding import weight_bound
from tests import command
from tests.pools import NEEDS_CLONES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from adapters.skyrl.adapter import SkyRLAdapter

pytestmark = pytest.mark.skyrl

PLAIN = "weights/ or (metric/ and not rejection)"
"""The policy loss alone: its weights and its log."""

TELLING = ("uneven_lengths", "fully_masked_sample", "short_responses", "split_groups", "two_steps")
"""Cases that distinguish the modes; the first command of the README runs all cases."""

OF_TELLING = f"({' or '.join(f'/{case}/' for case in TELLING)})"

OUTSIDE_ITS_CONTRACT = ("interleaved_groups", "dropped_rollouts")
"""SkyRL requires adjacent samples of a prompt, and equally many rollouts for every prompt."""


def unexpected(findings: list[dict]) -> list[str]:
    """Findings that do not conform although SkyRL supports their steps."""
    return [
        finding.id
        for finding in findings
        if finding.verdict != ("refused" if finding.case in OUTSIDE_ITS_CONTRACT else "conforms")
    ]


@pytest.mark.parametrize(
    ("engine", "depth"),
    [
        ("fsdp", "reducer"),
        pytest.param("fsdp", "loss", marks=pytest.mark.thorough),
        ("megatron", "loss"),
    ],
)
def test_depths_below_the_step_conform(tmp_path: Path, engine: str, depth: str) -> None:
    chosen = (f"--engine={engine}", f"--depth={depth}", "--checks=weights", "-k", OF_TELLING)
    result = command.run(tmp_path, "skyrl", *chosen, "--layout=dp2-cp2-mb2-thd")

    findings = result.report.findings
    assert len(findings) == len(TELLING) * len(Mode)
    assert unexpected(findings) == [], result.output
    assert {finding.depth for finding in findings} == {depth}


@pytest.mark.parametrize("engine", ["fsdp", "megatron"])
def test_parameters_in_bfloat16_conform_within_their_bound(tmp_path: Path, engine: str) -> None:
    chosen = (f"--engine={engine}", "--dtype=bfloat16", "--layout=dp2-cp1-mb2-thd")
    result = command.run(tmp_path, "skyrl", *chosen, "--checks=weights", "-k", OF_TELLING)
    findings = result.report.findings

    assert len(findings) == len(TELLING) * len(Mode)
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
@pytest.mark.thorough
def test_findings_under_torchrun_are_the_pool_s(tmp_path: Path) -> None:
    chosen = ("--layout=dp2-cp1-mb2-thd", "--checks=weights,metric", "-k", "one_token")
    pool = command.run(tmp_path / "pool", "skyrl", *chosen)
    two = command.torchrun(tmp_path / "two", "skyrl", *chosen, options=("--nproc-per-node=2",))

    assert two.status == pool.status
    assert two.findings == pool.findings


def test_report_says_what_ran(tmp_path: Path) -> None:
    result = command.run(tmp_path, "skyrl", "--layout=dp1-cp1-mb1-bshd", "-k", "one_token")

    report = result.report
    assert report.source == Provenance(
        kind="installed", revision=None, version="0.3.0", ref=None, dirty=False
    )
    assert report.engine == "fsdp"
    assert "transformers" in report.environment.dependencies
    assert report.environment.stubs == ["flash_attn"]


@NEEDS_CLONES
@pytest.mark.parametrize(
    ("engine", "ref", "unsupported"),
    [
        ("fsdp", "main", set()),
        ("megatron", "main", set()),
        ("fsdp", "refs/pull/1719/head", set()),
        ("fsdp", "skyrl-v0.3.0", set()),
        ("fsdp", "skyrl-v0.2.0", {"prompt_mean"}),
        ("megatron", "skyrl-v0.2.0", {"prompt_mean"}),
    ],
)
def test_other_versions_run_from_a_repository(
    tmp_path: Path, engine: str, ref: str, unsupported: set[str]
) -> None:
    repository = Path(os.environ[command.SOURCES]) / "SkyRL"
    layouts = ["--layout=dp1-cp1-mb1-thd", "--layout=dp4-cp1-mb2-bshd"]
    chosen = (f"--engine={engine}", *layouts, "-k", f"({PLAIN}) and {OF_TELLING}")
    result = command.run(tmp_path, "skyrl", f"--source={repository}@{ref}", *chosen)

    modes = result.report.summary.modes
    assert {mode for mode in modes if set(modes[mode]) == {"unsupported"}} == unsupported
    known = [finding for finding in result.report.findings if finding.mode not in unsupported]
    assert unexpected(known) == []
    assert result.report.source.ref == ref
    assert result.report.source.kind == "git"


@NEEDS_CLONES
def test_megatron_engine_of_the_version_before_multiplies_by_cp(tmp_path: Path) -> None:
    """SkyRL's pull request 1751 fixed this by removing cp from the loss's factor."""
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


@cache
def process_of(engine: str) -> ProcessPoolExecutor:
    """A process for functions that load one engine, as an imported SkyRL cannot be unloaded."""
    return ProcessPoolExecutor(1, mp_context=command.warm_context())


@pytest.fixture(scope="module", autouse=True)
def end_of_processes() -> Iterator[None]:
    yield
    for engine in ("fsdp", "megatron"):
        process_of(engine).shutdown()


def in_a_process(function: object, *arguments: object, engine: str = "fsdp") -> object:
    """The result of a function in the process of an engine."""
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


def described(adapter: SkyRLAdapter) -> Description:
    adapter.load(None)
    return adapter.describe()


ADAPTERS = pytest.mark.parametrize("adapter", [SkyRLFsdpAdapter(), SkyRLMegatronAdapter()])


@pytest.mark.parametrize(
    "text", ["null", "", "True", "0.2", "1000000.0", "1e6", "reinforce++", "[a, 1]", "'40'", "text"]
)
def test_options_are_read_as_omegaconf_reads_them(
    monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    typed = [f"trainer.algorithm.max_seq_len={text}", "trainer.epochs=1", f"trainer.logger={text}"]
    # so that monkeypatch restores the original later
    monkeypatch.setattr(OmegaConf, "from_cli", None)
    importing.read_options_once()

    for read in (OmegaConf.from_cli(typed), OmegaConf.from_cli(typed)):
        assert read == OmegaConf.from_dotlist(typed)
        assert type(read.trainer.logger) is type(OmegaConf.from_dotlist(typed).trainer.logger)


@ADAPTERS
def test_rules_are_functions_of_skyrl(adapter: SkyRLAdapter) -> None:
    found = in_a_process(described, adapter, engine=adapter.engine)
    assert isinstance(found, Description)

    assert all(
        re.fullmatch(r"skyrl/[a-z/_]+\.py:\d+ \([\w.]+\)", function)
        for function in found.rules.values()
    )
    assert found.rules["divisor_missing"].endswith("(validate_cfg)")


@ADAPTERS
def test_every_option_of_the_algorithm_is_in_the_record(adapter: SkyRLAdapter) -> None:
    found = in_a_process(described, adapter, engine=adapter.engine)
    assert isinstance(found, Description)

    assert found.objectives == {*adapter.framework.objectives}
    assert found.modes == {*Mode}
