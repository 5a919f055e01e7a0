"""A cause as a bug report: complete, true, and with a command that shows the same cause again."""

import math
import re
import shlex
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from adapters.contract.objective import FROM_REWARDS, OFF_POLICY
from conformance import cli
from conformance.comparing.report_file import load, write
from conformance.findings.errors import AmbiguousCauseError, UnknownCauseError
from conformance.findings.finding import Diagnosis, Finding, Picture, PicturedSample, Run
from conformance.findings.groups import find_cause
from conformance.findings.report import Report, Request
from conformance.findings.verdict import Verdict
from conformance.views import issue
from conformance.worked.factors import ADVANTAGES, DERIVATIVES
from tests import command
from tests.conformance.pages import report_of
from tests.findings import CP, MICRO, crash, finding, mismatch, report, right, wrong
from tests.tables import table


class Defect(NamedTuple):
    """An adapter with a defect, the layout and tests that show it, its cause, and report lines."""

    adapter: str
    layout: str
    chosen: str
    cause: str
    lines: str


DEFECTS = {name: Defect(**entry) for name, entry in table("conformance/defects.toml").items()}

AGAIN = ("wrong gradient", "wrong logged number", "crash", "declined step", "bad configuration")


@pytest.fixture(scope="module")
def report_on(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Report]:
    """A function that makes the report on a defect, once for each defect."""

    @cache
    def made(name: str) -> Report:
        defect = DEFECTS[name]
        chosen = (f"--layout={defect.layout}", "--proof-time=0", "-k", defect.chosen)
        return command.run(tmp_path_factory.mktemp("run"), defect.adapter, *chosen).report

    return made


def text(report: Report, cause: str) -> str:
    return "\n".join(issue.as_markdown(report, find_cause(report, cause)))


@pytest.mark.parametrize("name", DEFECTS)
def test_bug_report_is_complete_and_worked_out_by_hand(
    report_on: Callable[[str], Report], name: str
) -> None:
    found = text(report_on(name), DEFECTS[name].cause).splitlines()

    assert [line for line in DEFECTS[name].lines.splitlines() if line not in found] == []
    looked_at = [line for line in found if line.startswith("- Look at `")]
    assert all(".py:" in line for line in looked_at)
    assert looked_at or name != "wrong gradient", "its trace names a line"
    assert {"## Where it shows", "## How to reproduce it", "## Versions"} <= {*found}
    assert f"The run fails and names the cause `{DEFECTS[name].cause}`." in found


def again(folder: Path, adapter: str, markdown: str) -> command.Result:
    """The result of the command that a bug report prints."""
    [line] = re.findall(r"^```sh\n(.*)\n```$", markdown, re.MULTILINE)
    return command.run(folder, adapter, *shlex.split(line)[2:], "--proof-time=0")


@pytest.mark.parametrize("name", AGAIN)
def test_command_shows_the_same_cause_again(
    tmp_path: Path, report_on: Callable[[str], Report], name: str
) -> None:
    defect = DEFECTS[name]
    result = again(tmp_path, defect.adapter, text(report_on(name), defect.cause))

    assert [cause.name for cause in result.report.causes] == [defect.cause]
    assert f"[{defect.cause}]" in result.output


@pytest.mark.processes
@pytest.mark.skyrl
def test_command_on_skyrl_shows_the_same_cause_again(tmp_path: Path) -> None:
    chosen = ("--layout=dp1-cp2-mb2-thd", "-k", "metric.loss/token_mean/fully_masked_sample")
    first = command.run(tmp_path / "first", "skyrl", "--engine=megatron", "--proof-time=0", *chosen)
    markdown = text(first.report, "not_reduced_over")
    second = again(tmp_path / "second", "skyrl", markdown)

    assert "# Wrong logged number `final_loss`: " in markdown
    assert second.report.causes == first.report.causes


