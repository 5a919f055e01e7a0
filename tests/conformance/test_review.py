"""A version against the one that it is based on: what is run, what is worse, and the sentence."""

import json
from pathlib import Path

import pytest

from adapters.contract import Layout
from adapters.toolkit.changes import changed_lines, versions
from adapters.toolkit.source import Commit, SourceError
from conformance import cli
from conformance.comparing.reviewed import Reviewed
from conformance.findings.cause import SuspectedLine
from conformance.findings.errors import NothingToCompareError
from conformance.findings.verdict import Check, Verdict
from conformance.plan.telling import JOBS, Telling, telling
from conformance.runs import registry
from conformance.runs.versions import history as histories
from conformance.runs.versions import review as reviews
from conformance.views.versions.review import as_text, sentence
from tests.causes.test_changes import A, B, report, with_verdict
from tests.causes.test_find import CP, EMPTY, Said, right, wrong
from tests.conformance.test_history import WITH_CP, WITHOUT_CP, forked, git
from tests.toys import checkout


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """slime's toy on its main branch, and one commit on another that loses a factor."""
    folder = checkout(tmp_path / "slime", "slime")
    git(folder, "branch", "-M", "main")
    git(folder, "checkout", "-b", "change")
    WITHOUT_CP.apply(folder / "slime")
    git(folder, "commit", "--all", "-m", "Lose it")
    return folder


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


def of(lines: str, adapter: str = "slime") -> Telling:
    return telling(registry.create(adapter), {"loss.py": lines})


@pytest.mark.parametrize(
    ("lines", "check"),
    [
        ("advantages = whiten(rewards)", Check.ADVANTAGES),
        ("keep = reject(rollout_log_probs)", Check.REJECTION),
        ("kl_loss = kl_coef * kl", Check.AUXILIARY),
        ("loss = torch.masked_fill(loss, bad, 0)", Check.POISON),
        ("old = old.detach()", Check.NO_GRADIENT),
    ],
)
def test_what_a_change_touches_is_looked_at_more_than_otherwise(lines: str, check: Check) -> None:
    def count(found: Telling) -> int:
        return sum(cell.spec.check is check for cell in found.cells)

    assert of(lines).touched[0] is check
    assert count(of(lines)) > count(of(""))
    assert len({cell.job_id for cell in of(lines).cells}) >= JOBS


def test_every_check_that_a_framework_has_is_looked_at_in_each_review() -> None:
    checks = {cell.spec.check for cell in of("reduce(loss)").cells}

    assert {Check.LAWS, Check.POISON, Check.WEIGHTS, Check.ADVANTAGES, Check.SHARDING} <= checks
    assert len({cell.job_id for cell in of("reduce(loss)").cells}) <= JOBS + len(Check)


def test_of_two_layouts_one_is_where_most_shows_and_one_what_most_users_have() -> None:
    assert of("").layouts == (
        Layout.parse("dp2-cp2-mbtokens-thd"),
        Layout.parse("dp2-cp1-mb2-thd"),
    )
    assert of("if pipeline_model_parallel_size > 1:").layouts[0].pp > 1
    assert {cell.aggregation.mode for cell in of("").cells} == {
        cell.aggregation.mode for cell in of("reduce(loss)").cells
    }


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


def test_lines_to_look_at_are_in_files_that_the_version_changes() -> None:
    """The base has the other lines too, and is right."""
    after = report(wrong(A, CP))
    suspects = [
        SuspectedLine(file=file, line=7, function="f", why="multiplies by 2")
        for file in ("accelerate/accelerator.py", "slime/loss.py")
    ]
    [cause] = after.causes
    traced = after.model_copy(update={"causes": [cause.model_copy(update={"suspects": suspects})]})
    text = "\n".join(
        as_text(Reviewed.of(report(right(A)), traced), {"slime/loss.py": "@@ -7 +7 @@"})
    )

    assert "look at slime/loss.py:7 (f)" in text
    assert "accelerator" not in text


def test_a_refusal_that_the_contract_allows_is_no_fault() -> None:
    after = report(right(A), with_verdict(Verdict.REFUSED, B, message="ValueError: no"))
    found = Reviewed.of(report(right(A), right(B)), after, may_decline=[B])

    assert sentence(found, {}) == "Nothing got worse."
    assert [one.id for one in found.declined] == [B]


@pytest.mark.processes
def test_a_review_ends_in_one_sentence_and_keeps_both_reports(
    repository: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(histories, "_pytest", forked)
    arguments = [
        "review",
        "--adapter=slime",
        "--layout=dp1-cp2-mb1-thd",
        "--checks=weights",
        f"--reports={tmp_path / 'kept'}",
    ]
    assert cli.main([*arguments, f"--source={repository}@change"]) == cli.WORSE

    output = capsys.readouterr().out.splitlines()
    assert output[0].startswith("change ")
    assert output[1] == "changes lineage.py"
    assert "new: an extra division by cp" in "\n".join(output)
    assert output[-1] == (
        "An extra division by cp (context-parallel ranks), with `--loss-aggregation=token_mean`"
        " (lineage.py:407); nothing else got worse."
    )
    assert json.loads((tmp_path / "kept" / "base.json").read_text())["complete"]

    assert cli.main([*arguments, f"--source={repository}@main", "--base=change"]) == 0
    assert "Nothing got worse; fixed: an extra division by cp" in capsys.readouterr().out


def test_a_version_that_cannot_be_run_leaves_no_verdict(
    repository: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import subprocess

    def ends(*_: object, **__: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess([], 6, stdout="not driven: no module torchless")

    monkeypatch.setattr(histories, "_pytest", ends)
    arguments = ["review", "--adapter=slime", f"--source={repository}@change"]

    assert cli.main(arguments) == cli.USAGE_ERROR
    assert "no verdict, as the base, " in capsys.readouterr().err


def test_runs_that_are_cut_short_are_compared_by_what_both_have_looked_at() -> None:
    base, head = report(right(A), right(B)), report(wrong(A, CP))
    commit = Commit(ref="change", revision="0" * 40, date="", subject="")
    rows = reviews.Rows(
        histories.Row(commit=commit, report=base),
        histories.Row(
            commit=commit, report=head.model_copy(update={"complete": False}), is_cut_short=True
        ),
    )
    before, after = reviews.reports(rows)

    assert [one.id for one in before.findings] == [one.id for one in after.findings] == [A]
    assert sentence(Reviewed.of(before, after), {}).startswith(f"A{FACTOR}")


def test_a_run_that_is_ended_before_its_first_finding_leaves_no_verdict() -> None:
    commit = Commit(ref="change", revision="", date="", subject="")
    row = histories.Row(commit=commit, problem="ended", is_cut_short=True)

    with pytest.raises(NothingToCompareError, match="--budget=SECONDS"):
        reviews.reports(reviews.Rows(row, row))


@pytest.mark.processes
def test_a_review_without_time_ends_both_runs(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["review", "--adapter=slime", f"--source={repository}@change", "--budget=0"]

    assert cli.main(arguments) == cli.USAGE_ERROR
    assert "was ended before its first finding" in capsys.readouterr().err
    assert not histories.RUNNING
