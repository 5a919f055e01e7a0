"""The places of the table of findings: what is looked at, on which case, mode and layout."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from adapters.contract import Depth, Job, Layout
from adapters.contract.objective import WITH_REJECTION, Objective
from conformance.findings.finding import GENERATED
from conformance.findings.verdict import Check
from conformance.plan.checks import CHECK_SPECS, CheckSpec
from reference.aggregation import Mode

if TYPE_CHECKING:
    from conformance.corpus.cases import Case
    from conformance.corpus.configurations import ConfigCase, LogCase
    from reference.aggregation import Aggregation
    from reference.step import Step


@dataclass(frozen=True, kw_only=True)
class MatrixCell:
    """One place in the table of findings: a check on one mode, case and layout."""

    aggregation: Aggregation
    case: Case
    layout: Layout
    depth: Depth
    spec: CheckSpec = CHECK_SPECS[0]

    @property
    def id(self) -> str:
        """Unique, and stable over releases."""
        return self.spec.finding_id(self.aggregation.mode, self.case.name, self.layout)

    @property
    def job_id(self) -> str:
        """Names what runs for the cell; cells of one name share a job."""
        plain = f"{self.spec.objective}/{self.aggregation.mode}/{self.case.name}/{self.layout}"
        return f"{plain}/{self.spec.law.says}" if self.spec.law else plain

    @property
    def job(self) -> Job:
        """The job for the ranks: everything but what to expect."""
        return self.spec.law.after(self._job) if self.spec.law else self._job

    @property
    def job_before(self) -> Job:
        """The same before a law's change."""
        return self.spec.law.before(self._job) if self.spec.law else self._job

    @property
    def _job(self) -> Job:
        return Job(
            steps=self.case.steps,
            aggregation=self.aggregation,
            layout=self.layout,
            depth=self.depth,
            objective=self.spec.objective,
        )


@dataclass(frozen=True, kw_only=True)
class StartupCell(MatrixCell):
    """One place in the table of findings: a configuration in one mode."""

    config_case: ConfigCase

    @property
    def job_id(self) -> str:
        """Names what runs for all cells of its kind: one process tells what an adapter ignores."""
        return Check.ARGUMENTS

    @property
    def job(self) -> Job:
        """An ordinary one, with the configuration of its case."""
        return replace(super().job, configuration=self.config_case.configuration)


@dataclass(frozen=True, kw_only=True)
class LogCell:
    """One place in the table of findings: entries that are to be made one log of."""

    log_case: LogCase
    depth: Depth = Depth.STEP
    layout: Layout = field(default=Layout())

    @property
    def spec(self) -> CheckSpec:
        """The only check of its kind."""
        return CheckSpec(check=Check.LOGGING)

    @property
    def id(self) -> str:
        """Unique, and stable over releases."""
        return self.spec.finding_id(self.log_case.mode, self.log_case.name, self.layout)

    @property
    def job_id(self) -> str:
        """Names what runs for all cells of its kind: one process makes all logs."""
        return self.spec.slug


@dataclass(frozen=True, kw_only=True)
class GeneratedCell:
    """One place in the table of findings: a check on one mode, many generated cases and a layout.

    The cases follow from ``seed`` and from the place itself.
    """

    mode: Mode
    divisor: float | None
    """L of `constant` where the user chose one."""

    layout: Layout
    depth: Depth
    examples: int
    seed: str
    spec: CheckSpec = CHECK_SPECS[0]

    @property
    def id(self) -> str:
        """Unique, and stable over releases."""
        return self.spec.finding_id(self.mode, GENERATED, self.layout)

    @property
    def job_id(self) -> str:
        """Names what runs for this cell alone."""
        return self.id

    def of(self, case: Case) -> MatrixCell:
        """The same check on one case."""
        return MatrixCell(
            aggregation=case.aggregation(self.mode),
            case=case,
            layout=self.layout,
            depth=self.depth,
            spec=self.spec,
        )


AnyMatrixCell = MatrixCell | LogCell | GeneratedCell

MODES_OF_OBJECTIVE = {
    Objective.ENTROPY: (Mode.TOKEN_MEAN,),
    Objective.KL: (Mode.TOKEN_MEAN,),
    Objective.COMBINED: (Mode.TOKEN_MEAN,),
    **dict.fromkeys(WITH_REJECTION, (Mode.TOKEN_MEAN, Mode.PROMPT_MEAN)),
}
"""Modes in which an objective may be declined.

In miles' pull request 1498, sample-normalised terms are not mixed into `token_mean`, and where a
normaliser spans the step, no custom function may change the mask after micro-batches are cut.
"""


def may_decline(cell: MatrixCell) -> bool:
    """Whether the contract allows a framework to decline the cell's job.

    It may decline a step without active tokens, as nothing can be computed from it; prompt groups
    that are not adjacent (SkyRL documents that it takes them to be); samples or rollouts that
    cannot be divided evenly among the data-parallel ranks (SkyRL asserts that batch sizes are
    multiples, slime that micro-batches can be aligned); and in `prompt_mean` prompt groups that
    cannot (miles' pull request 1498 keeps groups whole on a rank).
    """
    steps, dp, mode = cell.case.steps, cell.layout.dp, cell.aggregation.mode
    return (
        not all(step.mask.any() and _groups_are_adjacent(step) for step in steps)
        or mode in MODES_OF_OBJECTIVE.get(cell.spec.objective, ())
        or any(step.size % dp or len(np.unique(step.rollouts)) % dp for step in steps)
        or (mode is Mode.PROMPT_MEAN and any(len(np.unique(step.groups)) % dp for step in steps))
    )


def _groups_are_adjacent(step: Step) -> bool:
    borders = np.count_nonzero(np.diff(step.groups))
    return bool(borders + 1 == len(np.unique(step.groups)))
