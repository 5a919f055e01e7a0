"""A version against its base: the jobs that are run, the worse findings, and the sentence."""

import errno
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import IO, cast

import platformdirs
import psutil
import pytest

from adapters.contract import Layout
from adapters.contract.objective import Objective
from conformance import cli
from conformance.comparing import report_file
from conformance.comparing.reviewed import Reviewed
from conformance.findings.cause import Reach, SuspectedLine
from conformance.findings.errors import NothingToCompareError, ReportPathError
from conformance.findings.report import Report
from conformance.findings.verdict import Check, Verdict
from conformance.plan.matrix import MatrixCell
from conformance.plan.plan import Plan
from conformance.plan.telling import JOBS, Jobs, Layouts, Order, Turn
from conformance.plugin.controller import Controller
from conformance.plugin.reviewing import Side
from conformance.ranks.changed import Place
from conformance.runs import registry
from conformance.runs.versions import history as histories
from conformance.runs.versions import kept
from conformance.runs.versions import review as reviews
from conformance.runs.versions.history import Row
from conformance.runs.versions.review import Ran
from conformance.sources.changes import changed_lines, lines_in_head, versions
from conformance.sources.source import Commit, SourceError
from conformance.views.versions.review import as_text, not_looked_at, runner_commands, sentence
from reference.aggregation import Mode
from tests import command, room
from tests.findings import CP, EMPTY, A, B, Said, recaused, report, right, with_verdict, wrong
from tests.toys import WITH_CP, WITHOUT_CP, branched, checkout, git


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return branched(tmp_path / "slime")


def test_a_version_is_held_to_the_commit_where_it_left_the_default_branch(repository: Path) -> None:
    left, changed = (git(repository, "rev-parse", name) for name in ("main", "change"))
    git(repository, "checkout", "main")
    git(repository, "commit", "--allow-empty", "-m", "Later")

    of_commit = versions(f"{repository}@change", None)
    assert (of_commit.base.revision, of_commit.head.revision) == (left, changed)
    git(repository, "checkout", "change")
    of_tree = versions(str(repository), None)
    assert (of_tree.base.revision, of_tree.head.source(repository)) == (left, str(repository))
    assert versions(f"{repository}@change", "main").base.subject == "Later"


def test_on_the_default_branch_it_is_the_last_change(repository: Path) -> None:
    git(repository, "branch", "-M", "main")
    last, before = (git(repository, "rev-parse", name) for name in ("main", "main^"))

    assert versions(str(repository), None).base.revision == before
    WITH_CP.apply(repository / "slime")
    assert versions(str(repository), None).base.revision == last


def test_a_shallow_clone_is_told_how_to_get_a_base(repository: Path, tmp_path: Path) -> None:
    """CI makes shallow clones, which have only the last commit of one branch."""
    for branch in ("change", "main"):
        to = tmp_path / branch
        git(tmp_path, "clone", "--depth=1", f"--branch={branch}", repository.as_uri(), str(to))
        with pytest.raises(SourceError, match="fetch more of its history, or give --base=REF"):
            versions(str(to), None)


