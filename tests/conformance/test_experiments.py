"""At its end, a run makes a few findings that show on which facts its causes depend."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import cast

from adapters.native.adapter import NativeAdapter
from conformance.findings.finding import Finding
from conformance.findings.report import PlanSize, Report
from conformance.findings.verdict import Verdict
from conformance.plan.plan import Plan
from conformance.plugin import experiments
from conformance.ranks.pool import RankPool
from conformance.runs.jobs import SharedJobs
from conformance.runs.recorder import FindingMessage, FindingRecorder
from tests.findings import HEADER, Said, report, right, wrong

MISTAKE = "policy_loss/multiplied_by_cp"
PLAN = Plan(layouts=tuple(NativeAdapter().layouts()), size=PlanSize.QUICK)
DESCRIPTION = NativeAdapter().describe()
PER_TOKEN = HEADER.model_copy(update={"chosen_by": {"token_mean": ("--per-token",)}})


def chosen(*said: Said) -> list[str]:
    severities = experiments.TESTED[0]
    found = report(*said, header=PER_TOKEN)
    return [cell.id for cell in experiments.chosen(found, PLAN, DESCRIPTION, severities)]


def test_an_option_is_left_out_and_nothing_else_changes() -> None:
    assert chosen(wrong("weights/token_mean/uneven_lengths/dp1-cp1-mb2-thd", MISTAKE)) == [
        "weights/sample_mean/uneven_lengths/dp1-cp1-mb2-thd"
    ]


def test_counts_that_are_equal_are_told_apart_by_a_step_in_which_they_differ() -> None:
    """With two ranks of two micro-batches each, either count of 2 may be the wrong divisor."""
    ambiguous = wrong(
        "metric/sample_mean/split_groups/dp2-cp1-mb2-thd",
        "policy_loss/divided_by_dp",
        "policy_loss/divided_by_micro_batches",
    )
    first, *_ = chosen(ambiguous)

    assert first == "metric/sample_mean/split_groups/dp4-cp1-mb2-thd"


def test_what_no_cause_claims_is_not_looked_at() -> None:
    assert not chosen(wrong("weights/sample_mean/uneven_lengths/dp1-cp1-mb2-thd", MISTAKE))


def test_parallelism_is_an_option() -> None:
    assert chosen(wrong("weights/sample_mean/uneven_lengths/dp1-cp2-mb2-thd", MISTAKE)) == [
        "weights/sample_mean/uneven_lengths/dp1-cp1-mb2-thd"
    ]


def test_how_a_step_is_cut_is_tested_by_a_step_that_is_cut_otherwise() -> None:
    """Micro-batches of 12 samples split a group of 8; micro-batches of 4 split no group of 2."""
    split = "where a prompt group is in several micro-batches"
    cells = chosen(
        wrong("weights/sample_mean/split_groups/dp1-cp1-mb2-thd", MISTAKE, facts=[split]),
        right("weights/sample_mean/one_token/dp1-cp1-mb2-thd", MISTAKE),
    )
    assert cells == ["weights/sample_mean/uneven_lengths/dp1-cp1-mb2-thd"]


def test_what_no_case_of_a_check_lacks_is_tested_by_another_check() -> None:
    kept = "where no token is rejected"
    [cell] = chosen(
        wrong("weights/sample_mean/uneven_lengths/dp1-cp1-mb2-thd", MISTAKE, facts=[kept]),
        right("rejection/sample_mean/rejected_group/dp1-cp1-mb2-thd", MISTAKE),
    )
    assert cell.startswith("rejection/sample_mean/")
    assert cell.endswith("/dp1-cp1-mb2-thd")


def test_nothing_is_looked_at_twice() -> None:
    assert not chosen(
        wrong("weights/token_mean/uneven_lengths/dp1-cp1-mb2-thd", MISTAKE),
        wrong("weights/sample_mean/uneven_lengths/dp1-cp1-mb2-thd", "policy_loss/divided_by_cp"),
    )


@dataclass
class Recorder:
    """Keeps the findings that a run makes beyond its plan."""

    settings: SimpleNamespace
    planned: Report | None
    more: list[Finding] = field(default_factory=list)

    def record_more(self, finding_message: FindingMessage) -> None:
        self.more.append(Finding.model_validate_json(finding_message["finding"]))
        self.planned = None


def test_findings_are_made_while_the_ranks_still_run() -> None:
    wrong_with_cp = wrong("weights/sample_mean/uneven_lengths/dp1-cp2-mb2-thd", MISTAKE)
    recorder = Recorder(SimpleNamespace(plan=PLAN), report(wrong_with_cp, header=PER_TOKEN))

    with RankPool(NativeAdapter(), None, 1) as pool:
        experiments.run(cast("FindingRecorder", recorder), SharedJobs(pool))

    [made] = recorder.more
    assert made.id == "weights/sample_mean/uneven_lengths/dp1-cp1-mb2-thd"
    assert made.verdict is Verdict.CONFORMS


def test_advice_is_tested_after_all_other_causes() -> None:
    """The wrong gradient has no condition to test; the advice's condition is how a step is cut."""
    split = "where a prompt group is in several micro-batches"
    name = "weights/sample_mean/split_groups/dp1-cp1-mb2-thd"
    advice, clues = wrong(name, MISTAKE, facts=[split])
    of_advice = advice.model_copy(update={"verdict": Verdict.ADVICE}), clues
    seen = report(
        of_advice,
        wrong("weights/sample_mean/odd_groups/dp1-cp1-mb2-thd", "policy_loss/divided_by_cp"),
        right("weights/sample_mean/one_token/dp1-cp1-mb2-thd", MISTAKE),
        header=PER_TOKEN,
    )

    first, then = (
        experiments.chosen(seen, PLAN, DESCRIPTION, severities) for severities in experiments.TESTED
    )

    assert not first
    assert [cell.id for cell in then] == ["weights/sample_mean/uneven_lengths/dp1-cp1-mb2-thd"]
