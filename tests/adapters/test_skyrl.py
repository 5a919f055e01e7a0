"""SkyRL's real code: the installed release always, other versions where a source is given."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from adapters.contract import Layout
from conformance.cases import CORPUS
from conformance.report import Check
from reference.aggregation import Mode
from tests import command

pytestmark = pytest.mark.skyrl

OUTSIDE_ITS_CONTRACT = {"interleaved_groups": "refused", "dropped_rollouts": "unsupported"}
"""SkyRL takes the samples of a prompt to be adjacent, and as many rollouts for every prompt."""


def unexpected(findings: list[dict]) -> list[str]:
    """What does not conform though SkyRL is made for it."""
    return [
        finding["id"]
        for finding in findings
        if finding["verdict"] != OUTSIDE_ITS_CONTRACT.get(finding["case"], "conforms")
    ]


def cases_on(layouts: list[str]) -> int:
    """How often the layouts run a case of the corpus."""
    return sum(case.runs_on(Layout.parse(layout)) for case in CORPUS for layout in layouts)


def test_forcing_dp_size_to_one_halves_every_weight_and_is_named(tmp_path: Path) -> None:
    cases = ("-k", "short_responses or odd_groups")
    result = command.run(tmp_path, "dpsizeone", "--layout=dp2-cp1-mb1-bshd", *cases)

    findings = [one for one in result.report["findings"] if one["check"] == "weights"]
    others = [one for one in result.report["findings"] if one not in findings]
    assert {finding["verdict"] for finding in others} == {"conforms"}, "the log has it right"
    assert [finding["verdict"] for finding in findings] == ["mismatch"] * 8
    for finding in findings:
        assert finding["error"] == pytest.approx(0.5, rel=1e-7)
        assert finding["diagnosis"]["numbers"]["dp"] == 2
    names = {finding["case"]: finding["diagnosis"]["name"] for finding in findings}
    assert names == {
        "odd_groups": "divided_by_dp",
        "short_responses": "divided_by_dp_or_group_size",
    }
    short = [finding for finding in findings if finding["case"] == "short_responses"]
    errors = {finding["mode"]: finding["error"] for finding in short}
    assert errors["sample_mean"] == 0.5, "its denominators, powers of two, round nothing"


@pytest.mark.parametrize("depth", ["reducer", "loss"])
def test_depths_below_the_step_conform(tmp_path: Path, depth: str) -> None:
    layouts = ["dp1-cp1-mb2-bshd", "dp2-cp2-mbtokens-thd"]
    chosen = [f"--layout={layout}" for layout in layouts]
    result = command.run(tmp_path, "skyrl", f"--depth={depth}", *chosen)

    findings = result.report["findings"]
    assert len(findings) == cases_on(layouts) * len(Mode)
    assert unexpected(findings) == [], result.output
    assert {finding["depth"] for finding in findings} == {depth}


def test_megatron_engine_conforms_under_context_and_tensor_parallelism(tmp_path: Path) -> None:
    layouts = ["dp2-cp1-mb2-bshd", "dp2-cp2-mb2-thd", "dp1-cp2-mbtokens-thd", "dp1-cp1-tp2-mb2-thd"]
    chosen = [f"--layout={layout}" for layout in layouts]
    result = command.run(tmp_path, "skyrl", "--engine=megatron", *chosen)

    findings = result.report["findings"]
    assert result.report["engine"] == "megatron"
    assert len(findings) == cases_on(layouts) * len(Mode) * len(Check)
    assert unexpected(findings) == [], result.output


def test_megatron_engine_conforms_at_depth_loss(tmp_path: Path) -> None:
    arguments = ("--engine=megatron", "--depth=loss", "--layout=dp2-cp2-mb2-thd")
    result = command.run(tmp_path, "skyrl", *arguments)

    assert unexpected(result.report["findings"]) == []


def test_workers_find_the_same_byte_for_byte(tmp_path: Path) -> None:
    selection = ("--layout=dp2-cp1-mbtokens-thd", "--layout=dp2-cp2-mb2-bshd", "-k", "two_steps")
    folders = tmp_path / "alone", tmp_path / "shared"
    for folder in folders:
        folder.mkdir()
    alone = command.run(folders[0], "skyrl", *selection)
    shared = command.run(folders[1], "skyrl", *selection, "-n", "2")

    assert len(alone.report["findings"]) == 8 * len(Check)
    assert alone.findings == shared.findings


def test_report_says_what_ran(tmp_path: Path) -> None:
    result = command.run(tmp_path, "skyrl", "--layout=dp1-cp1-mb1-bshd", "-k", "one_token")

    report = result.report
    assert report["source"] == {
        "kind": "installed",
        "revision": None,
        "version": "0.3.0",
        "ref": None,
        "dirty": False,
    }
    assert report["engine"] == "fsdp"
    assert "transformers" in report["environment"]["dependencies"]
    assert report["environment"]["stand_ins"] == ["flash_attn"]


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
    result = command.run(tmp_path, "skyrl", f"--source={repository}@{ref}", *layouts)

    modes = result.report["summary"]["modes"]
    assert {mode for mode in modes if set(modes[mode]) == {"unsupported"}} == unsupported
    known = [finding for finding in result.report["findings"] if finding["mode"] not in unsupported]
    assert unexpected(known) == []
    assert result.report["source"]["ref"] == ref
    assert result.report["source"]["kind"] == "git"


@pytest.mark.skipif(
    command.SOURCES not in os.environ, reason=f"{command.SOURCES} names no folder of checkouts"
)
def test_megatron_engine_of_the_version_before_multiplies_by_cp(tmp_path: Path) -> None:
    """Mended by SkyRL's pull request 1751, which takes cp out of the loss's factor."""
    repository = Path(os.environ[command.SOURCES]) / "SkyRL"
    source = f"--source={repository}@skyrl-v0.2.0"
    layouts = ["--layout=dp2-cp1-mb2-thd", "--layout=dp1-cp2-mb1-thd"]
    arguments = (source, "--engine=megatron", "--modes=token_mean", "-k", "odd_groups", *layouts)
    findings = command.run(tmp_path, "skyrl", *arguments).report["findings"]

    verdicts = {finding["layout"]["cp"]: finding["verdict"] for finding in findings}
    assert verdicts == {1: "conforms", 2: "mismatch"}
    [diagnosis] = [finding["diagnosis"] for finding in findings if finding["diagnosis"]]
    assert diagnosis["name"] == "multiplied_by_cp"
    assert diagnosis["numbers"] == {"ratio": pytest.approx(2, rel=1e-6), "cp": 2}
