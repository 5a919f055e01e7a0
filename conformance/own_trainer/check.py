"""The check of one trainer: a generator of steps, which the user's loop trains.

Judges and traces ask for jobs as they ask a pool of ranks. Here the user's loop runs the jobs, and
it cannot be called. So an exception stops a judge that asks for a job that has not run yet. The
loop then runs the job, and the judge starts again, with the outcomes of all earlier jobs.
"""

from __future__ import annotations

import sys
import traceback
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar, cast

from adapters.contract.batch.altered import painting
from adapters.contract.batch.probed_batch import ProbedBatch
from conformance.explain.causes import causes
from conformance.findings.cause import Severity
from conformance.findings.errors import RankFailedError, WrongUseError
from conformance.own_trainer.divisors import put_divisor_first
from conformance.own_trainer.jobs import METRIC_SPECS, TELLING, Asked, asked
from conformance.own_trainer.misuse import clipped, misuse
from conformance.own_trainer.model import SCALE
from conformance.own_trainer.outcome import LEFT_EARLY, Outcome, WrongLossError
from conformance.own_trainer.step import Step, observation
from conformance.own_trainer.worlds import Copies, Launched, launched
from conformance.ranks.pool import Ran
from conformance.ranks.recording.recorder import Recorder
from conformance.ranks.recording.replacing import replacing_mode
from conformance.ranks.recording.stacks import LIBRARIES
from conformance.runs.check import make
from conformance.runs.jobs import SharedJobs
from conformance.tracing import tracer
from conformance.tracing.proof import Prover
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
    from conformance.tracing.suspects.reasons import Suspect

_Made = TypeVar("_Made")


class _Answer(NamedTuple):
    """The outcome of a job on one rank."""

    shown: list[Shown]
    trace: RankTrace | None
    held: tuple[tuple[float, ...], ...]


MOST_TRACED = 6
"""The largest number of causes that are traced."""

ROUNDED = "float16"
"""The dtype whose error bound weights must keep if the trainer computes advantages itself: it
rounds them, and their divisor has an ε of the trainer's choice."""

MOST_EDITED = 0
"""The number of edits of statements to try: none, as an edit that raises would end the loop."""

PROOF_BROKE = "the trainer is wrong, as the first rank says"
"""The message of a rank whose step failed while a proof replaced values; only the first rank
reports the mistake itself."""

RUNNERS = frozenset({"pytest", "_pytest", "pluggy", "xdist", "execnet", "IPython", "ipykernel"})
"""Packages of programs that run the user's code."""


def remove_scale(trace: Trace) -> Trace:
    """Remove the stand-in model's factor from a trace; reading the gradient divides it out."""
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
    """The outcomes of jobs that the loop has run, with the methods of a pool that judges call."""

    description: Description
    outcomes: dict[Job, Ran] = field(default_factory=dict)
    is_running = False

    def run(self, job: Job) -> Ran:
        """The outcome of a job that the loop has run."""
        if job not in self.outcomes:
            raise _JobWanted(job)
        return self.outcomes[job]


