"""Runs the jobs of findings, unchanged and with another value at a line."""

from __future__ import annotations

import math
import time
from collections import defaultdict, deque
from dataclasses import dataclass, field, replace
from itertools import chain, zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from adapters.contract.job import CodeChange
from conformance.corpus.cases import CORPUS
from conformance.findings.errors import HarnessFaultError
from conformance.findings.verdict import Verdict
from conformance.judging.outcome import is_plainly_wrong, judge_outcome
from conformance.judging.weights import final_weights, step_context
from conformance.plan.checks import CHECK_SPECS
from conformance.ranks.messages import Declined
from conformance.ranks.pool import Ran
from conformance.runs.check import is_offered
from conformance.tracing.placed import OrdinaryRun
from reference.aggregation import Aggregation, Mode

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from adapters.contract import Job, Observation
    from adapters.contract.job import Edit, Replacement
    from conformance.expected.step_context import StepContext
    from conformance.findings.verdict import Check
    from conformance.judging.weights import Outcome
    from conformance.plan.checks import CheckSpec
    from conformance.plan.matrix import MatrixCell
    from conformance.ranks.side_by_side import SideBySide
    from conformance.runs.jobs import SharedJobs


NOT_JUDGED = (HarnessFaultError, ArithmeticError, LookupError, ValueError)
"""Errors that judges may raise on a changed step, as no framework makes such a step by itself."""


class Tried(NamedTuple):
    """The result of a finding's job with an edited statement."""

    edit: Edit
    conforms: bool
    moves: bool
    """Whether the wrong weights or the wrong logged number differ from the unchanged run's."""

    logs: int = 0
    """If the finding is of a logged number: how many logged numbers differ in all."""


class ProofTimeOverError(Exception):
    """No time is left to run findings again."""


def _changed_logs(run: OrdinaryRun, outcome: Outcome) -> int:
    """The count of logged numbers that a changed run changes; 0 if the finding is of no log."""
    if run.cell.spec.metric is None or not isinstance(outcome, Ran):
        return 0
    pairs = [*zip(run.observations, outcome.observations, strict=True)]
    names = {name for pair in pairs for one in pair for name in one.logged}
    return sum(
        any(one.logged.get(name) != two.logged.get(name) for one, two in pairs) for name in names
    )


