"""The output of ``rl-loss-conformance trace``."""

import json

import pytest

from conformance.cli import USAGE_ERROR, main
from tests import command

FINDING = "weights/token_mean/uneven_lengths/dp2-cp1-mb2-thd"


def test_a_tree_shows_each_factor_with_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", FINDING, "--adapter=native", "--token=1:0"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{FINDING}: token 1:0 weighs 1/35, as it should"
    assert lines[1].startswith("× 1/35")
    assert "adapters/native/trainer.py:" in lines[1]
    assert lines[-1] == "= 1/35"
    assert len(lines) <= 25


def test_a_document_has_all_of_it_and_no_source(capsys: pytest.CaptureFixture[str]) -> None:
    adapter = command.BROKEN["onetokenshort"]
    assert main(["trace", FINDING, f"--adapter={adapter}", "--format=json"]) == 0

    document = json.loads(capsys.readouterr().out)
    assert document["product"] == pytest.approx(document["observed"], rel=1e-6)
    assert document["objection"] is None
    assert document["suspects"]
    assert all({"file", "line", "function", "why"} == {*one} for one in document["suspects"])
    assert "|" not in json.dumps(document)


@pytest.mark.parametrize(
    ("finding", "words"),
    [
        ("metric/token_mean/fully_masked_sample/dp2-cp1-mb2-thd", "1/23 in the logged policy loss"),
        ("off_policy.tis_token/token_mean/fully_masked_sample/dp2-cp1-mb2-thd", "weighs 1/23"),
        ("off_policy.cispo/sample_mean/fully_masked_sample/dp2-cp1-mb2-thd", "weighs 1/48"),
        ("metric.entropy/token_mean/fully_masked_sample/dp2-cp1-mb2-thd", "in the logged entropy"),
    ],
)
def test_losses_and_logs_are_traced(
    capsys: pytest.CaptureFixture[str], finding: str, words: str
) -> None:
    assert main(["trace", finding, "--adapter=native", "--format=json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["product"] == pytest.approx(document["observed"], rel=1e-6)
    assert document["suspects"] == []

    assert main(["trace", finding, "--adapter=native"]) == 0
    assert words in capsys.readouterr().out.splitlines()[0]


def test_a_trace_against_another_tells_the_factors_that_differ(
    capsys: pytest.CaptureFixture[str],
) -> None:
    other = FINDING.replace("token_mean", "sample_mean")
    assert main(["trace", FINDING, f"--against={other}", "--adapter=native"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert [line.split(": × ")[0] for line in lines if line.startswith("only in")] == [
        f"only in {FINDING}",
        f"only in {other}",
    ]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["weights"], "is no id of a finding"),
        ([FINDING.replace("uneven_lengths", "none")], "there is no finding"),
        ([FINDING.replace("weights", "auxiliary.router")], "cannot be traced"),
        ([FINDING, "--token=90:0"], "90:0 is no token"),
    ],
)
def test_what_cannot_be_traced_is_said(
    capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert main(["trace", *arguments, "--adapter=native"]) == USAGE_ERROR
    assert words in capsys.readouterr().err
