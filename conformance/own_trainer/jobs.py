"""Chooses the steps that a trainer is tried with, and describes the trainer to the judges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from adapters.contract import Depth, Description, Layout
from adapters.contract.batch.probed_batch import ProbedBatch
from adapters.contract.description import Assumed
from adapters.contract.objective import Metric, Objective
from conformance.corpus.cases import CASES_BY_NAME
from conformance.findings.errors import WrongUseError
from conformance.findings.verdict import Check
from conformance.own_trainer.estimators import require_known, rewards_over_advantages
from conformance.plan.checks import CHECK_SPECS
from conformance.plan.matrix import MatrixCell
from conformance.plan.quick import quick_jobs
from reference.aggregation import AdvantageUnit, Aggregation, Mode

if TYPE_CHECKING:
    from collections.abc import Sequence

TELLING = ("uneven_lengths", "fully_masked_sample", "unequal_shards", "padded_widths")
"""Cases that distinguish the mistakes of trainers: lengths that differ within and between ranks and
micro-batches, masks with holes, a sample without active tokens. All have eight samples."""

METRIC_SPECS = {
    spec.metric: spec
    for spec in CHECK_SPECS
    if spec.check is Check.METRIC
    and spec.metric is Metric.POLICY_LOSS
    and spec.objective is Objective.POLICY
}
"""The checks of the numbers that `Step.logged` takes."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The options of a check, as a user gives them."""

    aggregation: Aggregation
    dp: tuple[int, ...] = (1,)
    micro_batches: tuple[int, ...] = (1, 2)
    packed: bool = False
    cases: tuple[str, ...] = TELLING
    advantages: str | None = None
    """The estimator by which the trainer computes advantages from rewards; None if they are
    given."""

    def cells(self) -> list[MatrixCell]:
        """The cells of the quick plan, those on the fewest ranks first.

        Raises:
            WrongUseError: a case is unknown, has samples without an advantage, or every case has
                fewer samples than micro-batches.
        """
        if unknown := [*{*self.cases} - CASES_BY_NAME.keys()]:
            raise WrongUseError(
                f"case {unknown[0]!r} is unknown", "rl-loss-conformance cases lists them"
            )
        every = [
            MatrixCell(aggregation=self.aggregation, case=case, layout=layout, depth=Depth.STEP)
            for layout in self._layouts()
            for case in (CASES_BY_NAME[name] for name in self.cases)
            if len(case.steps) == 1
            and case.steps[0].size % (layout.dp * int(layout.micro_batches)) == 0
        ]
        if not every:
            raise WrongUseError(
                f"no case has samples for dp={self.dp} and micro_batches={self.micro_batches}",
                "their product must divide the 8 samples of a step",
            )
        if self.advantages is not None:
            for cell in every:
                batch = ProbedBatch(cell.case.steps, advantage_unit=AdvantageUnit.SAMPLE)
                groups = cell.case.steps[0].groups
                rewards_over_advantages(self.advantages, batch.sample_advantages, groups)
        chosen = quick_jobs(every)
        return [cell for cell in every if cell.job_id in chosen]

    def _layouts(self) -> list[Layout]:
        storage = "thd" if self.packed else "bshd"
        return [
            Layout(dp=dp, micro_batches=micro_batches, format=storage)  # type: ignore[arg-type]
            for dp in sorted(self.dp)
            for micro_batches in sorted(self.micro_batches)
        ]

    def description(self, unit: AdvantageUnit, dtype: str) -> Description:
        """The description of the trainer for judges."""
        return Description(
            modes=frozenset({self.aggregation.mode}),
            depths=frozenset({Depth.STEP}),
            objectives=frozenset({Objective.POLICY}),
            metrics=frozenset(filter(None, METRIC_SPECS)),
            records_forward_passes=True,
            default_mode=self.aggregation.mode,
            declared={"advantage_unit": Assumed(unit)},
            dtype=dtype,
        )


def asked(
    mode: str,
    divisor: float | None,
    dp: int | Sequence[int],
    micro_batches: int | Sequence[int],
    packed: bool,
    cases: Sequence[str],
    advantages: str | None = None,
) -> Asked:
    """The options of a check, where numbers may be single or in sequences.

    Raises:
        InvalidAggregationError: the mode is unknown, or its divisor is missing or superfluous.
        WrongUseError: the estimator of advantages is unknown.
    """
    require_known(advantages)
    return Asked(
        aggregation=Aggregation(Mode(mode) if mode in [*Mode] else mode, divisor),  # type: ignore[arg-type]
        dp=_several(dp),
        micro_batches=_several(micro_batches),
        packed=packed,
        cases=tuple(cases),
        advantages=advantages,
    )


def _several(numbers: int | Sequence[int]) -> tuple[int, ...]:
    return (numbers,) if isinstance(numbers, int) else tuple(numbers)
