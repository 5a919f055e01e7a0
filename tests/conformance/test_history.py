"""Histories and the watch: commands that run commits of frameworks and compare them."""

import json
import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from conformance import cli
from conformance.corpus.cases import ALL_CASES
from conformance.findings.report import Report
from conformance.findings.verdict import Verdict
from conformance.runs.versions import history as histories
from conformance.runs.versions.history import Row
from conformance.runs.versions.watch import targets
from conformance.sources.source import Commit, find_commits
from conformance.views.overview import committed
from conformance.views.overview.committed import CommittedReport
from conformance.views.versions.history_table import as_text, watch_table
from tests import command, room
from tests.findings import CP, EMPTY, MICRO, OTHER, A, B, report, right, with_verdict, wrong
from tests.history_page import with_causes
from tests.pools import NEEDS_CLONES
from tests.toys import WITH_CP, WITHOUT_CP, Edit, checkout, commit_edits, git

COUNTED_TWICE = Edit("lineage.py", "= num_tokens / grid.cp.size", "= num_tokens")
UNLOADABLE = Edit("lineage.py", "import torch\n", "import torchless\n")

PAGE = (command.ROOT / "reports" / "history.md").read_text()

ROWS = re.findall(r"^\| `([\w:.]+)` .*`rl-loss-conformance history (.*?)`", PAGE, re.MULTILINE)

QUICK = ("--layout=dp1-cp2-mb1-thd", "--modes=token_mean", "--case=odd_groups")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """slime's toy: first without a factor, then fixed but with a wrong log, then unloadable."""
    folder = checkout(tmp_path / "slime", WITHOUT_CP)
    commit_edits(folder, "Mend | it", WITH_CP, COUNTED_TWICE)
    commit_edits(folder, "A dead end", UNLOADABLE)
    git(folder, "tag", "broken", "HEAD~2")
    git(folder, "tag", "mended", "HEAD~1")
    return folder


def forked(folder: str, *arguments: str, **_: object) -> subprocess.CompletedProcess[str]:
    """Run pytest as histories do, in a forked process."""
    result = command.run(Path(folder), "slime", "-q", *arguments)
    return subprocess.CompletedProcess(arguments, result.status, stdout=result.output)


def history(repository: Path, *arguments: str) -> int:
    return cli.main(["history", "--adapter=slime", f"--source={repository}", *arguments])