def test_example_is_the_smallest_that_the_cause_alone_explains() -> None:
    both = wrong("weights/token_mean/two_prompts/dp1-cp2-mb2-thd", MICRO, CP)
    not_micro = right("weights/token_mean/two_prompts/dp1-cp2-mb1-thd", CP)
    alone = report(
        both,
        wrong("weights/token_mean/uneven_lengths/dp1-cp4-mb2-thd", MICRO),
        wrong("weights/token_mean/two_prompts/dp1-cp4-mb2-thd", MICRO),
        not_micro,
    )

    smallest = "-k '[weights/token_mean/two_prompts/dp1-cp4-mb2-thd]'"
    assert smallest in text(alone, "multiplied_by_m")
    assert (
        "names the cause `multiplied_by_cp`.\nThe other steps of the report's run show that it is"
        " `multiplied_by_micro_batches`, which explains this step as well."
    ) in text(report(both, not_micro), "multiplied_by_micro_batches")


def test_conditions_need_no_knowledge_of_checks() -> None:
    found = report(
        wrong("metric.loss/token_mean/two_prompts/dp1-cp2-mb2-thd", CP),
        right("metric.kl/token_mean/two_prompts/dp1-cp2-mb2-thd", CP),
        right("metric.loss/sample_mean/two_prompts/dp1-cp2-mb2-thd", CP),
        right("metric/token_mean/two_prompts/dp1-cp2-mb2-thd", CP),
        right("weights/token_mean/two_prompts/dp1-cp2-mb2-thd", CP),
    )

    first = text(found, "1").splitlines()[0]
    assert "in `token_mean`" in first
    assert "in the logged loss with entropy and KL terms" in first


@pytest.mark.parametrize(
    ("message", "title"),
    [
        (
            "hang: rank 0 waits in all_reduce at toy/utils/stats.py:213 (_sum); rank 1 has ended",
            "# Hang: `rank 0 waits in all_reduce at stats.py:213 (_sum); rank 1 has ended`",
        ),
        (
            "mismatched collectives: rank 0 waits in all_reduce at an unknown place",
            "# Crash: `mismatched collectives: rank 0 waits in all_reduce at an unknown place`",
        ),
    ],
)
def test_a_hang_is_called_a_hang_and_has_no_denominators(message: str, title: str) -> None:
    hung = Finding(
        id="weights/token_mean/two_prompts/dp2-cp1-mb2-thd",
        verdict=Verdict.CRASHED,
        message=message,
    )
    markdown = text(report_of([hung]), "crashed")

    assert markdown.splitlines()[0] == title
    assert "enominator" not in markdown


def test_advice_is_not_a_bug_and_not_among_the_comparisons() -> None:
    diagnosis = Diagnosis(name="accepted", explanation="other keys: logged; the rule is another's")
    advice = Finding(
        id="logging/sample_mean/different_keys/dp1-cp1-mb1-bshd",
        verdict=Verdict.ADVICE,
        diagnosis=diagnosis,
    )
    report = report_of([advice, finding("b"), mismatch("two_prompts", "not_finite")])
    markdown = text(report, "accepted")

    assert markdown.startswith("# Advice: other keys: logged\n\nThis is not a bug, since it breaks")
    assert "- other keys: logged; the rule is another's" in markdown
    assert "It shows in 1 of the comparisons of this run" in markdown
    assert "The run passes and ends with the advice." in markdown
    assert "denominator" not in markdown
    assert "It shows in 1 of 2 comparisons of this run" in text(report, "not_finite")


def test_step_of_a_user_is_shown_without_denominators_that_nobody_knows() -> None:
    samples = [
        PicturedSample(sample=0, group=0, tokens=2, runs=[Run(2, 0.5, None, None, None, None)])
    ]
    picture = Picture(step=0, samples_of_step=2, samples=samples)
    found = mismatch("two_prompts", "not_finite").model_copy(update={"picture": picture})
    markdown = text(report_of([found], request=Request(case="two_prompts")), "not_finite")

    assert "| 0 | 1–2 | ? | ? | ? | 0.5 | NaN or infinite |" in markdown
    assert "These are 1 of 2 samples, those with the largest errors." in markdown
    assert "by hand" not in markdown
    assert "FILE is the step that the user gave." in markdown


