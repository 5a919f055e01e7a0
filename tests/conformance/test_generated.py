"""`--examples`: rare defects are found, shrunk and handed over as a file that can be run again."""

import dataclasses
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given

from adapters import native  # noqa: F401 - torch does not survive a second import
from adapters.contract import Depth, Layout
from conformance.corpus.case_file import CaseFile, text
from conformance.corpus.cases import Case
from conformance.corpus.strategies import cases, steps
from conformance.findings.errors import StartError
from conformance.findings.finding import Finding
from conformance.plan.matrix import GeneratedCell
from conformance.ranks.pool import RankPool
from conformance.runs.check import make
from conformance.runs.jobs import SharedJobs
from reference.aggregation import Mode
from reference.step import Step
from tests import broken, command

GENERATED = ("--examples=40", "--no-trace", "-k", "generated")

ONE_CELL = (*GENERATED, "--modes=token_mean", "--layout=dp2-cp1-mb1-bshd")


def pasted(finding: Finding) -> Case:
    """The case that a finding's message ends with."""
    return CaseFile.model_validate_json(finding.message.splitlines()[-1]).case()


def fields(step: Step) -> list[list[int]]:
    """The fields of a step as lists; groups and rollouts are named by their first samples."""
    named = {field.name: getattr(step, field.name) for field in dataclasses.fields(step)}
    lists = {name: value.tolist() for name, value in named.items() if value is not None}
    for name in ("groups", "rollouts"):
        lists[name] = [lists[name].index(one) for one in lists[name]]
    return [*lists.values()]


def after_rejection(step: Step) -> Case:
    everything = np.ones_like(step.mask)
    rejecting = replace(step, original_mask=everything)
    return Case(name="wild", catches="", steps=(step, rejecting), divisor=0.1)


@given(cases(Layout(dp=2)), steps().map(after_rejection))
def test_file_makes_the_same_case(trained: Case, wild: Case) -> None:
    for case in (trained, wild):
        made = CaseFile.model_validate_json(text(case, "mine")).case()

        assert [fields(step) for step in made.steps] == [fields(step) for step in case.steps]
        assert (made.name, made.divisor) == ("mine", case.divisor)


@pytest.mark.thorough
def test_examples_that_conform_are_one_finding_with_their_number(tmp_path: Path) -> None:
    result = command.run(tmp_path, "twolayouts", "--examples=20", "-k", "generated")

    assert result.status == 0, result.output
    findings = result.report.findings
    assert [finding.id for finding in findings] == sorted(
        f"weights/{mode}/generated/dp{dp}-cp1-mb1-bshd" for mode in Mode for dp in (1, 2)
    )
    assert {finding.message for finding in findings} == {"20 examples: 20 conforms"}
    assert all(0 <= finding.error <= finding.tolerance for finding in findings)


def test_none_are_generated_unless_asked_for(tmp_path: Path) -> None:
    listing = command.run(tmp_path, "twolayouts", "--collect-only", "-q").output

    assert "generated" not in listing


@pytest.mark.parametrize(
    ("adapter", "most_samples", "error"),
    [
        pytest.param("groupsofthree", 6, 0.5, marks=pytest.mark.thorough),
        pytest.param("emptysecond", 2, 1.0, marks=pytest.mark.thorough),
        ("onetokenshort", 2, None),
    ],
)
def test_rare_defect_is_found_and_shrunk(
    tmp_path: Path, adapter: str, most_samples: int, error: float | None
) -> None:
    result = command.run(tmp_path, adapter, *GENERATED, "--layout=dp2-cp1-mb1-bshd")

    findings = result.report.findings
    assert len(findings) == len(Mode)
    for finding in findings:
        [step] = pasted(finding).steps
        assert finding.verdict == "mismatch"
        assert finding.diagnosis is not None
        assert step.size <= most_samples
        assert error is None or finding.error == pytest.approx(error, rel=1e-6)
        assert step.prompt_lengths.max() == step.response_lengths.max() == 1
        assert " of 40, shrunk, as a --case-file:\n{" in finding.message
    output = " ".join(result.output.split())
    assert any(" ".join(finding.message.split()) in output for finding in findings)


