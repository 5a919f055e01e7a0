"""The check of one trainer: a generator of steps, which the user's loop trains.

Judges and traces ask for jobs as they do of a pool of ranks. Here a job's ranks are the user's
loop, which cannot be called: so a judge that asks for a job which has not been run is stopped, the
loop runs it, and the judge begins anew, with all that was run before at hand.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

from adapters.contract.batch.altered import painting
from adapters.contract.batch.probed_batch import ProbedBatch
from conformance.explain.causes import causes
from conformance.findings.cause import Severity
from conformance.findings.errors import RankFailedError, WrongUseError
from conformance.own_trainer.jobs import METRIC_SPECS, TELLING, Asked, asked
from conformance.own_trainer.misuse import misuse
from conformance.own_trainer.model import SCALE
from conformance.own_trainer.outcome import LEFT_EARLY, Outcome, WrongLossError
from conformance.own_trainer.step import Step, observation
from conformance.own_trainer.worlds import Copies, Launched, launched
from conformance.ranks.pool import Ran
from conformance.ranks.recording.recorder import Recorder
from conformance.ranks.recording.stacks import LIBRARIES
from conformance.runs.check import make
from conformance.runs.jobs import SharedJobs
from conformance.tracing import tracer
from conformance.tracing.trace import Trace
from conformance.tracing.traced import TracedJob
from reference.aggregation import AdvantageUnit

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    from adapters.contract import Description, Job
    from conformance.findings.cause import Cause, Clues
    from conformance.findings.finding import Finding
    from conformance.findings.trace import RankTrace
    from conformance.judging.weights import Judgement
    from conformance.own_trainer.step import Shown
    from conformance.plan.matrix import MatrixCell
    from conformance.ranks.pool import RankPool

_Made = TypeVar("_Made")
_Answer = tuple[list["Shown"], "RankTrace | None"]

RUNNERS = frozenset({"pytest", "_pytest", "pluggy", "xdist", "execnet", "IPython", "ipykernel"})
"""Packages below the user's frames."""


def without_scale(trace: Trace) -> Trace:
    """The trace without the factor of the stand-in model, which reading its gradient undoes."""
    if trace.chain is None:
        return trace
    kept = [one for one in trace.chain.factors if one.value not in (SCALE, 1 / SCALE)]
    return replace(trace, chain=replace(trace.chain, factors=tuple(kept)))


class _JobWanted(BaseException):
    """A judge asked for a job that the loop has not run yet. No judge may catch it."""

    def __init__(self, job: Job) -> None:
        self.job = job


@dataclass
class _LoopRanks:
    """What the loop has run, with the methods of a pool of ranks that judges and traces use."""

    description: Description
    outcomes: dict[Job, Ran] = field(default_factory=dict)
    is_running = False

    def run(self, job: Job) -> Ran:
        """The outcome of a job that the loop has run."""
        if job not in self.outcomes:
            raise _JobWanted(job)
        return self.outcomes[job]