class OwnTrainerCheck:
    """Yields the steps of a check, and has the outcome once the loop has ended.

    ``root`` is the folder whose lines are suspected first, and ``time_limit`` the seconds that a
    rank may wait for another.
    """

    def __init__(self, asked: Asked, root: Path, time_limit: float = 60.0) -> None:
        self.outcome: Outcome | None = None
        self.is_first_rank = True
        self.is_unfinished = True
        """Whether the loop has ended neither with an outcome nor with an error."""

        self._asked, self._root, self._time_limit = asked, root, time_limit
        self._ranks: Copies | Launched | None = None
        self._unit: AdvantageUnit | None = None
        self._is_proving = False
        self._around: set[tuple[str, str]] = set()
        """The functions that called the loop, by file and name."""

        self._loop = _LoopRanks(asked.description(AdvantageUnit.TOKEN, "float32"))

    def steps(self) -> Iterator[Step]:
        """Yield the steps to train.

        Raises:
            WrongLossError: the trainer does not weigh tokens as its mode says.
            WrongUseError: a step was not used as documented.
        """
        self._around = {(one.filename, one.name) for one in traceback.extract_stack()}
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
        """End the loop on all ranks; returns the message on what is wrong."""
        self.is_unfinished = False
        ranks, self._ranks = self._ranks, None
        assert ranks is not None
        ranks.close(words)
        return words or ranks.words

    def leave(self, error: BaseException | None) -> BaseException | None:
        """End the check after the loop was left, perhaps by an error; returns the error to raise.

        In a process that was forked for another rank, this method does not return.
        """
        ranks, self._ranks = self._ranks, None
        if ranks is None:
            return error
        shown = ranks.leave(error)
        ranks.drop()
        if isinstance(error, Exception) and self._is_proving:
            self.is_unfinished = False
            return WrongLossError(str(self.outcome or PROOF_BROKE))
        return shown

    def _all(self) -> Generator[Step, None, None]:
        cells = self._asked.cells()
        findings: list[Finding] = []
        clues: list[Clues] = []
        for cell in cells:
            yield from self._run(cell.job)
            self._require_use(cell.job)
        ran = ((cell.job, self._loop.outcomes[cell.job].observations) for cell in cells)
        if (words := clipped(ran, self._loop.description)) is not None:
            raise WrongUseError(words)
        for cell in self._add_metrics(cells):
            judgement = yield from self._answered(partial(self._judged, cell))
            finding = judgement.finding(cell.id, cell.depth)
            if judgement.clues is not None:
                finding = finding.model_copy(update={"clues": len(clues)})
                clues.append(judgement.clues)
            findings.append(finding)
        found = causes(findings, clues, {})
        traced = yield from self._traces(found, {cell.id: cell for cell in cells})
        outcome_for = partial(Outcome.of, tuple(cells), findings, found)
        self.outcome = outcome_for([trace for trace, _ in traced])
        for worst, of_cause in traced[:1]:
            with suppress(RankFailedError):  # a replaced value may break a step
                proven = yield from self._answered(partial(self._proven, worst, of_cause))
                others = [trace for trace, _ in traced[1:]]
                self.outcome = outcome_for([replace(worst, suspects=proven), *others])

    def _add_metrics(self, cells: list[MatrixCell]) -> Iterator[MatrixCell]:
        yield from cells
        for cell in cells:
            reported = self._loop.outcomes[cell.job].observations[0].reported
            for metric, spec in METRIC_SPECS.items():
                if metric in reported:
                    yield replace(cell, spec=spec)

    def _traces(
        self, found: list[Cause], cells: dict[str, MatrixCell]
    ) -> Generator[Step, None, list[tuple[Trace, list[MatrixCell]]]]:
        """Traces of the smallest step of each cause of wrong gradients, with the cause's cells.

        The worst cause comes first.
        """
        traces: list[tuple[Trace, list[MatrixCell]]] = []
        # If the trainer computes advantages, a single token cannot be given one.
        if self._asked.advantages is not None:
            return traces
        for cause in (one for one in found if one.severity is Severity.GRADIENT):
            of_cause = [cells[one] for one in cause.findings if one in cells]
            for cell in of_cause if len(traces) < MOST_TRACED else ():
                traced = yield from self._answered(partial(tracer.trace, cell.job, self._as_pool))
                if isinstance(traced, TracedJob):
                    trace = Trace.of(cell.id, traced, self._package, self._root)
                    others = [one for one in of_cause if one is not cell]
                    trace = put_divisor_first(remove_scale(trace), self._package)
                    ordered = sorted(trace.suspects, key=self._is_around)
                    traces.append((replace(trace, suspects=ordered), [cell, *others]))
                    break
        return traces

    def _proven(self, trace: Trace, cells: Sequence[MatrixCell]) -> list[Suspect]:
        """The suspects of a trace, proven ones first."""
        return Prover(SharedJobs(self._as_pool), MOST_EDITED).proven(trace, cells)

    def _is_around(self, one: Suspect) -> bool:
        """Whether a line belongs to the user's test around the loop, and not to the trainer."""
        return (one.line.file, one.line.function) in self._around

    @property
    def _package(self) -> str:
        """The folder whose lines are the user's own."""
        return str(self._root).strip("/")

    def _judged(self, cell: MatrixCell) -> Judgement:
        return make(cell, SharedJobs(self._as_pool, [cell]))

    @property
    def _as_pool(self) -> RankPool:
        """The loop, typed as the pool of ranks that judges expect."""
        return cast("RankPool", self._loop)

    def _answered(self, asks: Callable[[], _Made]) -> Generator[Step, None, _Made]:
        """The return value of ``asks``, after the loop has run all jobs that it needs."""
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
        self._require_use_of(job, [shown for rank in answers for shown in rank.shown])
        with painting(job.painted):
            batch = ProbedBatch.of(job, self._loop.description.conventions)
            observations = tuple(observation(batch, one.shown) for one in answers)
        traces = tuple(one.trace for one in answers if one.trace is not None)
        self._loop.outcomes[job] = Ran(observations, traces, tuple(one.held for one in answers))

    def _serve(self) -> Generator[Step, None, None]:
        """On ranks other than the first: train the jobs that the first rank sends, to the end."""
        ranks = self._ranks
        assert ranks is not None
        while (sent := ranks.next_job()) is not None:
            job, self._unit = sent
            answer = yield from self._train(job)
            ranks.gather(job.layout.dp, answer)

    def _train(self, job: Job) -> Generator[Step, None, _Answer]:
        """Hand this rank's part of a job's steps to the loop."""
        assert self._ranks is not None
        rank, shown = self._ranks.rank, []
        recorder = Recorder(self._passes_by) if job.is_recorded else None
        replacing = replacing_mode(job.replaced, rank, self._passes_by) if job.replaced else None
        self._is_proving = replacing is not None
        with nullcontext() if recorder is None else recorder:
            for index in range(len(job.steps)):
                unit = self._unit or AdvantageUnit.TOKEN
                watched = replacing or nullcontext()
                step = Step(job, index, rank, unit, watched, self._asked.advantages)
                yield step
                shown.append(step.shown())
        return _Answer(
            shown=shown,
            trace=None if recorder is None else recorder.trace,
            held=() if replacing is None else tuple(replacing.held),
        )

    def _require_use_of(self, job: Job, shown: list[Shown]) -> None:
        """Require all ranks to have used their steps as documented.

        Raises:
            WrongUseError: a rank has not.
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
        dtype = shown[0].dtype if self._asked.advantages is None else ROUNDED
        self._loop.description = self._asked.description(unit, dtype)

    def _require_use(self, job: Job) -> None:
        """Require a job's gradients to show that the given samples and advantages were used.

        Raises:
            WrongUseError: they were not used.
        """
        observations = self._loop.outcomes[job].observations
        words = misuse(job, observations, self._loop.description, self._asked.advantages)
        if words is not None:
            raise WrongUseError(words)

    @cached_property
    def _passes_by(self) -> Callable[[str], bool]:
        """Returns a function that says whether the frames of a module are outside the trainer."""
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
    advantages: str | None = None,
) -> Iterator[Steps]:
    """Yields steps to train in a script or notebook; prints the message that would fail a test.

    The arguments are those of the fixture `loss_conformance`. For several data-parallel ranks,
    start the script with torchrun.
    """
    what = asked(mode, divisor, 1, micro_batches, packed, cases, advantages)
    steps = Steps(OwnTrainerCheck(what, Path.cwd(), time_limit))
    try:
        yield steps
    except (WrongLossError, WrongUseError) as error:
        steps.message = str(error)
        steps.check.leave(error)
    except BaseException as error:
        shown = steps.check.leave(error)
        if not isinstance(shown, WrongLossError):
            raise
        steps.message = str(shown)
    if steps.check.is_unfinished:
        steps.message = LEFT_EARLY
        steps.check.leave(None)
    if steps.check.is_first_rank:
        print(steps.message or steps.check.outcome)


@dataclass
class Steps:
    """The steps of a check, to iterate over once."""

    check: OwnTrainerCheck
    message: str = ""
    """The message that names each mismatch; empty if the trainer is right."""

    def __iter__(self) -> Iterator[Step]:
        return self.check.steps()

    @property
    def is_wrong(self) -> bool:
        """Whether the trainer is wrong, or did not train all steps."""
        return bool(self.message)