def test_refused_example_is_shrunk_and_keeps_the_frameworks_words(tmp_path: Path) -> None:
    result = command.run(tmp_path, "refusingoddtotals", *ONE_CELL)

    [finding] = result.report.findings
    [step] = pasted(finding).steps
    assert finding.verdict == "declined"
    assert finding.message.startswith("ValueError: 5 tokens cannot be halved\n")
    assert step.active_tokens.sum() == 5
    assert "declined: ValueError: 5 tokens cannot be halved" in " ".join(result.output.split())


def test_shrinking_does_not_end_at_another_mistake(tmp_path: Path) -> None:
    [finding] = command.run(tmp_path, "wrongorrefusing", *ONE_CELL).report.findings
    [step] = pasted(finding).steps

    assert finding.verdict == "mismatch"
    assert finding.error is not None
    assert step.prompt_lengths.max() == 2, "in smaller ones it refuses"


def test_crash_ends_the_search_at_once(tmp_path: Path) -> None:
    [finding] = command.run(tmp_path, "crashingonsilence", *ONE_CELL).report.findings

    assert finding.verdict == "crashed"
    assert finding.message.startswith("RuntimeError: empty reduction\nrank")
    assert "shrunk" not in finding.message
    assert any(not step.active_tokens.all() for step in pasted(finding).steps)


def test_what_is_wrong_only_now_and_then_is_said_to_be(tmp_path: Path) -> None:
    [finding] = command.run(tmp_path, "unsteady", *ONE_CELL).report.findings

    assert finding.verdict == "mismatch"
    assert "run again, the same example was not wrong\nexample " in finding.message


def test_framework_that_declines_some_examples_conforms_in_the_others(tmp_path: Path) -> None:
    result = command.run(tmp_path, "withoutpromptmean", *GENERATED, "--layout=dp2-cp1-mb1-bshd")

    findings = {finding.mode: finding for finding in result.report.findings}
    assert findings["prompt_mean"].verdict == "unsupported"
    assert findings["prompt_mean"].message == "no mode prompt_mean"
    assert findings["token_mean"].verdict == "conforms"
    assert " conforms, " in findings["token_mean"].message
    assert findings["token_mean"].message.endswith(" refused")


def test_divisor_is_the_one_asked_for_or_one_of_many(tmp_path: Path) -> None:
    chosen = command.run(tmp_path, "onetokenshort", *GENERATED, "--modes=constant:7.5")

    assert {pasted(finding).divisor for finding in chosen.report.findings} == {7.5}


@pytest.mark.thorough
def test_part_of_a_run_finds_the_same(tmp_path: Path) -> None:
    few = ("--examples=15", "--no-trace", "-k", "generated", "--layout=dp2-cp1-mb1-bshd")
    alone = command.run(tmp_path / "alone", "groupsofthree", *few, "--modes=token_mean")
    both = "--modes=sample_mean,token_mean"
    among_others = command.run(tmp_path / "others", "groupsofthree", *few, both)

    [finding] = alone.report.findings
    [same] = (one for one in among_others.report.findings if one.id == finding.id)
    assert same.model_copy(update={"clues": finding.clues}) == finding


def test_another_seed_means_other_examples(tmp_path: Path) -> None:
    def first_to_crash(*seed: str) -> list[list[list[int]]]:
        result = command.run(tmp_path, "crashingonsilence", *ONE_CELL, *seed)
        [finding] = result.report.findings
        return [fields(step) for step in pasted(finding).steps]

    seeded = first_to_crash("--hypothesis-seed=1")

    assert first_to_crash() != seeded
    assert first_to_crash("--hypothesis-seed=1") == seeded


def test_fault_of_the_harness_is_no_finding() -> None:
    cell = GeneratedCell(
        mode=Mode.TOKEN_MEAN, divisor=None, layout=Layout(), depth=Depth.STEP, examples=10, seed="0"
    )
    with (
        RankPool(broken.Unloadable(), None, size=1) as pool,
        pytest.raises(StartError, match="cannot be loaded"),
    ):
        make(cell, SharedJobs(pool))