class OwnTrainerCheck:
    """Yields the steps of a check, and knows its outcome when the loop has come to its end.

    ``root`` is the folder whose lines are suspected first, and ``time_limit`` the seconds that a
    rank may wait for another.
    """

    def __init__(self, asked: Asked, root: Path, time_limit: float = 60.0) -> None:
        self.outcome: Outcome | None = None
        self.is_first_rank = True
        self.is_unfinished = False
        """Whether the loop has begun, and was not told the outcome, or what to change."""

        self._asked, self._root, self._time_limit = asked, root, time_limit
        self._ranks: Copies | Launched | None = None
        self._unit: AdvantageUnit | None = None
        self._loop = _LoopRanks(asked.description(AdvantageUnit.TOKEN, "float32"))

    def steps(self) -> Iterator[Step]:
        """Yield the steps to train.

        Raises:
            WrongLossError: the trainer does not weigh tokens as its mode says.
            WrongUseError: a step was not used as it has to be.
        """
        self.is_unfinished = True
        if (size := launched()) is not None:
            self._asked = replace(self._asked, dp=(size,))
            self._ranks = Launched(size, self._time_limit)
        else:
            self._ranks = Copies(max(self._asked.dp), self._time_limit)
        self.is_first_rank = self._ranks.rank == 0
        try:
            yield from self._all() if self.is_first_rank else self._serve()
        except WrongUseError as error:
            self._end(str(error))
            raise
        except RankFailedError:
            self.is_unfinished = False
            raise
        is_wrong = self.outcome is not None and self.outcome.is_wrong
        if words := self._end(str(self.outcome) if is_wrong else ""):
            raise WrongLossError(words)

    def _end(self, words: str) -> str:
        """End the loop on all ranks; returns the words on what is wrong."""
        self.is_unfinished = False
        ranks, self._ranks = self._ranks, None
        assert ranks is not None
        ranks.close(words)
        return words or ranks.words

    def left(self, error: BaseException | None) -> BaseException | None:
        """The loop was left, perhaps by an exception: returns the one to be shown.

        A copy of the process that was forked for another rank ends here.
        """
        ranks, self._ranks = self._ranks, None
        if ranks is None:
            return error
        shown = ranks.left(error)
        ranks.drop()
        return shown

    def _all(self) -> Generator[Step, None, None]:
        cells = self._asked.cells()
        findings: list[Finding] = []
        clues: list[Clues] = []
        for cell in cells:
            yield from self._run(cell.job)
            self._require_use(cell.job)
        for cell in self._with_metrics(cells):
            judgement = yield from self._answered(partial(self._judged, cell))
            finding = judgement.finding(cell.id, cell.depth)
            if judgement.clues is not None:
                finding = finding.model_copy(update={"clues": len(clues)})
                clues.append(judgement.clues)
            findings.append(finding)
        found = causes(findings, clues, {})
        trace = yield from self._trace(found, cells)
        self.outcome = Outcome(cells=tuple(cells), findings=findings, causes=found, trace=trace)

    def _with_metrics(self, cells: list[MatrixCell]) -> Iterator[MatrixCell]:
        yield from cells
        for cell in cells:
            reported = self._loop.outcomes[cell.job].observations[0].reported
            for metric, spec in METRIC_SPECS.items():
                if metric in reported:
                    yield replace(cell, spec=spec)

    def _trace(
        self, found: list[Cause], cells: list[MatrixCell]
    ) -> Generator[Step, None, Trace | None]:
        """The trace of the worst wrong gradient, at its smallest step."""
        by_id = {cell.id: cell for cell in cells}
        wrong = [one for one in found if one.severity is Severity.GRADIENT]
        for name in (name for cause in wrong for name in cause.findings if name in by_id):
            job = by_id[name].job
            traced = yield from self._answered(partial(tracer.trace, job, self._as_pool))
            if isinstance(traced, TracedJob):
                trace = Trace.of(name, traced, str(self._root).strip("/"), self._root)
                return without_scale(trace)
        return None

    def _judged(self, cell: MatrixCell) -> Judgement:
        return make(cell, SharedJobs(self._as_pool, [cell]))

    @property
    def _as_pool(self) -> RankPool:
        """The loop as what a judge takes it for."""
        return cast("RankPool", self._loop)

    def _answered(self, asks: Callable[[], _Made]) -> Generator[Step, None, _Made]:
        """What a judge says, once the loop has run all that it asks for."""
        while True:
            try:
                return asks()
            except _JobWanted as wanted:
                job = wanted.job
            yield from self._run(job)

    def _run(self, job: Job) -> Generator[Step, None, None]:
        """Have the loop run a job, on all ranks."""
        if job in self._loop.outcomes:
            return
        ranks, dp = self._ranks, job.layout.dp
        assert ranks is not None
        ranks.run(dp, (job, self._unit))
        answer = yield from self._train(job)
        answers: list[_Answer] = ranks.gather(dp, answer)
        self._require_use_of(job, [shown for rank in answers for shown in rank[0]])
        with painting(job.painted):
            batch = ProbedBatch.of(job, self._loop.description.conventions)
            observations = tuple(observation(batch, shown) for shown, _ in answers)
        traces = tuple(trace for _, trace in answers if trace is not None)
        self._loop.outcomes[job] = Ran(observations, traces)

    def _serve(self) -> Generator[Step, None, None]:
        """On another rank than the first: train what that one says, until it ends."""
        ranks = self._ranks
        assert ranks is not None
        while (told := ranks.told()) is not None:
            job, self._unit = told
            answer = yield from self._train(job)
            ranks.gather(job.layout.dp, answer)

    def _train(self, job: Job) -> Generator[Step, None, _Answer]:
        """Hand this rank's part of a job's steps to the loop."""
        assert self._ranks is not None
        recorder = Recorder(self._passes_by) if job.is_recorded else None
        shown = []
        with ExitStack() as stack:
            if recorder is not None:
                stack.enter_context(recorder)
            for index in range(len(job.steps)):
                step = Step(job, index, self._ranks.rank, self._unit or AdvantageUnit.TOKEN)
                yield step
                shown.append(step.shown())
        return shown, recorder.trace if recorder is not None else None

    def _require_use_of(self, job: Job, shown: list[Shown]) -> None:
        """Require all ranks to have used their steps as they have to.

        Raises:
            WrongUseError: one has not.
        """
        for one in shown:
            if one.misuse is not None:
                raise WrongUseError(one.misuse)
        units = {one.unit for one in shown}
        if len(units | ({self._unit} - {None})) > 1:
            raise WrongUseError(
                "advantages are per token in one step and per sample in another",
                "use step.advantages(per=…) in one way",
            )
        [unit] = units
        self._unit = unit
        self._loop.description = self._asked.description(unit, shown[0].dtype)

    def _require_use(self, job: Job) -> None:
        """Require a job to show that what it was given was used.

        Raises:
            WrongUseError: it was not.
        """
        observations = self._loop.outcomes[job].observations
        words = misuse(job, observations, self._loop.description)
        if words is not None:
            raise WrongUseError(words)

    @cached_property
    def _passes_by(self) -> Callable[[str], bool]:
        """Whether frames of a module are none of the trainer's."""
        passed = LIBRARIES | RUNNERS | {"adapters", "conformance"}
        passed |= {"__main__"} if "_pytest" in sys.modules else set()
        return lambda module: module.partition(".")[0] in passed