def test_crash_has_its_place_and_none_of_the_frameworks_code_or_effects() -> None:
    frames = (
        "KeyError: `<img src=x>` @someone #7\nTraceback (most recent call last):\n"
        '  File "fw/loss.py", line 7, in step\n    loss = terms[3]\n           ~~~~~^^^\n'
        '  File "adapters/x.py", in run\nKeyError: 3'
    )
    crashed = crash("two_prompts", frames).model_copy(update={"place": "fw/loss.py:7 (step)"})
    markdown = text(report_of([crashed]), "crashed")
    outside_of_code = re.sub(r"^```text\n.*?^```$|`[^`\n]*`", "", markdown, flags=re.M | re.S)

    assert "# Crash: `KeyError: <img src=x> @someone #7, at fw/loss.py:7 (step)`" in markdown
    assert '  File "fw/loss.py", line 7, in step\n  File "adapters/x.py", in run\n' in markdown
    assert "- In the code: `fw/loss.py:7 (step)` (1 of 1 findings)" in markdown
    assert "<img" not in outside_of_code
    assert "@someone" not in outside_of_code


def test_cause_is_found_by_name_beginning_and_number_or_choices_are_listed() -> None:
    report = report_of(
        [crash("a", "KeyError: 1"), crash("b", "ValueError"), mismatch("c", "not_divided")]
    )
    by_number = [find_cause(report, str(number)).name for number in (1, 2, 3)]

    assert sorted(by_number) == ["crashed", "crashed", "not_divided"]
    assert find_cause(report, "not").name == find_cause(report, "not_divided").name == "not_divided"
    with pytest.raises(AmbiguousCauseError) as several:
        find_cause(report, "crashed")
    choices = r"2 causes are named 'crashed'; choose \d, crashed: [^;]*; \d, crashed: [^;]*"
    assert re.fullmatch(choices, str(several.value))
    with pytest.raises(UnknownCauseError, match="1, not_divided: token losses are summed"):
        find_cause(report, "multiplied")
    with pytest.raises(UnknownCauseError, match="it has none"):
        find_cause(report_of([finding("a")]), "1")


def test_command_line_prints_a_bug_report_or_the_choices(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "report.json"
    write(report_of([mismatch("two_prompts", "not_divided")]), path)

    assert cli.main(["issue", str(path), "not"]) == 0
    assert capsys.readouterr().out.startswith("# Wrong gradient: token losses are summed")
    assert cli.main(["issue", str(path), "4"]) == cli.USAGE_ERROR
    assert "choose 1, not_divided" in capsys.readouterr().err


def test_off_policy_gradient_is_worked_out_with_the_derivative_of_each_token() -> None:
    """The right gradient of the third token of sample 6 is (-e^0.25/2 + 1/2) / (40·8)."""
    markdown = text(load(command.ROOT / "reports/skyrl/v0.3.0.json.gz"), "penalty_not_divided")

    assert (
        "of its loss by its log-probability: -A·r, without clipping, plus 0.5·sign(log r)"
        in markdown
    )
    assert "| sample | token | log p | A | log r | derivative |" in markdown
    assert "| 6 | 3 | -1.4375 | 0.5 | 0.25 | -0.142013 |" in markdown
    assert "| 6 | 3 | 0 | 0 | 1 | -0.00044379 | 0.497994 |" in markdown
    assert "Single active tokens weigh" not in markdown


def test_gradient_of_own_advantages_is_worked_out_with_the_advantage_of_each_token() -> None:
    """Before whitening, 45 of 94 response tokens have advantages of 1/√2, and 49 of -1/√2."""
    markdown = text(load(command.ROOT / "reports/skyrl/v0.3.0-megatron.json.gz"), "padding_white")

    mean = -4 * math.sqrt(0.5) / 94
    advantage = (math.sqrt(0.5) - mean) / math.sqrt(0.5 - mean**2)
    assert "weight times -A, where A is its advantage: the sample's reward minus" in markdown
    assert f"| 0 | 1 | 1 | {advantage:.6g} |" in markdown
    # SkyRL's mean counts all positions of 16 padded rows of 15 positions.
    padded = -4 * math.sqrt(0.5) / 240
    variance = 0.5 - 2 * mean * padded + padded**2
    observed = -(math.sqrt(0.5) - padded) / math.sqrt(variance) / 8
    assert f"| 0 | 1 | 0 | 1 | 2 | {-advantage / 8:.6g} | {observed:.6g} |" in markdown
    assert "Single active tokens weigh" not in markdown


def test_every_loss_and_estimator_has_a_formula_in_words() -> None:
    assert {*DERIVATIVES} == {*OFF_POLICY}
    assert {*ADVANTAGES} == {*FROM_REWARDS}
