"""slime's and miles' real code, where clones of them are given; neither is on a package index."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests import command

pytestmark = pytest.mark.skipif(
    command.SOURCES not in os.environ, reason=f"{command.SOURCES} names no folder of clones"
)

LAYOUTS = ("--layout=dp1-cp1-mb1-thd", "--layout=dp2-cp2-mb2-thd", "--layout=dp2-cp1-mbtokens-thd")

EMPTY_SAMPLES_COUNT = {"fully_masked_sample", "fully_masked_group", "one_token"}
"""Cases that tell token_mean from a mean in which an empty sample counts as a token."""


def run(tmp_path: Path, adapter: str, ref: str) -> dict[str, Any]:
    repository = Path(os.environ[command.SOURCES]) / adapter
    result = command.run(tmp_path, adapter, f"--source={repository}@{ref}", *LAYOUTS)
    assert result.report["complete"], result.output
    return result.report


def cases(report: dict[str, Any], mode: str, verdict: str) -> set[str]:
    return {
        finding["case"]
        for finding in report["findings"]
        if finding["mode"] == mode and finding["verdict"] == verdict
    }


@pytest.mark.parametrize(
    ("adapter", "ref", "modes"),
    [
        ("slime", "refs/pull/2090/head", {"sample_mean", "prompt_mean", "token_mean", "constant"}),
        ("slime", "main", {"sample_mean", "token_mean"}),
        ("slime", "v0.3.1", {"sample_mean", "token_mean"}),
        ("slime", "v0.2.2", {"sample_mean", "token_mean"}),
        ("miles", "refs/pull/1498/head", {"sample_mean", "prompt_mean", "token_mean", "constant"}),
        ("miles", "refs/pull/1328/head", {"sample_mean", "token_mean", "constant"}),
        ("miles", "v0.1.0", {"sample_mean", "token_mean"}),
        ("miles", "main", {"sample_mean", "token_mean"}),
    ],
)
def test_versions_have_their_modes_and_weigh_as_known(
    tmp_path: Path, adapter: str, ref: str, modes: set[str]
) -> None:
    report = run(tmp_path, adapter, ref)

    offered = {m for m, counts in report["summary"]["modes"].items() if "conforms" in counts}
    assert offered == modes
    assert {f["verdict"] for f in report["findings"]} <= {
        "conforms",
        "mismatch",
        "refused",
        "unsupported",
    }
    for mode in modes - {"token_mean"}:
        assert cases(report, mode, "mismatch") == set()
    counted = set() if ref == "refs/pull/1498/head" else EMPTY_SAMPLES_COUNT
    assert cases(report, "token_mean", "mismatch") == counted


def test_first_commit_of_slime_2090_divides_prompt_mean_by_the_group_size(tmp_path: Path) -> None:
    """Mended by its second commit, "normalize prompt_mean by prompt count"."""
    report = run(tmp_path, "slime", "bd9714414")

    [finding] = [
        finding
        for finding in report["findings"]
        if finding["id"] == "weights/prompt_mean/uneven_lengths/dp1-cp1-mb1-thd"
    ]
    assert finding["error"] == pytest.approx(0.5, rel=1e-6)
    assert finding["diagnosis"]["name"] == "divided_by_group_size"