@contextmanager
def check(
    *,
    mode: str,
    divisor: float | None = None,
    micro_batches: int | Sequence[int] = (1, 2, 4),
    packed: bool = False,
    cases: Sequence[str] = TELLING,
    time_limit: float = 60.0,
) -> Iterator[Steps]:
    """Yields steps to train in a script or a notebook, and prints what a failing test would.

    The arguments are those of the fixture `loss_conformance`. Several data-parallel ranks are those
    that torchrun started.
    """
    what = asked(mode, divisor, 1, micro_batches, packed, cases)
    steps = Steps(OwnTrainerCheck(what, Path.cwd(), time_limit))
    try:
        yield steps
    except (WrongLossError, WrongUseError) as error:
        steps.told = str(error)
        steps.check.left(error)
    except BaseException as error:
        steps.check.left(error)
        raise
    if steps.check.is_unfinished:
        steps.told = LEFT_EARLY
        steps.check.left(None)
    if steps.check.is_first_rank:
        print(steps.told or steps.check.outcome)


@dataclass
class Steps:
    """The steps of a check, to be gone through once."""

    check: OwnTrainerCheck
    told: str = ""
    """What is wrong."""

    def __iter__(self) -> Iterator[Step]:
        return self.check.steps()

    @property
    def is_wrong(self) -> bool:
        """Whether the trainer is wrong, or was not given its steps."""
        return bool(self.told)
