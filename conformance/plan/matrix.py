"""The cells of the matrix of findings: a check with its case, mode and layout."""

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
    """A cell of the matrix: a check on one mode, case and layout."""

    aggregation: Aggregation
    case: Case
    layout: Layout
    depth: Depth
    spec: CheckSpec = CHECK_SPECS[0]

    @property
    def id(self) -> str:
        """The id of the cell's finding: unique, and stable over releases."""
        return self.spec.finding_id(self.aggregation.mode, self.case.name, self.layout)

    @property
    def job_id(self) -> str:
        """The name of the cell's job; cells with the same name share the job."""
        plain = f"{self.spec.objective}/{self.aggregation.mode}/{self.case.name}/{self.layout}"
        return f"{plain}/{self.spec.law.says}" if self.spec.law else plain

    @property
    def job(self) -> Job:
        """The job for the ranks, without expected numbers."""
        return self.spec.law.after(self._job) if self.spec.law else self._job

    @property
    def job_before(self) -> Job:
        """The job before a law's change."""
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
    """A cell of the matrix: a configuration in one mode."""

    config_case: ConfigCase

    @property
    def job_id(self) -> str:
        """The name that all startup cells share: one process finds all ignored settings."""
        return Check.ARGUMENTS

    @property
    def job(self) -> Job:
        """An ordinary job, with the configuration of the case."""
        return replace(super().job, configuration=self.config_case.configuration)


@dataclass(frozen=True, kw_only=True)
class LogCell:
    """A cell of the matrix: entries of micro-batches that the framework joins to one log."""

    log_case: LogCase
    depth: Depth = Depth.STEP
    layout: Layout = field(default=Layout())

    @property
    def spec(self) -> CheckSpec:
        """The only check of logs."""
        return CheckSpec(check=Check.LOGGING)

    @property
    def id(self) -> str:
        """The id of the cell's finding: unique, and stable over releases."""
        return self.spec.finding_id(self.log_case.mode, self.log_case.name, self.layout)

    @property
    def job_id(self) -> str:
        """The name that all log cells share: one process makes all logs."""
        return self.spec.slug


@dataclass(frozen=True, kw_only=True)
class GeneratedCell:
    """A cell of the matrix: a check on one mode, many generated cases and a layout.

    The cases are determined by ``seed`` and by the cell's mode and layout.
    """

    mode: Mode
    divisor: float | None
    """The divisor L of `constant`, if the user chose one."""

    layout: Layout
    depth: Depth
    examples: int
    seed: str
    spec: CheckSpec = CHECK_SPECS[0]

    @property
    def id(self) -> str:
        """The id of the cell's finding: unique, and stable over releases."""
        return self.spec.finding_id(self.mode, GENERATED, self.layout)

    @property
    def job_id(self) -> str:
        """The name of the cell's own jobs, which no other cell shares."""
        return self.id

    def of(self, case: Case) -> MatrixCell:
        """The cell of the same check on one case."""
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

By miles' pull request 1498, sample-normalised terms may not be mixed into `token_mean`. If a
normaliser spans the step, no custom function may change the mask after the step is cut.
"""


def may_decline(cell: MatrixCell) -> bool:
    """Whether the contract allows a framework to decline the cell's job.

    It may decline a step without active tokens, as nothing can be computed from it. It may decline
    prompt groups that are not adjacent: SkyRL documents that it assumes adjacent groups. It may
    decline samples or rollouts that cannot be divided evenly among the data-parallel ranks: SkyRL
    asserts that batch sizes are multiples, slime that micro-batches can be aligned. In
    `prompt_mean` it may decline prompt groups that cannot be divided evenly: miles' pull request
    1498 keeps groups whole on a rank.
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
