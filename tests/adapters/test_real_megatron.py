"""Versions, depths and dtypes of slime and miles that no committed report covers.

The tests need clones of both frameworks, as neither is on a package index.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from conformance.findings.report import Report
from tests import command
from tests.pools import NEEDS_CLONES

pytestmark = NEEDS_CLONES

LAYOUTS = ("--layout=dp1-cp1-mb1-thd", "--layout=dp2-cp2-mb2-thd", "--layout=dp2-cp1-mbtokens-thd")

POLICY_LOSS = "[weights/ or [metric/"
"""The weights of the policy loss, and the logged policy loss."""

EMPTY_SAMPLES_COUNT = {
    "fully_masked_sample",
    "fully_masked_group",
    "nine_samples",
    "one_token",
    "production_step",
}
"""Cases that distinguish token_mean from a mean in which an empty sample counts as a token."""


TELLING = "fully_masked or nine_samples or one_token or split_groups or two_steps or uneven_lengths"
"""Cases that distinguish the modes, with some of `EMPTY_SAMPLES_COUNT`."""


def run(
    tmp_path: Path,
    adapter: str,
    ref: str,
    *arguments: str,
    cases: str = "dp",
    subjects: str = POLICY_LOSS,
) -> Report:
    repository = Path(os.environ[command.SOURCES]) / adapter
    selected = ("--plan=full", "-k", f"({subjects}) and ({cases})")
    result = command.run(tmp_path, adapter, f"--source={repository}@{ref}", *arguments, *selected)
    assert result.report.complete, result.output
    return result.report


def cases(report: Report, mode: str, *verdicts: str) -> set[str]:
    return {
        finding.case
        for finding in report.findings
        if finding.mode == mode and finding.verdict in verdicts
    }


def empty_samples(report: Report) -> set[str]:
    """The cases of `EMPTY_SAMPLES_COUNT` that this version trains in `token_mean`."""
    return EMPTY_SAMPLES_COUNT & cases(report, "token_mean", "conforms", "mismatch")


@pytest.mark.parametrize(
    ("adapter", "ref", "modes"),
    [
        ("slime", "v0.2.2", {"sample_mean", "token_mean"}),
        ("miles", "refs/pull/1328/head", {"sample_mean", "token_mean", "constant"}),
    ],
)
def test_older_versions_have_their_modes_and_weigh_as_known(
    tmp_path: Path, adapter: str, ref: str, modes: set[str]
) -> None:
    report = run(tmp_path, adapter, ref, *LAYOUTS, cases=TELLING)

    offered = {m for m, counts in report.summary.modes.items() if "conforms" in counts}
    assert offered == modes
    assert {f.verdict for f in report.findings} <= {
        "conforms",
        "mismatch",
        "refused",
        "unsupported",
        "advice",
    }
    for mode in modes - {"token_mean"}:
        assert cases(report, mode, "mismatch") == set()
    assert cases(report, "token_mean", "mismatch") == empty_samples(report) != set()


def test_first_commit_of_slime_2090_divides_prompt_mean_by_the_group_size(tmp_path: Path) -> None:
    """The pull request's second commit, "normalize prompt_mean by prompt count", fixed that."""
    cases = "prompt_mean and odd_groups"
    report = run(tmp_path, "slime", "bd9714414", *LAYOUTS, cases=cases, subjects="[weights/")

    assert len(report.findings) == len(LAYOUTS)
    for finding in report.findings:
        assert finding.error == pytest.approx(2 / 3, rel=1e-6)
        assert finding.diagnosis.name == "samples_counted_as_prompts"
        assert "divided_by_group_size" in finding.diagnosis.also


@pytest.mark.parametrize(
    ("adapter", "ref"), [("slime", "refs/pull/2090/head"), ("miles", "refs/pull/1350/head")]
)
def test_depths_tell_where_empty_samples_are_counted(
    tmp_path: Path, adapter: str, ref: str
) -> None:
    """The reducers add up the right tokens; the loss functions count one for an empty sample."""
    arguments = ("--layout=dp2-cp2-mb2-thd", "--modes=token_mean")
    at_reducer = run(tmp_path, adapter, ref, *arguments, "--depth=reducer")
    at_loss = run(tmp_path, adapter, ref, *arguments, "--depth=loss")

    assert cases(at_reducer, "token_mean", "mismatch") == set()
    assert cases(at_loss, "token_mean", "mismatch") == empty_samples(at_loss) > {"one_token"}