@dataclass
class Trials:
    """Runs jobs as long as time is left, and keeps the unchanged run of each finding."""

    jobs: SharedJobs
    most_edited: int
    """The most edits that are tried for a cause. It is 0 for a user's own trainer, whose steps run
    in the user's test, on the layout of that test alone."""

    until: float = math.inf
    """The time, as of `time.monotonic`, at which no further run begins."""

    _ordinary: dict[str, OrdinaryRun | None] = field(default_factory=dict)
    _beside: dict[str, list[MatrixCell]] = field(default_factory=dict)
    _unchanged: dict[str, bool] = field(default_factory=dict)

    def ordinary(self, cell: MatrixCell) -> OrdinaryRun | None:
        """The unchanged run of a finding's job; None if it does not run or logs several steps."""
        if len(cell.case.steps) > 1 and cell.spec.metric is not None:
            return None
        if cell.job_id not in self._ordinary:
            outcome, job = self.run(cell.job), cell.job
            self._ordinary[cell.job_id] = None
            if isinstance(outcome, Ran):
                ran = outcome.observations
                found = OrdinaryRun(cell, self._contexts(job, ran), ran, self.weights(cell, ran))
                self._ordinary[cell.job_id] = found
        kept = self._ordinary[cell.job_id]
        return None if kept is None else replace(kept, cell=cell)

    def _contexts(self, job: Job, ran: Sequence[Observation]) -> tuple[StepContext, ...]:
        """The contexts of a job's steps, as they were cut in a run."""
        steps = range(len(job.steps))
        return tuple(step_context(job, index, ran, self.jobs.description) for index in steps)

    def _is_cut_alike(self, run: OrdinaryRun, ran: Sequence[Observation]) -> bool:
        """Whether a run holds each token on the same ranks and passes as the unchanged run.

        If not, a finding may conform only because the step no longer shows the mistake. Steps that
        lack tokens in the unchanged run are not compared, since a right change may bring the tokens
        back.
        """
        cuts = (
            [one.forward_pass_of_token for one in pair]
            for pair in zip(run.contexts, self._contexts(run.cell.job, ran), strict=True)
            if pair[0].placement is not None
        )
        return all(np.array_equal(*cut) for cut in cuts)  # type: ignore[arg-type]

    def run(self, job: Job) -> Outcome:
        """The outcome of a job.

        Raises:
            ProofTimeOverError: no time is left.
        """
        self._require_time()
        outcome = self.jobs.run(job)
        if isinstance(outcome, Declined) and isinstance(job.replaced, CodeChange):
            self.jobs.run(replace(job, replaced=None))  # fails if the step left ranks spoilt
        return outcome

    def _require_time(self) -> None:
        if time.monotonic() > self.until:
            raise ProofTimeOverError

    def ran(self, run: OrdinaryRun, **changed: Any) -> Ran | None:
        """The outcome of a finding's job with some fields changed; None if it does not run.

        Raises:
            ProofTimeOverError: no time is left.
        """
        ran = self.run(replace(run.cell.job, **changed))
        return ran if isinstance(ran, Ran) else None

    def weights(self, cell: MatrixCell, observations: Sequence[Observation]) -> NDArray[np.float64]:
        """The weights of the tokens of all steps: [ranks, tokens]."""
        conventions, job = self.jobs.description.conventions, cell.job
        of_steps = (
            np.array(final_weights(observations, index, job, conventions))
            for index in range(len(job.steps))
        )
        return np.concatenate([*of_steps], axis=1)

    def conforms(self, run: OrdinaryRun, replaced: Replacement | CodeChange) -> bool:
        """Whether a finding conforms with another value at a line, or with other code.

        Raises:
            ProofTimeOverError: no time is left.
        """
        return self._is_right(run, self.run(replace(run.cell.job, replaced=replaced)))

    def conforming(
        self, run: OrdinaryRun, edits: Iterable[Edit], ranks: SideBySide | OneByOne
    ) -> Iterator[Tried]:
        """Yield edits in their order, each with what it does to a finding.

        Other findings of the job that conform in the unchanged run must also conform. This is not
        required of other values at a line: the right count for one finding may be wrong in the
        line's other uses.

        Raises:
            ProofTimeOverError: no time is left.
        """
        begun: deque[Edit] = deque()

        def jobs() -> Iterator[Job]:
            for edit in edits:
                self._require_time()
                begun.append(edit)
                yield replace(run.cell.job, replaced=edit)

        for outcome in ranks.outcomes(jobs()):
            is_right = self._is_right(run, outcome) and self._keeps_others(run, outcome)
            moves = is_right or self._moves(run, outcome)
            yield Tried(begun.popleft(), is_right, moves, _changed_logs(run, outcome))

    def _moves(self, run: OrdinaryRun, outcome: Outcome) -> bool:
        """Whether a changed run has another weight or, for a finding on a log, another number."""
        if not isinstance(outcome, Ran):
            return False
        metric = run.cell.spec.metric
        if metric is None:
            return not np.array_equal(self.weights(run.cell, outcome.observations), run.observed)
        pairs = zip(outcome.observations, run.observations, strict=True)
        return any(one.reported.get(metric) != other.reported.get(metric) for one, other in pairs)

    def _is_right(self, run: OrdinaryRun, outcome: Outcome) -> bool:
        """Whether a changed run of a finding's job conforms and is cut like the unchanged run."""
        if not isinstance(outcome, Ran):
            return False
        cell, ran = run.cell, outcome.observations
        try:
            weights = self.weights(cell, ran)
            if not (np.isfinite(weights).all() and self._is_cut_alike(run, ran)):
                return False
            if cell.spec.metric is None and np.array_equal(weights, run.observed):
                return self._conforms_unchanged(run)
            if is_plainly_wrong(cell, self.jobs.trained(cell.job, outcome)):
                return False
            return self._judges_right(cell, outcome)
        except NOT_JUDGED:
            return False

    def _keeps_others(self, run: OrdinaryRun, outcome: Outcome) -> bool:
        try:
            others = self._conforming_beside(run)
            return all(self._judges_right(one, outcome) for one in others)
        except NOT_JUDGED:
            return False

    def _conforms_unchanged(self, run: OrdinaryRun) -> bool:
        """Whether a finding conforms without any change, judged once."""
        if run.cell.id not in self._unchanged:
            ordinary = Ran(run.observations)
            self._unchanged[run.cell.id] = self._judges_right(run.cell, ordinary)
        return self._unchanged[run.cell.id]

    def runs_of_other_cases(self, runs: Sequence[OrdinaryRun]) -> Iterator[OrdinaryRun]:
        """Yield runs of the first run's finding in other cases, those of its check first.

        Raises:
            ProofTimeOverError: no time is left.
        """
        cell, known = runs[0].cell, [run.cell.case for run in runs]
        others = (case for case in dict.fromkeys((*cell.spec.cases, *CORPUS)) if case not in known)
        yield from filter(None, (self.ordinary(replace(cell, case=case)) for case in others))

    def wrong_alone(self, cell: MatrixCell) -> OrdinaryRun | None:
        """The unchanged run of a finding on one rank in one micro-batch, if it is wrong there.

        Raises:
            ProofTimeOverError: no time is left.
        """
        layouts = self.jobs.layouts if self.most_edited else ()
        alone = (one for one in layouts if one.world_size == one.micro_batches == 1)
        ran = filter(None, (self.ordinary(replace(cell, layout=layout)) for layout in alone))
        return next((one for one in ran if not self._conforms_unchanged(one)), None)

    def right_elsewhere(self, run: OrdinaryRun) -> Iterator[OrdinaryRun]:
        """Yield conforming runs of other losses and estimators, one of each check in turn.

        Raises:
            ProofTimeOverError: no time is left.
        """
        cell = run.cell
        of_checks: dict[Check, list[CheckSpec]] = defaultdict(list)
        for spec in (one for one in CHECK_SPECS if one.is_of_gradient):
            of_checks[spec.check].append(spec)
        for spec in filter(None, chain.from_iterable(zip_longest(*of_checks.values()))):
            case = cell.case if spec.takes(cell.case) else spec.cases[0]
            other = replace(cell, spec=spec, case=case)
            is_run = other.job_id != cell.job_id and is_offered(other, self.jobs.description)
            ran = self.ordinary(other) if is_run else None
            if ran is not None and self._conforms_unchanged(ran):
                yield ran

    def _conforming_beside(self, run: OrdinaryRun) -> list[MatrixCell]:
        """Other findings of an unchanged run's job that conform, such as its logged numbers."""
        cell, ordinary = run.cell, Ran(run.observations)
        if cell.id not in self._beside:
            same = (replace(cell, spec=spec) for spec in CHECK_SPECS)
            others = (one for one in same if one.job_id == cell.job_id and one.id != cell.id)
            offered = [one for one in others if is_offered(one, self.jobs.description)]
            self._beside[cell.id] = [one for one in offered if self._judges_right(one, ordinary)]
        return self._beside[cell.id]

    def _judges_right(self, cell: MatrixCell, outcome: Outcome) -> bool:
        judged = judge_outcome(cell, outcome, self.jobs)
        return judged.verdict in (Verdict.CONFORMS, Verdict.ADVICE)

    def right_in_other_modes(self, cell: MatrixCell) -> Iterator[OrdinaryRun]:
        """Yield the conforming runs of a finding's job in the framework's other modes."""
        others = {cell.aggregation.mode, Mode.CONSTANT}
        for mode in sorted(self.jobs.description.modes - others):
            of_mode = replace(cell, aggregation=Aggregation(mode))
            is_run = is_offered(of_mode, self.jobs.description)
            run = self.ordinary(of_mode) if is_run else None
            if run is not None:
                judged = judge_outcome(of_mode, Ran(run.observations, (), ()), self.jobs)
                if judged.verdict is Verdict.CONFORMS:
                    yield run


@dataclass(frozen=True)
class OneByOne:
    """Runs jobs on the ranks of a run, for a few edits; other ranks would take long to start."""

    trials: Trials

    def outcomes(self, jobs: Iterable[Job]) -> Iterator[Outcome]:
        """Yield the outcomes of jobs in their order.

        Raises:
            ProofTimeOverError: no time is left.
        """
        return map(self.trials.run, jobs)