def test_a_bare_clone_is_told_to_name_a_version(repository: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare.git"
    git(tmp_path, "clone", "--bare", str(repository), str(bare))

    assert versions(f"{bare}@change", None).head.subject == "Lose it"
    for base in (None, "main"):
        with pytest.raises(SourceError, match=r"has no working tree; .*--source=PATH@REF"):
            versions(str(bare), base)


def test_a_release_needs_another_to_be_held_to() -> None:
    with pytest.raises(SourceError, match="give --base=pypi:VERSION"):
        versions("pypi:0.2.0", None)
    assert versions("pypi:0.2.0", "pypi:0.1.0").base.revision == "0.1.0"


def test_the_lines_that_differ_are_those_of_python_files_of_the_package(repository: Path) -> None:
    (repository / "slime" / "tests").mkdir()
    (repository / "slime" / "tests" / "test_loss.py").write_text("pass\n")
    (repository / "slime" / "notes.md").write_text("read me\n")
    found = changed_lines(registry.create("slime"), versions(str(repository), "main"))

    assert found.keys() == {"slime/lineage.py"}
    assert WITHOUT_CP.new in found["slime/lineage.py"]


@pytest.mark.parametrize("place", ["pä th #1 50%", 'a "quoted" \\ one'])
def test_the_lines_that_differ_are_found_wherever_the_files_are(
    tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the changed lines were not found, no job would be known to run them."""
    folder = checkout(tmp_path / place / "slime")
    WITHOUT_CP.apply(folder / "slime")
    monkeypatch.setattr(platformdirs, "user_cache_path", lambda _: tmp_path / place / "cache")
    git_config = {"KEY_0": "diff.noprefix", "VALUE_0": "true", "COUNT": "1"}
    for name, value in git_config.items():
        monkeypatch.setenv(f"GIT_CONFIG_{name}", value)
    slime, found = registry.create("slime"), versions(str(folder), "HEAD")
    changed = changed_lines(slime, found)

    assert changed.keys() == {"slime/lineage.py"}
    [(path, [line])] = lines_in_head(slime, found, changed).items()
    assert WITHOUT_CP.new in Path(path).read_text().splitlines()[line - 1]


def test_removed_lines_are_looked_for_where_they_were(repository: Path) -> None:
    found = versions(str(repository), "main")
    text = "def f(a):\n    b = a\n\n    # why\n    return b\n\n\ndef g():\n    return 1\n"
    (repository / "slime" / "lineage.py").write_text(text)
    hunks = {"slime/lineage.py": "@@ -3,2 +2,0 @@\n-a\n@@ -9 +5,0 @@\n-b\n@@ -12,0 +9 @@\n+c"}
    [(path, lines)] = lines_in_head(registry.create("slime"), found, hunks).items()

    assert path == str((repository / "slime" / "lineage.py").resolve())
    assert lines == [2, 5, 9]


def jobs_of(adapter: str = "slime") -> Jobs:
    driven = registry.create(adapter)
    layouts = Layouts.of(driven)
    plan = Plan(layouts=layouts.usual, mode_of_advantages=Mode.SAMPLE_MEAN)
    return Jobs(plan, driven, layouts)


SLIME = jobs_of()
EVERYWHERE, RARE, NOWHERE = (Place("loss.py", line, line) for line in (1, 2, 3))


def turns(runs: Callable[[MatrixCell], set[Place]], *places: Place) -> list[Turn]:
    """The turns of a review, where ``runs`` returns the changed statements that a job runs."""
    order = Order(SLIME, places, lambda _: True)
    made: list[Turn] = []
    while (turn := order.next()) is not None:
        made.append(turn)
        order.note(turn.cells[0], frozenset(runs(turn.cells[0])))
    return made


def test_jobs_that_run_a_statement_which_few_run_come_first() -> None:
    def runs(cell: MatrixCell) -> set[Place]:
        return {EVERYWHERE, *([RARE] if cell.spec.objective is Objective.GAE else [])}

    found = turns(runs, EVERYWHERE, RARE)
    scouted = [one.is_scout and one.cells[0].spec.objective for one in found].index(Objective.GAE)
    judged = [one for one in found[scouted:] if not one.is_scout]

    assert judged[0].cells[0].spec.objective is Objective.GAE
    assert found[0].is_scout
    assert not found[1].is_scout
    assert len([one for one in found if not one.is_scout]) == JOBS


def test_jobs_in_a_mode_whose_code_changes_come_first_and_steps_of_several_soon() -> None:
    """If a batch's count replaces a mini-batch's, only batches of several steps show it."""

    def runs(cell: MatrixCell) -> set[Place]:
        of_mode = [RARE] if cell.aggregation.mode is Mode.TOKEN_MEAN else []
        return {EVERYWHERE, *of_mode} if cell.spec.objective is Objective.POLICY else set()

    judged = [one.cells for one in turns(runs, EVERYWHERE, RARE) if not one.is_scout]
    of_mode = [cells for cells in judged if cells[0].aggregation.mode is Mode.TOKEN_MEAN]

    assert any(len(cells[0].case.steps) > 1 for cells in of_mode[:6])
    assert judged.index(of_mode[5]) < 16


def test_checks_that_no_scout_is_of_are_looked_at() -> None:
    """With ``--checks=poison``, for example, no scout is of a chosen check."""
    driven = registry.create("slime")
    layouts = Layouts.of(driven)
    chosen = frozenset([Check.POISON])
    plan = Plan(layouts=layouts.usual, checks=chosen, mode_of_advantages=Mode.SAMPLE_MEAN)
    order = Order(Jobs(plan, driven, layouts), [EVERYWHERE], lambda _: True)
    names = set()
    while (turn := order.next()) is not None:
        names.update(cell.spec.name for cell in turn.cells)
        order.note(turn.cells[0], frozenset([EVERYWHERE]))

    assert {"old_log_probs", "advantages", "rollout_log_probs", "values"} <= names


def test_what_a_declined_job_was_to_show_is_looked_at_on_another_layout() -> None:
    """TRL cannot cut nine samples into the four micro-batches of two ranks; one rank has two."""
    order = Order(SLIME, [EVERYWHERE], lambda _: True)
    odd: list[MatrixCell] = []
    while (turn := order.next()) is not None:
        is_of_loss = turn.cells[0].spec.objective is Objective.POLICY
        order.note(turn.cells[0], frozenset([EVERYWHERE] if is_of_loss else []))
        if not turn.is_scout and turn.cells[0].case.name == "nine_samples":
            odd += turn.cells[:1]
            if turn.cells[0].layout.dp > 1:
                order.note_declined(turn.cells[0])

    assert any(cell.spec.check is Check.WEIGHTS and cell.layout.dp == 1 for cell in odd)


def test_where_no_job_runs_the_change_each_check_is_looked_at_and_every_layout_tried() -> None:
    found = turns(lambda _: set(), NOWHERE)
    judged = [cell.spec.check for one in found if not one.is_scout for cell in one.cells]
    scouted = {str(one.cells[0].layout) for one in found if one.is_scout}

    assert {*judged} == {cell.spec.check for cell in SLIME.by_id.values()}
    assert len(judged) < 60
    assert any("pp2" in layout for layout in scouted)
    assert any("allgather_cp" in layout for layout in scouted)


def test_one_layout_is_where_most_shows_one_what_most_users_have_and_one_of_one_rank() -> None:
    layouts = Layouts.of(registry.create("slime"))

    assert layouts.usual == (
        Layout.parse("dp2-cp2-mbtokens-thd"),
        Layout.parse("dp2-cp1-mb2-thd"),
        Layout.parse("dp1-cp1-mb2-thd"),
    )
    assert all(one.pp > 1 or one.options for one in layouts.special)


CRASH = with_verdict(
    Verdict.CRASHED, A, message="KeyError: 'loss'", place="slime/loss.py:7 (reduce)"
)
LACKING = with_verdict(Verdict.UNSUPPORTED, A, message="no mode token_mean")
FACTOR = "n extra factor of cp (context-parallel ranks)"
ONE_RANK = "weights/token_mean/a/dp1-cp1-mb1-thd"
USED = "with `context parallelism`"


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ([right(A)], [right(A)], "Nothing got worse."),
        ([wrong(A, CP)], [wrong(A, CP)], "Nothing got worse."),
        ([right(A)], [wrong(A, CP)], f"A{FACTOR} (loss.py:7); nothing else got worse."),
        (
            [right(A), right(ONE_RANK)],
            [wrong(A, CP), right(ONE_RANK)],
            f"A{FACTOR}, {USED} (loss.py:7); nothing else got worse.",
        ),
        ([wrong(A, CP)], [right(A)], f"Nothing got worse; fixed: a{FACTOR} (loss.py:7)."),
        ([right(A)], [CRASH], "`context parallelism` crashes in every step (loss.py:7); nothing"),
        ([LACKING], [CRASH], "`context parallelism` crashes in every step (loss.py:7); nothing"),
        (
            [right(A), right(B)],
            [CRASH, right(B)],
            "`context parallelism` crashes in 1 of 2 steps (loss.py:7); nothing else got worse.",
        ),
        (
            [right(A), right(B, EMPTY)],
            [right(A), with_verdict(Verdict.REFUSED, B, message="ValueError: no")],
            "A step that the base trains is refused with `context parallelism`: ValueError: no;",
        ),
        ([LACKING], [right(A)], "Nothing got worse; new, and right: `token_mean`."),
        ([right(A)], [LACKING], "No verdict: nothing was exercised"),
    ],
)
def test_the_sentence_says_what_is_worse_what_is_fixed_and_what_is_new(
    before: list[Said], after: list[Said], expected: str
) -> None:
    found = Reviewed.of(report(*before), report(*after))

    assert sentence(found, {"slime/loss.py": "@@ -7 +7 @@\n-a\n+b"}).startswith(expected)


def test_a_mistake_that_makes_two_causes_is_said_once() -> None:
    after = report(wrong(A, CP), wrong(B, CP))
    [whole] = after.causes
    halves = [whole.model_copy(update={"findings": [one]}) for one in (A, B)]
    found = Reviewed.of(report(right(A), right(B)), after.model_copy(update={"causes": halves}))

    assert sentence(found, {"slime/loss.py": "@@ -7 +7 @@"}).count(FACTOR) == 1


def test_what_explains_most_findings_is_said_of_a_change_of_one_place() -> None:
    odd, *others = (f"weights/token_mean/{case}/dp1-cp2-mb1-thd" for case in ("a", "b", "c"))
    after = report(wrong(odd), *(wrong(one, CP) for one in others))
    found = Reviewed.of(report(*(right(one) for one in (odd, *others))), after)
    ends = "(loss.py:7); 1 more of the same change; nothing else got worse."

    assert sentence(found, {"slime/loss.py": "@@ -7 +7 @@"}).startswith(f"A{FACTOR}")
    assert sentence(found, {"slime/loss.py": "@@ -7 +7 @@"}).endswith(ends)
    assert "no known mistake" in sentence(found, {"slime/loss.py": "@@ -7 +7 @@\n@@ -9 +9 @@"})


def test_lines_to_look_at_are_in_files_that_the_version_changes() -> None:
    """The base has the suspected lines of other files, too, and is right."""
    suspects = [
        SuspectedLine(file=file, line=7, function="f", why="multiplies by 2")
        for file in ("accelerate/accelerator.py", "slime/loss.py")
    ]
    found = Reviewed.of(report(right(A)), recaused(report(wrong(A, CP)), suspects=suspects))
    text = "\n".join(as_text(found, {"slime/loss.py": "@@ -7 +7 @@"}))

    assert "look at slime/loss.py:7 (f)" in text
    assert "accelerator" not in text


def test_a_small_change_is_named_rather_than_a_suspected_line_that_stays() -> None:
    suspect = SuspectedLine(file="slime/loss.py", line=90, function="f", why="multiplies by 2")
    found = Reviewed.of(report(right(A)), recaused(report(wrong(A, CP)), suspects=[suspect]))

    assert "(loss.py:7)" in sentence(found, {"slime/loss.py": "@@ -7 +7 @@"})
    assert "(loss.py:90)" in sentence(found, {"slime/loss.py": "@@ -80 +80,20 @@"})


def test_options_that_were_not_tested_are_said_of_no_mistake() -> None:
    reach = Reach(options=["--cp=2"], untested=["--cp=2"])
    after = recaused(report(wrong(A, CP)), reach=reach)
    text = "\n".join(as_text(Reviewed.of(report(right(A)), after), {}))

    assert "\n  wrong gradient" in text
    assert "--cp=2" not in text
    assert "by default" not in text


def test_a_refusal_that_the_contract_allows_is_no_fault() -> None:
    after = report(right(A), with_verdict(Verdict.REFUSED, B, message="ValueError: no"))
    found = Reviewed.of(report(right(A), right(B)), after, may_decline=[B])

    assert sentence(found, {}) == "Nothing got worse."
    assert [one.id for one in found.declined] == [B]


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Fork the runs of pytest, and keep the reports of bases in a separate folder."""

    def start(folder: str, output: IO[str], *arguments: str) -> command.Forked:
        return command.forked(Path(folder), output.name, *arguments)

    monkeypatch.setattr(histories, "start", start)
    monkeypatch.setattr(kept, "BASES", str(tmp_path / "cache"))


@pytest.mark.processes
@pytest.mark.usefixtures("forked")
def test_a_review_ends_in_one_sentence_and_keeps_both_reports(
    repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [
        "review",
        "--adapter=slime",
        "--layout=dp1-cp2-mb1-thd",
        "--checks=weights",
        "--modes=sample_mean,token_mean",
        "--budget=600",
        f"--reports={tmp_path / 'kept'}",
    ]
    assert cli.main([*arguments, f"--source={repository}@change"]) == cli.WORSE

    shown = capsys.readouterr()
    output = shown.out.splitlines()
    assert output[0].startswith("change ")
    assert output[1] == "changes lineage.py"
    assert "new: an extra division by cp" in "\n".join(output)
    assert (
        f"  look at slime/lineage.py:{WITHOUT_CP.line} (scaled): proven: with"
        f" `{WITHOUT_CP.old}, log` as in the base, "
    ) in "\n".join(output)
    assert output[-1] == (
        "An extra division by cp (context-parallel ranks), with `--loss-aggregation=token_mean`"
        f" (lineage.py:{WITHOUT_CP.line}); nothing else got worse."
    )
    assert "s: worse: weights/" in shown.err
    assert json.loads((tmp_path / "kept" / "base.json").read_text())["complete"]

    assert cli.main([*arguments, f"--source={repository}@main", "--base=change"]) == 0
    assert "Nothing got worse; fixed: an extra division by cp" in capsys.readouterr().out


def test_a_run_proves_lines_by_the_changes_since_a_base(repository: Path, tmp_path: Path) -> None:
    chosen = ("--layout=dp1-cp2-mb1-thd", "--checks=weights", "--modes=token_mean")
    version = (f"--source={repository}@change", "--base=main")
    found = command.run(tmp_path, "slime", *version, *chosen, "--case=uneven_lengths").report

    [cause] = found.causes
    assert [one.line for one in cause.suspects[:1]] == [WITHOUT_CP.line]
    assert f"proven: with `{WITHOUT_CP.old}, log` as in the base" in cause.suspects[0].why


def test_a_base_is_of_a_named_version(tmp_path: Path) -> None:
    result = command.run(tmp_path, "onetokenshort", "--base=main", "--collect-only")

    assert result.status == pytest.ExitCode.USAGE_ERROR
    assert "--base=main is the base of no named version; name one with --source" in result.output


@pytest.mark.processes
@pytest.mark.usefixtures("forked")
def test_the_second_review_of_a_branch_runs_one_side_and_names_what_no_job_runs(
    repository: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = repository / "slime" / "lineage.py"
    path.write_text(f"{path.read_text()}\n\ndef never():\n    return 1\n")
    line = len(path.read_text().splitlines())
    started: list[Sequence[str]] = []
    start = histories.start

    def counted(folder: str, output: IO[str], *arguments: str) -> object:
        started.append(arguments)
        return start(folder, output, *arguments)

    monkeypatch.setattr(histories, "start", counted)
    arguments = [
        *("--layout=dp1-cp2-mb1-thd", "--checks=weights", "--budget=600"),
        f"--source={repository}",
    ]
    told = []
    for _ in range(2):
        assert cli.main(["review", "--adapter=slime", "--base=HEAD", *arguments]) == 0
        told.append(capsys.readouterr().out.splitlines()[-1])

    assert len(started) == 3
    assert told[0] == told[1]
    assert told[0].endswith(f" Not looked at: slime/lineage.py:{line - 1}-{line}.")


NO_ROOM = "the report cannot be written to x.json: No space left on device"


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("print('not driven: no module torchless'); exit(6)", "no verdict, as the base, "),
        (
            f"print('ERROR: {NO_ROOM}'); print('22 passed'); exit(3)",
            f"could not be run: {NO_ROOM}\n",
        ),
    ],
)
def test_a_version_that_cannot_be_run_leaves_no_verdict(
    repository: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    program: str,
    words: str,
) -> None:
    def start(folder: str, output: IO[str], *_: str) -> subprocess.Popen[str]:
        return subprocess.Popen([sys.executable, "-c", program], stdout=output, text=True)

    monkeypatch.setattr(histories, "start", start)

    assert cli.main(["review", "--adapter=slime", f"--source={repository}@change"]) == 2
    assert words in capsys.readouterr().err


X, Y = (f"weights/token_mean/{case}/dp1-cp2-mb1-thd" for case in ("two_steps", "uneven_lengths"))


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Report]:
    """The reports that simulated runs of base and head write; tests fill it."""
    reports: dict[str, Report] = {}

    def start(folder: str, output: IO[str], *arguments: str) -> subprocess.Popen[str]:
        [path] = [Path(one.removeprefix("--report=")) for one in arguments if "--report=" in one]
        report_file.write(reports[path.stem], path)
        return subprocess.Popen(["true"], stdout=output, text=True)

    monkeypatch.setattr(histories, "start", start)
    monkeypatch.setattr(kept, "BASES", str(tmp_path / "cache"))
    return reports


def reviewed(repository: Path, *arguments: str) -> int:
    options = ("--layout=dp1-cp2-mb1-thd", "--checks=weights", f"--source={repository}@change")
    return cli.main(["review", "--adapter=slime", *options, *arguments])


def test_findings_that_one_version_lacks_are_no_whole_verdict(
    repository: Path, made: dict[str, Report], capsys: pytest.CaptureFixture[str]
) -> None:
    made.update(base=report(right(X)), head=report(right(X), right(Y)))

    assert reviewed(repository) == 0
    assert "Nothing got worse. That is after" in capsys.readouterr().out
    made.update(base=report(right(X), right(Y)))
    git(repository, "commit", "--allow-empty", "-m", "Another")
    assert reviewed(repository, "--base=change^") == 0
    assert capsys.readouterr().out.endswith("Nothing got worse.\n")


def test_a_verdict_is_said_though_its_reports_find_no_room(
    repository: Path,
    made: dict[str, Report],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made.update(base=report(right(X)), head=report(wrong(X, CP)))
    keep = reviews.keep

    def without_room(ran: Ran, folder: Path) -> ReportPathError | None:
        with room.of(100):
            return keep(ran, folder)

    monkeypatch.setattr(reviews, "keep", without_room)

    assert reviewed(repository, f"--reports={tmp_path / 'reports'}") == cli.USAGE_ERROR
    shown = capsys.readouterr()
    assert "nothing else got worse." in shown.out.splitlines()[-1]
    assert f"no reports can be kept in {tmp_path / 'reports'}: File too large" in shown.err
    assert not [*(tmp_path / "reports").iterdir()]


def test_a_folder_that_takes_no_reports_is_refused_before_any_run(
    repository: Path, made: dict[str, Report], capsys: pytest.CaptureFixture[str]
) -> None:
    assert reviewed(repository, f"--reports={room.UNWRITABLE}") == cli.USAGE_ERROR
    assert f"no reports can be kept in {room.UNWRITABLE}: " in capsys.readouterr().err
    assert not made


def test_two_reviews_with_one_folder_both_have_a_verdict(
    repository: Path, made: dict[str, Report], tmp_path: Path
) -> None:
    """The second review begins and ends while the first one runs."""
    made.update(base=report(right(X)), head=report(right(X)))
    folder = tmp_path / "reports"
    begun: list[int] = []
    start = histories.start

    def meanwhile(of_run: str, output: IO[str], *arguments: str) -> subprocess.Popen[str]:
        if not begun:
            begun.append(0)
            begun.append(reviewed(repository, f"--reports={folder}"))
        return start(of_run, output, *arguments)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(histories, "start", meanwhile)
        assert reviewed(repository, f"--reports={folder}") == 0
    assert begun == [0, 0]
    assert {one.name for one in folder.iterdir()} == {*reviews.NAMES}


def annotated(after: Report, folder: str = "") -> str:
    found = Reviewed.of(report(right(A)), after)
    [line] = runner_commands(found, {"slime/loss.py": "@@ -7 +7 @@\n-a\n+b"}, folder)
    return line.removeprefix("::error ").partition("title=")[0]


def test_annotations_stand_on_lines_of_files_that_the_version_changes() -> None:
    after = report(wrong(A, CP))
    lines = [
        SuspectedLine(file=file, line=line, function="f", why="multiplies by 2")
        for file, line in (("slime/worker_utils.py", 301), ("slime/loss.py", 7))
    ]
    traced = recaused(after, suspects=lines)

    assert annotated(traced) == "file=slime/loss.py,line=7,"
    assert annotated(after) == "file=slime/loss.py,line=7,"
    assert annotated(traced, "upstream/src") == "file=upstream/src/slime/loss.py,line=7,"


@pytest.mark.parametrize(("file", "line"), [("slime/loss.py", 90), ("torch/tensor.py", 7)])
def test_an_annotation_of_a_crash_is_where_it_raises_if_that_file_changes(
    file: str, line: int
) -> None:
    crash = with_verdict(Verdict.CRASHED, A, message="KeyError: 'l'", place=f"{file}:{line} (f)")
    raised = line if file == "slime/loss.py" else 7

    assert annotated(report(crash)) == f"file=slime/loss.py,line={raised},"


def test_the_package_is_looked_for_below_the_workspace(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    review = reviews.prepare(adapter="slime", source=f"{repository}@change")

    assert review.folder == ""
    monkeypatch.setenv("GITHUB_WORKSPACE", str(repository.parent))
    assert review.folder == repository.name
    monkeypatch.setenv("GITHUB_WORKSPACE", "/elsewhere")
    assert review.folder == ""


def test_a_run_that_fails_among_its_findings_has_no_exit_status_of_a_verdict() -> None:
    """A verdict about only some findings could be mistaken for one about all of them."""

    def fail() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def end() -> None:
        pytest.exit("told to end", returncode=2)

    for run, error, has_failed in ((fail, OSError, True), (end, pytest.exit.Exception, False)):
        controller = Controller(cast("pytest.Config", None))
        session = SimpleNamespace(exitstatus=pytest.ExitCode.INTERRUPTED)
        with pytest.raises(error):
            controller.review(cast("Side", SimpleNamespace(run=run)))
        controller.pytest_sessionfinish(cast("pytest.Session", session))

        assert (session.exitstatus in histories.FAILED) is has_failed


def ran(base: Row, head: Row, *, is_cut_short: bool = True) -> Ran:
    return Ran(base=base, head=head, is_cut_short=is_cut_short)


COMMIT = Commit(ref="change", revision="0" * 40, date="", subject="")


def test_runs_that_are_cut_short_are_compared_by_what_both_have_looked_at() -> None:
    base, head = report(right(A), right(B)), report(wrong(A, CP))
    before, after = reviews.reports(
        ran(Row(commit=COMMIT, report=base), Row(commit=COMMIT, report=head))
    )

    assert [one.id for one in before.findings] == [one.id for one in after.findings] == [A]
    assert sentence(Reviewed.of(before, after), {}).startswith(f"A{FACTOR}")


def test_a_run_that_is_ended_before_its_first_finding_leaves_no_verdict() -> None:
    row = Row(commit=COMMIT, problem="ended")

    with pytest.raises(NothingToCompareError, match="--budget=SECONDS"):
        reviews.reports(ran(row, row))


def test_a_run_that_fails_is_why_the_other_was_ended() -> None:
    ended = Row(commit=COMMIT, problem="ended")
    failed = Row(commit=COMMIT, problem="No space left on device", has_failed=True)

    with pytest.raises(
        NothingToCompareError, match=r"the head, .* could not be run: No space left"
    ):
        reviews.reports(ran(ended, failed))


def test_findings_of_a_base_are_added_to_those_that_are_kept() -> None:
    former, latter = report(wrong(A, CP)), report(wrong(B, CP), right(ONE_RANK))
    both = kept.merged(former, latter)

    assert both is not None
    assert both == report(wrong(A, CP), wrong(B, CP), right(ONE_RANK))


@pytest.mark.parametrize(
    ("places", "words"),
    [
        ([], ""),
        ([Place("/x/slime/loss.py", 7, 9)], " Not looked at: slime/loss.py:7-9."),
        (
            [Place("/x/slime/loss.py", line, line) for line in (12, 7, 9)],
            " Not looked at: slime/loss.py:7-12.",
        ),
        (
            [Place("/x/slime/loss.py", line, line) for line in range(0, 60, 10)],
            " Not looked at: slime/loss.py:0, slime/loss.py:10, slime/loss.py:20,"
            " slime/loss.py:30, 2 more.",
        ),
    ],
)
def test_changed_lines_that_no_job_runs_are_named(places: list[Place], words: str) -> None:
    assert not_looked_at(places, {"slime/loss.py": ""}) == words


@pytest.mark.processes
def test_a_review_without_time_ends_both_runs(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["review", "--adapter=slime", f"--source={repository}@change", "--budget=0"]
    before = psutil.Process().children()

    assert cli.main(arguments) == cli.USAGE_ERROR
    assert "was ended before its first finding" in capsys.readouterr().err
    assert psutil.Process().children() == before
