"""Faults of the harness itself: no verdict of a run stands where it contradicts itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from adapters.contract import Layout
from conformance.findings.errors import InconsistentExpectationError, UnknownCutError
from conformance.runs.recorder import Consistency
from reference.aggregation import AuxiliaryAggregation, Mode
from tests import command
from tests.conformance.given import BY_SAMPLE, UNEVEN, Given

if TYPE_CHECKING:
    from pathlib import Path

    from conformance.diagnosis.step_context import ExpectedNumber


TWO = Layout(dp=2, micro_batches=2)


def test_numbers_of_one_name_and_case_must_be_equal() -> None:
    consistency = Consistency()
    consistency.require("odd_groups", "a", [("clip fraction", 0.25), ("entropy", 0.5)])
    consistency.require("odd_groups", "b", [("clip fraction", 0.25)])
    consistency.require("one_token", "c", [("clip fraction", 0.75)])

    with pytest.raises(InconsistentExpectationError) as fault:
        consistency.require("odd_groups", "d", [("entropy", 0.5), ("clip fraction", 0.26)])

    assert "clip fraction of case odd_groups is expected to be 0.25 by a and 0.26 by d" in str(
        fault.value
    )


def expected(given: Given) -> tuple[ExpectedNumber, ...]:
    return given.judged(given.weights).expected


def test_expected_weights_have_one_name_whatever_the_layout_and_the_cut() -> None:
    whole, cut = Given(), Given(layout=TWO, forward_pass_of_token=BY_SAMPLE)

    assert expected(whole) == expected(cut)
    assert expected(Given(mode=Mode.CONSTANT)) != expected(Given(mode=Mode.CONSTANT, divisor=8.0))


def test_expected_weights_of_micro_batches_are_named_after_the_layout() -> None:
    given = Given(layout=TWO, forward_pass_of_token=BY_SAMPLE)
    how = AuxiliaryAggregation.MICRO_BATCH_TOKEN_MEAN
    averaged, otherwise_cut = (
        Given(layout=TWO, forward_pass_of_token=held).context.of_term(how).fingerprint
        for held in (BY_SAMPLE, UNEVEN)
    )

    where = f"of equal micro-batches on {given.layout}"
    assert averaged.name == f"weights of step 0, token_mean {where}"
    assert averaged.name == otherwise_cut.name
    assert averaged.value != otherwise_cut.value


def test_mean_over_micro_batches_needs_to_be_told_of_them() -> None:
    with pytest.raises(UnknownCutError, match="have the adapter tell its forward passes"):
        _ = Given().context.of_term(AuxiliaryAggregation.MICRO_BATCH_TOKEN_MEAN).expected


CLIP_FRACTION = (
    "--checks=metric",
    "--modes=sample_mean,token_mean",
    "--layout=dp1-cp1-mb2-thd",
    "-k",
    "clip_fraction",
)


@pytest.mark.parametrize(
    "workers",
    [(), pytest.param(("-n", "2", "--dist=loadfile"), marks=pytest.mark.processes)],
    ids=["alone", "xdist"],
)
def test_cut_that_depends_on_the_mode_stops_the_run(tmp_path: Path, workers: tuple[str]) -> None:
    result = command.run(tmp_path, "misreportingcuts", *CLIP_FRACTION, *workers)

    assert result.status == pytest.ExitCode.INTERNAL_ERROR
    assert "fault of the harness: clip_fraction in clip_fraction of off_policy" in result.output
    assert "no verdict of this run can be relied on" in result.output
    assert not result.report.complete


def test_adapter_that_tells_of_no_cut_where_one_is_needed_stops_the_run(tmp_path: Path) -> None:
    result = command.run(tmp_path, "silentaboutcuts", *CLIP_FRACTION)

    assert result.status == pytest.ExitCode.INTERNAL_ERROR
    assert "fault of the harness: UnknownCutError: " in result.output