@pytest.mark.parametrize(
    ("adapter", "engine", "ref"),
    [
        ("slime", "megatron", "refs/pull/2090/head"),
        ("miles", "megatron", "refs/pull/1498/head"),
        ("miles", "fsdp", "refs/pull/1498/head"),
    ],
)
def test_parameters_in_bfloat16_conform_within_their_bound(
    tmp_path: Path, adapter: str, engine: str, ref: str
) -> None:
    chosen = (f"--engine={engine}", "--dtype=bfloat16", "--layout=dp2-cp1-mb2-thd")
    cases = "uneven_lengths and not prompt_mean"
    report = run(tmp_path, adapter, ref, *chosen, cases=cases, subjects="[weights/")

    assert {finding.verdict for finding in report.findings} == {"conforms"}
    assert max(finding.error for finding in report.findings) > 1e-4, "not in bfloat16"


@pytest.mark.parametrize(
    ("adapter", "ref"),
    [
        ("slime", "9c909a445"),  # before pull request 1442: functions get the parallel state
        ("miles", "2b5b7fc1f"),  # May 2026, before modules of rollouts and logits were moved
    ],
)
def test_versions_with_modules_elsewhere_are_driven(tmp_path: Path, adapter: str, ref: str) -> None:
    report = run(tmp_path, adapter, ref, "--layout=dp1-cp2-mb2-thd", cases="uneven_lengths")

    assert {f.verdict for f in report.findings} <= {"conforms", "unsupported", "advice"}
    assert "conforms" in {f.verdict for f in report.findings}


@pytest.mark.parametrize("adapter", ["slime", "miles"])
def test_experts_that_ranks_share_have_the_weights_of_any_parameter(
    tmp_path: Path, adapter: str
) -> None:
    arguments = ("--layout=dp2-cp2-mb2-thd+expert_parallel", "--engine=megatron")

    report = run(
        tmp_path, adapter, "main", *arguments, cases="uneven_lengths", subjects="[weights/"
    )

    assert cases(report, "sample_mean", "conforms") == {"uneven_lengths"}
    assert cases(report, "token_mean", "conforms") == {"uneven_lengths"}


def replayed(tmp_path: Path, adapter: str, *layouts: str) -> dict[str, str]:
    """The verdict on each layout if tokens must get the experts that their rollouts chose."""
    asked = [f"--layout={layout}+routing_replay" for layout in layouts]
    asked += ["--engine=megatron", "--modes=sample_mean"]

    report = run(tmp_path, adapter, "main", *asked, cases="uneven_lengths", subjects="[weights/")

    return {str(finding.layout): str(finding.verdict) for finding in report.findings}


@pytest.mark.parametrize("adapter", ["slime", "miles"])
def test_tokens_get_the_experts_of_their_rollouts(tmp_path: Path, adapter: str) -> None:
    layouts = ("dp2-cp2-mb2-thd", "dp1-cp2-mbtokens-thd", "dp1-cp1-pp2-mb2-thd")

    assert {*replayed(tmp_path, adapter, *layouts).values()} == {"conforms"}


def test_rows_of_miles_get_the_experts_of_other_tokens_if_they_are_several(tmp_path: Path) -> None:
    """miles orders tokens by row, Megatron-Core's router by position first (pull request 3146)."""
    found = replayed(tmp_path, "miles", "dp1-cp1-mb2-bshd", "dp1-cp1-mb8-bshd")

    assert found == {
        "dp1-cp1-mb2-bshd+routing_replay": "mismatch",
        "dp1-cp1-mb8-bshd+routing_replay": "conforms",
    }


@pytest.mark.parametrize(("ref", "is_for_tests"), [("refs/pull/1498/head", True), ("main", False)])
def test_engine_for_tests_alone_is_a_departure(
    tmp_path: Path, ref: str, is_for_tests: bool
) -> None:
    arguments = ("--engine=fsdp", "--layout=dp1-cp1-mb1-thd", "--modes=sample_mean")
    report = run(tmp_path, "miles", ref, *arguments, cases="uneven_lengths")

    assert {finding.verdict for finding in report.findings} == {"conforms"}
    departures = {one.what for one in report.departures}
    assert ("--ci-test --ci-disable-logprobs-checker" in departures) is is_for_tests
