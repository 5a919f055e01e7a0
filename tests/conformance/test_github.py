"""Output for GitHub keeps within its limits, and text from outside is never a command."""

import os
import re
from pathlib import Path

import pytest

from conformance.findings.cause import SuspectedLine
from conformance.findings.verdict import Verdict
from conformance.views import report_formats
from tests import command
from tests.findings import crash, finding, mismatch, recaused, report


def test_each_mistake_is_one_annotation_and_there_are_ten_at_most() -> None:
    found = [mismatch(f"c{i}", f"mistake_{i % 30}") for i in range(60)]

    lines = [*report_formats.error_commands(report(*found), found)]

    assert len(lines) == report_formats.MOST_ANNOTATIONS
    assert lines[0].startswith("::error title=mistake_")
    assert lines[0].split("::")[1].endswith(" (2)")
    assert not list(report_formats.error_commands(report(*found), []))


def test_an_annotation_is_at_the_line_to_look_at_first() -> None:
    lines = [SuspectedLine(file="a,b.py", line=7, function="f", why="it counts")] * 2
    traced = recaused(report(mismatch("a", "mistake")), suspects=lines)

    [line] = report_formats.error_commands(traced, traced.findings)

    assert line.startswith("::error file=a%2Cb.py,line=7,title=mistake (1)::")


def test_words_of_a_framework_stay_inside_of_their_command() -> None:
    found = crash("a", "50%\x1b[31m::set-output name=x::y, z:")
    [line] = report_formats.error_commands(report(found), [found])

    assert "\n" not in line
    assert "\x1b" not in line
    # two of the command, and the two of the framework's words, which stay in its message
    assert line.count("::") == 2 + 2
    assert "%25" in line


def test_summary_is_appended_and_cut_where_github_would_refuse_it(tmp_path: Path) -> None:
    page = tmp_path / "summary.md"
    page.write_text("before\n")
    report_formats.add_summary(report(finding("a")), ["  <b>after</b> @team"], page)

    assert page.read_text().startswith("before\n### toy 1, engine torch")
    assert page.read_text().endswith("```text\n  <b>after</b> @team\n```\n")

    report_formats.add_summary(report(finding("a")), ["é" * report_formats.MOST_BYTES], page)
    assert page.stat().st_size <= report_formats.MOST_BYTES + 1000
    page.read_text()


def test_run_on_github_tells_what_failed_and_elsewhere_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "summary.md"
    chosen = ("--checks=weights", "--modes=token_mean", "-k", "uneven_lengths")
    elsewhere = command.run(tmp_path, "onetokenshort", *chosen)
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", os.fspath(page))
    result = command.run(tmp_path, "onetokenshort", *chosen)

    assert "::error" not in elsewhere.output
    assert re.search(
        r"^::error file=\S+,line=\d+,title=\w+ \(2\)::weights/token_mean", result.output, re.M
    )
    assert "| weights | 2 MISMATCH |" in page.read_text()
    assert "pytest --adapter=native --engine=torch" in page.read_text()


def test_digest_of_what_conforms_is_short() -> None:
    lines = [*report_formats.as_markdown(report(finding("a"), finding("b", Verdict.REFUSED)))]

    assert "| weights | 1 ok, 1 refused |" in lines
    assert not any("<details>" in line for line in lines)
