"""``check-adapter`` names the faults of an adapter, and nothing that is right."""

import re
from pathlib import Path

import pytest

from conformance import cli
from tests import command
from tests.minimal import broken
from tests.minimal.right import MinimalAdapter
from tests.tables import table


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """The exit status, and the output with all white space as single blanks."""
    status = cli.main(["check-adapter", *arguments])
    return status, " ".join(capsys.readouterr().out.split())


COMPLAINTS = {
    getattr(broken, adapter): said for adapter, said in table("conformance/complaints.toml").items()
}
"""The name of the complaint about each broken adapter, and words of its message."""


@pytest.mark.parametrize("adapter", COMPLAINTS, ids=lambda adapter: adapter.__name__)
def test_broken_adapter_is_told_what_is_wrong(
    capsys: pytest.CaptureFixture[str], adapter: type[MinimalAdapter]
) -> None:
    name, words = COMPLAINTS[adapter]
    status, text = printed(capsys, f"{broken.__name__}:{adapter.__name__}")

    assert status == cli.WORSE
    assert text.startswith(f"{name} in ")
    assert words in text
    assert "may be the framework's own mistake" not in text


def test_every_broken_adapter_is_looked_at() -> None:
    classes = [one for one in vars(broken).values() if isinstance(one, type)]

    assert {
        one
        for one in classes
        if issubclass(one, MinimalAdapter) and one.__module__ == broken.__name__
    } == {*COMPLAINTS}


NOT_SHOWN = "nothing that could be run shows it"


@pytest.mark.parametrize(
    ("adapter", "status", "words", "absent"),
    [
        (
            "tests.minimal.right:MinimalAdapter",
            0,
            "^6 findings show nothing wrong. Not declared, and so never run: modes: prompt_mean,"
            " constant depths: loss, reducer objectives: off_policy, ",
            NOT_SHOWN,
        ),
        ("native", 0, "findings show nothing wrong", NOT_SHOWN),
        (
            "tests.minimal.mistaken:DrivingAMistake",
            0,
            "which may be the framework's own mistake in weights/sample_mean/.* show nothing wrong",
            "Traceback",
        ),
        (
            "tests.minimal.mistaken:ListingALayoutOfOtherVersions",
            0,
            f"Declared, and {NOT_SHOWN}: layout dp1-cp1-mb1-thd.",
            "Traceback",
        ),
        ("tests.minimal.mistaken:HavingALossOfOneMode", 0, "show nothing wrong", NOT_SHOWN),
        (
            "tests.broken:OneTokenShort",
            cli.WORSE,
            "^factor, which may be the framework's own mistake in sample_mean, depth .* every"
            " weight is 1.015873 times as large as it should be",
            "Traceback",
        ),
    ],
)
def test_what_is_right_or_of_the_framework_is_no_complaint_about_the_adapter(
    capsys: pytest.CaptureFixture[str], adapter: str, status: int, words: str, absent: str
) -> None:
    found, text = printed(capsys, adapter)

    assert found == status
    assert re.search(words, text), text
    assert absent not in text


@pytest.mark.parametrize("unfinished", ["WithoutObserve", "WithoutAName"])
def test_unfinished_class_is_one_line_of_a_run(tmp_path: Path, unfinished: str) -> None:
    result = command.run(tmp_path, f"tests.minimal.unfinished:{unfinished}", "--checks=weights")

    assert result.status == pytest.ExitCode.USAGE_ERROR, result.output
    assert f"ERROR: class {unfinished} of tests.minimal.unfinished lacks " in result.output
    assert "Traceback" not in result.output
    assert "INTERNALERROR" not in result.output
