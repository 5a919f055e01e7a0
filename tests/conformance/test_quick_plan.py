"""The quick plan has every pair of properties that the full one has, in few jobs."""

from collections.abc import Iterable
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.contract import Option
from adapters.native.adapter import NativeAdapter
from adapters.skyrl.adapter import SkyRLFsdpAdapter
from conformance import cli
from conformance.comparing.diff import ChangeKind, difference
from conformance.findings.finding import Finding
from conformance.findings.report import PlanSize, Request
from conformance.findings.verdict import Verdict
from conformance.plan.checks import WITHOUT_PAIRS
from conformance.plan.matrix import MatrixCell
from conformance.plan.plan import Plan
from conformance.plan.quick import covering, has_different_counts
from conformance.plugin.options import settings_of
from conformance.runs.registry import create
from reference.aggregation import Mode
from tests.findings import HEADER, report

QUICK = Plan(layouts=tuple(NativeAdapter().layouts()), size=PlanSize.QUICK)
FULL = QUICK.extended_to(())


def pairs(cells: Iterable[object]) -> set[tuple[object, ...]]:
    """The pairs of properties that cells check, computed independently of the plan's own code."""
    found: set[tuple[object, ...]] = set()
    for cell in cells:
        if type(cell) is not MatrixCell or cell.spec.law:
            continue
        layout = cell.layout
        properties: list[tuple[str, object]] = [
            ("mode", cell.aggregation.mode),
            ("case", cell.case.name),
            ("dp", layout.dp),
            ("cp", layout.cp),
            ("micro-batches", layout.micro_batches),
            ("format", layout.format),
        ]
        if cell.case.layouts:  # a case of production size
            properties, together = [("case", cell.case.name)], 1
        else:
            together = 1 if cell.spec.objective in WITHOUT_PAIRS else 2
        found.update((cell.spec.slug, *some) for some in combinations(properties, together))
    return found


def test_every_check_sees_every_pair_of_properties_that_the_full_plan_has() -> None:
    assert pairs(QUICK.cells()) == pairs(FULL.cells())
    assert 10 * len(QUICK.cells()) < len(FULL.cells())


def test_rollouts_of_several_samples_are_stored_and_cut_in_every_way() -> None:
    """As in SkyRL 0.2.0, where only packed rows of equal micro-batches crashed."""

    def ways(plan: Plan) -> set[tuple[object, ...]]:
        return {
            (cell.layout.format, cell.layout.micro_batches)
            for cell in plan.cells()
            if type(cell) is MatrixCell
            and cell.case.name == "unequal_groups"
            and cell.aggregation.mode in (Mode.SAMPLE_MEAN, Mode.TOKEN_MEAN)
        }

    assert ways(QUICK) == ways(FULL)


def test_each_mode_sees_fewer_tokens_than_ranks_without_options() -> None:
    """As in ms-swift 4.6 on Megatron, which counts a rank's share of half a token as one token."""

    def modes(plan: Plan) -> set[Mode]:
        return {
            cell.aggregation.mode
            for cell in plan.cells()
            if type(cell) is MatrixCell
            and (cell.spec.slug, cell.case.name) == ("weights", "one_token")
            and cell.layout.dp > 1
            and not cell.layout.options
        }

    assert modes(QUICK) == modes(FULL) == {*Mode}


def test_each_mode_sees_several_steps_of_one_generation() -> None:
    """As in ms-swift 4.6 on DeepSpeed, which divides each step by the tokens of all these steps."""
    layouts = tuple(create("ms_swift", "deepspeed").layouts())
    quick = Plan(layouts=layouts, size=PlanSize.QUICK)

    def modes(plan: Plan) -> set[Mode]:
        return {
            cell.aggregation.mode
            for cell in plan.cells()
            if type(cell) is MatrixCell
            and cell.spec.slug == "weights"
            and len(cell.case.steps) > 1
            and Option.SHARED_GENERATION in cell.layout.options
        }

    assert modes(quick) == modes(quick.extended_to(())) == {*Mode}


def test_each_check_sees_a_step_whose_counts_are_all_different() -> None:
    """As in TRL 1.16: its logged loss is divided by the number of micro-batches, not of ranks."""

    def checks(plan: Plan) -> set[str]:
        cells = (cell for cell in plan.cells() if type(cell) is MatrixCell)
        return {cell.spec.slug for cell in cells if has_different_counts(cell)}

    assert checks(QUICK) == checks(FULL)
    assert {"weights", "metric.policy_loss_with_entropy", "off_policy.gspo"} <= checks(QUICK)


