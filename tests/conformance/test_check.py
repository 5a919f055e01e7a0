"""From what a framework did to a verdict: what it may decline, and whose rule it breaks."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from adapters.contract import Depth, Description, Job, Layout
from conformance.cases import CORPUS
from conformance.cells import Cell
from conformance.check import check
from conformance.rank import Declined
from conformance.report import Verdict
from reference.aggregation import Mode


@dataclass
class Declining:
    """Stands where ranks are that decline whatever they are given."""

    message: str
    description: Description = field(default_factory=Description)

    def outcome(self, job: Job) -> Declined:
        """The same whatever the job."""
        return Declined("refused", self.message)


def verdict(case: str, layout: Layout, message: str, mode: Mode = Mode.TOKEN_MEAN) -> Verdict:
    chosen = next(one for one in CORPUS if one.name == case)
    cell = Cell(aggregation=chosen.aggregation(mode), case=chosen, layout=layout, depth=Depth.STEP)
    return check(cell, Declining(message)).finding.verdict  # type: ignore[arg-type]


WORDS = "AssertionError: 8 samples cannot be dealt to 3 ranks"


@pytest.mark.parametrize("mode", Mode)
def test_uneven_cut_may_be_declined_in_words_in_every_mode(mode: Mode) -> None:
    assert verdict("two_steps", Layout(dp=3), WORDS, mode) is Verdict.REFUSED


def test_naked_assert_declines_nothing() -> None:
    assert verdict("two_steps", Layout(dp=3), "AssertionError: ") is Verdict.MISMATCH


def test_ordinary_step_may_not_be_declined() -> None:
    assert verdict("two_steps", Layout(dp=2), WORDS) is Verdict.MISMATCH
