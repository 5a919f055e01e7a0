"""Differences between the behaviour of two versions, and the sentence on a refactoring."""

from collections.abc import Mapping

import pytest

from adapters.contract.objective import Objective
from conformance.comparing import advised
from conformance.comparing.behaviour import BehaviourChange, final_clause, said
from conformance.comparing.diff import difference
from conformance.comparing.refused import newly_refused, no_longer_refused
from conformance.findings.finding import Behaviour, Diagnosis, Finding
from conformance.findings.report import Report
from conformance.findings.verdict import Verdict
from conformance.views.versions.diff_formats import as_text
from tests.findings import HEADER, report

GRADIENTS = ((1.0, 0.25),)
STEPS = {
    "weights/token_mean/two_prompts/dp1-cp1-mb1-thd": {"loss": 0.5, "reward/mean": 0.8},
    "weights/sample_mean/two_prompts/dp1-cp1-mb1-thd": {"loss": 0.25, "reward/mean": 0.8},
    "off_policy.gspo/token_mean/split_groups/dp1-cp1-mb1-thd": {"loss": 1.0},
}


def version(
    logged: Mapping[str, Mapping[str, float | None]] = {},
    gradients: tuple[tuple[float | None, float | None], ...] = GRADIENTS,
) -> Report:
    """A report of all steps; some may log other numbers, or have another gradient."""
    findings = [
        Finding(
            id=name,
            verdict=Verdict.CONFORMS,
            tolerance=1e-6,
            error=0.0,
            behaviour=Behaviour(gradients=gradients, logged={**numbers, **logged.get(name, {})}),
        )
        for name, numbers in STEPS.items()
    ]
    header = HEADER.model_copy(update={"chosen_by": {Objective.GSPO: ("--loss=gspo",)}})
    return report(*findings, header=header)


OLD = version()
NOT_FINITE: dict[str, float | None] = {"loss": None}
WITH_ENTROPY = {name: {"entropy": 0.5} for name in STEPS}


def test_a_refactoring_changes_no_number() -> None:
    same = BehaviourChange(OLD, version())

    assert [*said(same)] == [*final_clause(same)] == ["no number changed in 3 steps"]


def test_rounding_is_no_change() -> None:
    of_rounding = {name: {"loss": numbers["loss"] + 1e-7} for name, numbers in STEPS.items()}

    assert [*said(BehaviourChange(OLD, version(of_rounding)))] == ["no number changed in 3 steps"]


def test_a_changed_number_is_told_with_its_steps() -> None:
    name = next(iter(STEPS))
    found = BehaviourChange(OLD, version({name: {"reward/mean": 0.4}}))

    assert [*said(found)] == [
        "gradients are the same in all 3 steps",
        "`reward/mean` is 0.4 instead of 0.8 in 1 of 2 steps",
    ]
    assert [*final_clause(found)] == ["gradients are the same, and `reward/mean` changed"]


def test_what_only_the_changed_steps_have_is_named() -> None:
    name = [*STEPS][-1]
    [_, told] = said(BehaviourChange(OLD, version({name: {"loss": 2.0}})))

    assert told == "`loss` is 2 instead of 1 in 1 of 3 steps, all with `--loss=gspo`"


@pytest.mark.parametrize("other", [((1.0, 0.26),), ((2.0, 0.25),), (*GRADIENTS, *GRADIENTS)])
def test_another_gradient_is_told_whatever_it_should_be(
    other: tuple[tuple[float, float], ...],
) -> None:
    """The gradient's size, its tokens' weights, or the number of optimizer steps may differ."""
    found = BehaviourChange(OLD, version(gradients=other))

    assert next(said(found)) == "the gradient is another in 3 of 3 steps"
    assert not [*final_clause(found)]


def test_what_is_not_finite_stays_in_a_report_and_is_a_change() -> None:
    nothing = version(dict.fromkeys(STEPS, NOT_FINITE), gradients=((None, None),))
    read = Report.model_validate_json(nothing.to_json())

    assert [*said(BehaviourChange(read, nothing))] == ["no number changed in 3 steps"]
    assert [*said(BehaviourChange(OLD, nothing))] == [
        "the gradient is another in 3 of 3 steps",
        "`loss` is nan instead of 1 in 3 of 3 steps",
    ]


def test_names_that_come_and_go_are_told() -> None:
    told = [*said(BehaviourChange(OLD, version(WITH_ENTROPY)))]
    back = [*said(BehaviourChange(version(WITH_ENTROPY), OLD))]

    assert told[-1] == "newly logged, or newly moved by values: entropy"
    assert back[-1] == "no longer logged, or no longer moved by any value: entropy"


def test_a_difference_says_what_changed() -> None:
    assert "no number changed in 3 steps" in [*as_text(difference(OLD, version()))]


def test_reports_without_behaviour_say_nothing() -> None:
    """Reports of earlier versions of this project have no behaviour."""
    findings = [one.model_copy(update={"behaviour": None}) for one in OLD.findings]
    without = OLD.model_copy(update={"findings": findings})

    assert not [*said(BehaviourChange(without, OLD))]


def advising(*names: str, mistake: str = "depends_on_cut") -> Report:
    """A report whose findings of these names are advice."""
    findings = [
        one
        if one.id not in names
        else one.model_copy(
            update={
                "verdict": Verdict.ADVICE,
                "diagnosis": Diagnosis(name=mistake, explanation="`loss` changes"),
            }
        )
        for one in OLD.findings
    ]
    return report(*findings)


def test_refusals_that_come_and_go_are_told_once() -> None:
    first, *_, third = sorted(STEPS)
    why = "ValueError: 3 samples are no multiple of 2"
    refused = {"verdict": Verdict.REFUSED, "message": f"{why}\nrank 0 raised", "behaviour": None}
    findings = [one.model_copy(update=refused if one.id != third else {}) for one in OLD.findings]
    refusing = report(*findings)

    assert [*newly_refused(difference(OLD, refusing))] == [
        f"refused now: {first} and 1 more: {why}"
    ]
    assert [*no_longer_refused(difference(refusing, OLD))] == [
        f"no longer refused: {first} and 1 more: {why}"
    ]
    assert not [*newly_refused(difference(refusing, refusing))]


def test_advice_that_comes_and_goes_is_told_once() -> None:
    first, second, _ = sorted(STEPS)
    after = advising(first, second)

    assert [*advised.said(difference(OLD, after))] == [
        f"new advice: {first} and 1 more: `loss` changes [depends_on_cut]"
    ]
    assert [*advised.said(difference(advising(first), OLD))] == [
        f"advice gone: {first}: `loss` changes [depends_on_cut]"
    ]
    assert [*advised.clauses(difference(after, OLD))] == [
        "advice gone: a gradient or a logged number depends on how a step is cut (2 findings)"
    ]
    assert not [*advised.said(difference(after, after))]
    other = advising(first, mistake="depends_on_order")
    assert [*advised.said(difference(advising(first), other))] == [
        f"new advice: {first}: `loss` changes [depends_on_order]",
        f"advice gone: {first}: `loss` changes [depends_on_cut]",
    ]