@pytest.mark.processes
def test_weights_and_logged_losses_are_told_apart_by_commit(
    repository: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each commit runs in a forked process, instead of a new one."""
    monkeypatch.setattr(histories, "_pytest", forked)
    kept = tmp_path / "kept"
    assert history(repository, *QUICK, f"--reports={kept}", "broken", "mended", "HEAD") == 0

    output = capsys.readouterr()
    weights, metric, commits = output.out.split("\n\n")
    before, after, dead = (git(repository, "rev-parse", f"HEAD~{n}")[:10] for n in (2, 1, 0))
    header, *rows = weights.splitlines()
    assert header.split() == ["weights", "token_mean"]
    assert rows == [
        f"{before} broken  1 MISMATCH (divided_by_cp)",
        f"{after} mended  1 ok",
        f"{dead} HEAD",
    ]
    _, broken, mended, _ = metric.splitlines()
    assert broken == f"{before} broken  1 ok"
    assert mended.startswith(f"{after} mended  1 MISMATCH")
    *_, last = commits.splitlines()
    assert f"{after} mended: 20" in commits
    assert "\n  divided_by_cp in gradients\n" in commits
    assert (
        "  changed: divided_by_cp in logged losses (it was: divided_by_cp in gradients" in commits
    )
    assert "A dead end" in commits
    assert "ModuleNotFoundError: No module named 'torchless'" in last
    assert "2 of 3: mended" in output.err

    reports = {path.name: json.loads(path.read_text()) for path in kept.iterdir()}
    assert set(reports) == {f"slime-{before}.json", f"slime-{after}.json"}
    assert reports[f"slime-{after}.json"]["source"]["revision"].startswith(after)


def rows(*reports: Report | None) -> list[Row]:
    """A commit for each report; a commit without a report could not be run."""
    return [
        Row(
            commit=Commit(
                ref=f"v{n}", revision=f"{n}" * 40, date="2026-01-01", subject="Mend | it"
            ),
            report=one,
            problem=None if one else "it cannot be imported",
        )
        for n, one in enumerate(reports)
    ]


HISTORY = rows(
    report(wrong(A, CP), wrong(OTHER, CP), right(B)),
    None,
    report(wrong(A, CP), right(OTHER, CP), wrong(B, EMPTY)),
    report(wrong(A, CP), right(OTHER, CP), right(B, EMPTY)),
)


def test_a_run_that_cannot_write_its_report_says_so_and_fails_the_history(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "the report cannot be written to x.json: No space left on device"

    def run(_: str, *arguments: str, **__: object) -> subprocess.CompletedProcess[str]:
        output, status = (
            ("", 0) if "--collect-only" in arguments else (f"ERROR: {words}\n1 passed in 2 s", 3)
        )
        return subprocess.CompletedProcess(arguments, status, output)

    monkeypatch.setattr(histories, "_pytest", run)

    arguments = ["history", "--adapter=slime", f"--source={repository}", "mended"]
    assert cli.main(arguments) == cli.USAGE_ERROR
    assert f"  {words}\n" in capsys.readouterr().out


def test_a_folder_for_reports_that_cannot_be_written_is_refused_before_any_run(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(histories, "find_commits", lambda *_: find_commits(repository, "mended"))
    arguments = ["history", "--adapter=slime", f"--source={repository}", "mended"]

    assert cli.main([*arguments, f"--reports={room.UNWRITABLE}"]) == cli.USAGE_ERROR
    assert f"no reports can be kept in {room.UNWRITABLE}: " in capsys.readouterr().err


def test_causes_of_each_commit_and_what_changed_since_the_one_before() -> None:
    lines = [*as_text(HISTORY)]

    assert "0000000000 v0  1 MISMATCH (multiplied_by_cp)  1 ok, 1 MISMATCH (multiplied_by_cp)" in (
        lines
    )
    changed = "multiplied_by_cp in token_mean"
    assert lines[lines.index("") + 1 :] == [
        "0000000000 v0: 2026-01-01 Mend | it",
        "  multiplied_by_cp",
        "1111111111 v1: 2026-01-01 Mend | it",
        "  it cannot be imported",
        "2222222222 v2: 2026-01-01 Mend | it",
        "  new: empty_samples_counted",
        f"  changed: {changed} (it was: multiplied_by_cp)",
        "3333333333 v3: 2026-01-01 Mend | it",
        "  gone: empty_samples_counted",
        f"  {changed}",
    ]


def test_markdown_is_one_table_with_a_column_for_causes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(histories, "find_commits", lambda *_: [HISTORY[0].commit])
    monkeypatch.setattr(histories, "run", lambda *_: iter(HISTORY))
    assert cli.main(["history", "--adapter=slime", "--format=markdown", "v0"]) == 0

    header, rule, *_, last = capsys.readouterr().out.splitlines()
    assert header == "| ref | commit | weights sample_mean | weights token_mean | causes |  |"
    assert rule == "|---|---|---|---|---|---|"
    words = "gone: empty_samples_counted<br>multiplied_by_cp in token_mean"
    assert last.startswith(r"| v3 | 3333333333 2026-01-01 Mend \| it | ")
    assert last.endswith(f" | {words} |  |")


def offering(one: Report, *options: str) -> Report:
    return one.model_copy(update={"new_options": [*options]})


def watched(reported: Report | None, new: Report) -> list[str]:
    """The cells of a version whose run made the report ``new``, as `cells` returns them."""
    return cells(reported, rows(new)[0])


def cells(reported: Report | None, row: Row) -> list[str]:
    """The cells of a version that has run, in the watch's table, from the column *driven* on."""
    target = targets(["slime"], Path())[0]
    known = reported and CommittedReport(name="v1", path=Path("slime/v1.json.gz"), report=reported)
    *_, line = watch_table([(target, row, known)])
    return [cell.strip() for cell in line.split("|")[4:-1]]


def test_the_watch_tells_causes_by_what_both_reports_looked_at() -> None:
    """A cause whose findings were not run again is not gone."""
    unseen, lacking = A.replace("/a/", "/c/"), A.replace("/a/", "/d/")
    before = with_verdict(Verdict.UNSUPPORTED, lacking, message="no mode token_mean")
    reported = report(wrong(A, CP), right(B), wrong(unseen, EMPTY), wrong(OTHER, CP), before)
    new = report(right(A, CP), wrong(B, EMPTY), wrong(OTHER, CP), wrong(lacking, MICRO))

    assert watched(offering(reported, "listed"), offering(new, "listed", "use_new_loss")) == [
        "yes: 1 worse, 1 better, 1 not looked at before, 1 the same",
        "new: empty_samples_counted"
        "<br>changed: multiplied_by_cp in sample_mean (it was: multiplied_by_cp)"
        "<br>not looked at before: multiplied_by_micro_batches (before 1 unsupported)",
        "",
        "use_new_loss",
        "slime/v1.json.gz",
    ]
    assert watched(report(wrong(A, CP), wrong(unseen, EMPTY)), report(right(A)))[1:3] == [
        "",
        "gone: multiplied_by_cp",
    ]
    lost = report(with_verdict(Verdict.UNSUPPORTED, A, message="no mode token_mean"))
    assert watched(report(right(A)), lost)[0] == "yes: 1 worse; no mode token_mean"
    assert watched(None, report(wrong(A, CP)))[1::3] == ["multiplied_by_cp", "no committed report"]


@pytest.mark.processes
def test_the_watch_says_what_its_time_did_not_suffice_for(
    repository: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committed, "REPORTS", repository)

    assert cli.main(["watch", f"--sources={repository.parent}", "--budget=0", "slime"]) == 0

    *_, main, _release = capsys.readouterr().out.splitlines()
    assert main.split(" | ")[3] == "its 0 s ended before anything was run"


def test_a_run_that_is_ended_has_what_it_found_by_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run with half of its findings has not failed; causes are compared as in a whole run."""
    half = report(wrong(A, CP)).model_dump() | {
        "complete": False,
        "selection": {"selected": 2, "deselected": 0},
    }
    kept = tmp_path / "report.json"

    def ended(*_: str, seconds: float | None) -> subprocess.CompletedProcess[str]:
        kept.write_text(Report.model_validate(half).model_dump_json())
        return subprocess.CompletedProcess((), 2, stdout="")

    monkeypatch.setattr(histories, "_pytest", ended)
    commit = Commit(ref="main", revision="", date="", subject="")
    selection = histories.CommitRuns(adapter="slime")

    row = histories.run_one(selection, commit, kept, str(tmp_path), seconds=0)

    [cell, new, *_] = cells(report(right(A)), row)
    assert cell == "yes: 1 worse; its 0 s ended after 1 of 2 findings"
    assert new == "new: multiplied_by_cp"


@pytest.mark.processes
def test_the_watch_runs_main_and_the_newest_release_of_each_framework(
    repository: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a framework has no clone or cannot be loaded, the other frameworks are still run."""
    monkeypatch.setattr(
        histories, "_pytest", lambda *arguments, **_: forked(*arguments, "-k", "/odd_groups/")
    )
    monkeypatch.setattr(committed, "REPORTS", repository)
    git(repository, "tag", "v0.10.0", "broken")
    git(repository, "tag", "v0.9.0", "mended")
    arguments = ["watch", f"--sources={repository.parent}", "miles", "slime"]

    assert cli.main(arguments) == 0

    *without, main, release = capsys.readouterr().out.splitlines()[2:]
    assert len(without) == 4
    assert all(line.startswith("| miles | ") for line in without)
    assert all("there is no clone of miles" in line for line in without)
    assert main.startswith(f"| slime | megatron | main {git(repository, 'rev-parse', 'HEAD')[:10]}")
    assert "No module named 'torchless'" in main
    assert release.startswith("| slime | megatron | v0.10.0 ")
    assert " | yes: " in release
    assert " | divided_by_cp" in release


def test_a_range_is_what_git_makes_of_it_from_the_oldest_commit_on(repository: Path) -> None:
    commits = find_commits(repository, "broken..HEAD")

    assert [commit.subject for commit in commits] == ["Mend | it", "A dead end"]
    assert [commit.ref for commit in commits] == [commit.revision[:10] for commit in commits]


@pytest.mark.parametrize(
    ("arguments", "way_out"),
    [
        (["--checks=nothing", "HEAD"], "--checks=nothing is unknown; choose weights or "),
        (["HEAD..broken"], "has no commits 'HEAD..broken'; give a range"),
        (["nowhere..HEAD"], "has no commits 'nowhere..HEAD'; give a range"),
        (["nowhere"], "no commit 'nowhere'; name a commit, tag, branch or pull-request ref"),
        (["--layout=dp3", "HEAD"], "layout 'dp3' is not of the form"),
        (["--engine=fsdp", "HEAD"], "fsdp"),
        (["--case=nothing", "HEAD"], "case 'nothing' is unknown; choose uneven_lengths, "),
        (["--layout=dp8-cp1-mb2-thd", "--case=two_steps", "HEAD"], "nothing to run: "),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_runs(
    repository: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], way_out: str
) -> None:
    assert history(repository, *arguments) == cli.USAGE_ERROR

    output = capsys.readouterr()
    assert way_out in output.err
    assert output.out == ""
    assert "1 of" not in output.err


def test_commit_without_the_package_is_refused(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    git(repository, "rm", "-r", "--quiet", "slime")
    git(repository, "commit", "--allow-empty", "-m", "Moved")

    assert history(repository, *QUICK, "mended", "HEAD") == cli.USAGE_ERROR
    assert "holds no package 'slime'" in capsys.readouterr().err


def test_page_has_a_command_for_every_row() -> None:
    assert len(ROWS) == PAGE.count("\n| `") >= 15
    for fix, line in ROWS:
        arguments = shlex.split(line)
        cases = [word.removeprefix("--case=") for word in arguments if word.startswith("--case=")]
        assert cases
        assert set(cases) <= {case.name for case in ALL_CASES}
        assert arguments[-1] == fix


def test_causes_of_every_command_have_a_column_of_the_page() -> None:
    commands: list[str] = []
    page = with_causes(PAGE, lambda line: f"{commands.append(line)} → none")

    assert [line.partition(" history ")[2] for line in commands] == [line for _, line in ROWS]
    assert page.count("causes, before → after") == PAGE.count("\n| fix |") >= 6
    assert page.count(" | None → none | `rl-loss-conformance history ") == len(ROWS)
    assert with_causes(page, lambda line: "None → none") == page


@NEEDS_CLONES
@pytest.mark.parametrize("line", dict.fromkeys(line for _, line in ROWS))
def test_page_names_commits_that_there_are(line: str) -> None:
    adapter = re.search("--adapter=([a-z_]+)", line)[1]  # type: ignore[index]
    repository = Path(os.environ[command.SOURCES]) / {"skyrl": "SkyRL"}.get(adapter, adapter)

    *_, before, after = shlex.split(line)
    [first], [last] = (find_commits(repository, ref) for ref in (before, after))
    assert first.revision != last.revision