def test_counts_are_different_if_no_two_of_them_are_equal() -> None:
    cells = [cell for cell in FULL.cells() if type(cell) is MatrixCell]
    different = {(cell.case.name, str(cell.layout)) for cell in cells if has_different_counts(cell)}

    assert ("split_groups", "dp4-cp1-mb2-bshd") in different, "24 samples, 8 of a prompt"
    assert ("odd_groups", "dp4-cp1-mb2-bshd") in different, "24 samples, 3 of a prompt"
    assert ("split_groups", "dp2-cp1-mb2-bshd") not in different
    assert ("uneven_lengths", "dp4-cp1-mb2-bshd") not in different, "2 samples of a prompt"


@pytest.mark.thorough
def test_what_was_to_be_seen_in_declined_steps_is_looked_for_in_others() -> None:
    """All modes but one decline uneven batches on several ranks; one mode declines rejection."""

    def is_declined(cell: MatrixCell) -> bool:
        uneven = any(step.size % cell.layout.dp for step in cell.case.steps)
        mode = cell.aggregation.mode
        return (uneven and mode is not Mode.CONSTANT) or (
            cell.spec.slug == "rejection" and mode is Mode.TOKEN_MEAN
        )

    def made(cells: Iterable[object]) -> dict[str, bool]:
        return {cell.id: not is_declined(cell) for cell in cells if isinstance(cell, MatrixCell)}

    driven = [cell for cell in FULL.cells_of_cases if not is_declined(cell)]

    def missing() -> int:
        return len(pairs(driven) - pairs(cell for cell in driven if ran.get(cell.id)))

    ran = made(QUICK.cells())
    before, declined = len(ran), missing()
    substitutes = QUICK.substitutes(lambda _: True)
    while cells := substitutes.of_declined(ran):
        assert not ran.keys() & {cell.id for cell in cells}
        ran |= made(cells)

    assert missing() < 0.2 * declined
    assert len(ran) < 1.5 * before
    assert not substitutes.of_declined(dict.fromkeys(ran, True))
    assert not FULL.substitutes(lambda _: True).of_declined(made(QUICK.cells()))


def test_checks_of_one_job_are_all_looked_at() -> None:
    jobs = {cell.job_id for cell in QUICK.cells()}

    assert {cell.id for cell in QUICK.cells()} == {
        cell.id for cell in FULL.cells() if cell.job_id in jobs and cell.id.find("generated") < 0
    }


@given(
    st.dictionaries(st.integers(0, 30), st.frozensets(st.integers(0, 20), max_size=6), min_size=1)
)
def test_covering_shows_everything_and_each_of_it_something_first(
    candidates: dict[int, frozenset[int]],
) -> None:
    chosen = covering(candidates)
    everything = frozenset[int]().union(*candidates.values())

    assert sorted(one for new in chosen.values() for one in new) == sorted(everything)
    assert all(new and new <= candidates[one] for one, new in chosen.items())
    first = next(iter(chosen), None)
    assert first is None or len(candidates[first]) == max(map(len, candidates.values()))


@pytest.mark.parametrize(
    ("given_options", "size"),
    [
        ([], PlanSize.QUICK),
        (["--checks=weights", "--modes=token_mean", "--max-ranks=2"], PlanSize.QUICK),
        (["--layout=dp1-cp1-mb1-thd"], PlanSize.FULL),
        (["--layout=dp1-cp1-mb1-thd", "--plan=quick"], PlanSize.QUICK),
        (["-k", "two_steps"], PlanSize.FULL),
        (["test_conformance.py::test_finding[weights/a/b/c]"], PlanSize.FULL),
        (["--plan=full"], PlanSize.FULL),
    ],
)
def test_who_names_a_layout_a_case_or_a_finding_gets_all_of_it(
    pytester: pytest.Pytester, given_options: list[str], size: PlanSize
) -> None:
    config = pytester.parseconfig("--adapter=native", *given_options)

    assert settings_of(config).plan.size is size


def test_what_a_quick_run_leaves_out_has_not_vanished() -> None:
    kept, left_out, other = (
        Finding(id=f"weights/token_mean/{rest}-cp1-mb1-thd", verdict=Verdict.CONFORMS)
        for rest in ("a/dp1", "b/dp1", "b/dp2")
    )
    old = report(kept, left_out, other)

    def vanished(plan: PlanSize) -> int:
        header = HEADER.model_copy(update={"request": Request(plan=plan)})
        new = report(kept, other, header=header)
        return len(difference(old, new).of(ChangeKind.VANISHED))

    assert (vanished(PlanSize.FULL), vanished(PlanSize.QUICK)) == (1, 0)


def test_command_lists_the_jobs_and_what_each_is_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", "--adapter=skyrl"]) == 0

    lines = capsys.readouterr().out.splitlines()
    adapter = SkyRLFsdpAdapter()
    plan = Plan(layouts=tuple(adapter.layouts()), size=PlanSize.QUICK).driven_by(adapter)
    assert lines[0].startswith(f"{len(plan.cells())} of ")
    assert len(lines) == len({cell.job_id for cell in plan.cells()}) + 3
    assert any(" × format=thd" in line for line in lines)
