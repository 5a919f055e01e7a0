"""Traces a finding, given its id, and the causes that a run has found."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from adapters.contract.objective import COMPARING_ADVANTAGES, FROM_REWARDS
from conformance.explain.causes import is_inferred
from conformance.findings.cause import CauseTrace, Severity
from conformance.findings.errors import NotTracedError, StartError
from conformance.findings.finding import FindingId
from conformance.findings.report import PlanSize
from conformance.findings.verdict import Check
from conformance.judging.laws import changed_by_law
from conformance.plan.matrix import MatrixCell
from conformance.ranks.hardware import MAX_RANKS, RankBudget
from conformance.ranks.pool import Ran, RankPool
from conformance.runs.settings import Settings
from conformance.tracing import file, tracer
from conformance.tracing.columns import is_traced, traced_metric
from conformance.tracing.rewards import is_clearly_wrong, trace_advantage
from conformance.tracing.suspects.numbers import lines_of
from conformance.tracing.trace import Trace, suspected
from conformance.tracing.traced import Token, TracedJob, first_masked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from adapters.contract import Job
    from adapters.contract.objective import Metric
    from conformance.findings.cause import Cause
    from conformance.plan.matrix import AnyMatrixCell
    from conformance.ranks.messages import Declined
    from conformance.ranks.pool import Crashed
    from conformance.runs.jobs import SharedJobs
    from conformance.tracing.proof import Prover


TRACED = (Severity.GRADIENT, Severity.LOGGED)
"""The severities of causes that are traced at the end of a run."""

MOST_OF_A_CAUSE = 6
"""The most findings of a cause that are traced."""


MOST_OF_ADVANTAGES = 2
"""The most findings of wrong advantages that are traced; each trace runs the job several times."""


def trace_finding(
    finding: str,
    *,
    adapter: str | None,
    engine: str | None,
    source: str | None,
    token: tuple[int, int] | None,
    time_limit: float,
    modes: str | None = None,
) -> Trace:
    """Run the job of a finding and trace one of its tokens.

    Raises:
        ConformanceError: an option is wrong, or the finding cannot be traced.
    """
    if adapter is None:
        raise NotTracedError(
            f"nothing says whose {finding} is", "name the framework with --adapter"
        )
    settings = _settings(_parsed(finding), adapter, engine, source, time_limit, modes)
    cell = next((one for one in settings.plan.cells() if one.id == finding), None)
    if cell is None:
        raise NotTracedError(
            f"there is no finding {finding!r}", "name one as a report or pytest's output has it"
        )
    return _traced(_traceable(cell), settings, token)


def traces_of_causes(
    causes: Iterable[Cause],
    settings: Settings,
    prover: Prover,
    folder: Path | None,
    is_audited: Callable[[Cause], bool],
) -> Iterator[tuple[str, CauseTrace]]:
    """Yield the ids and traces of findings for causes of wrong gradients or logs, as they are made.

    If a folder is given, the recorded operations are written to it. When all causes are traced,
    lines are proven: first changes of the version, then other lines, but not other lines of audited
    causes, as these are known.

    For each cause, the smallest finding with a suspected line in the framework is traced, gradients
    before logs. For a cause that no known mistake explains, several findings are traced, since each
    may have a cause of its own.
    """
    plan = settings.plan
    cells = {
        cell.id: cell
        for cell in (*plan.cells(), *plan.chosen_of_cases)  # a quick plan lacks some of these
        if isinstance(cell, MatrixCell) and is_traced(cell)
    }
    jobs, several = prover.trials.jobs, [*causes]
    laws = {
        cell.id: cell
        for cell in plan.cells()
        if cell.spec.check is Check.LAWS and isinstance(cell, MatrixCell)
    }
    for cause in several:
        broken = next((laws[name] for name in cause.findings if name in laws), None)
        if broken is not None and cause.severity not in TRACED:
            yield from _of_law(broken, settings, jobs)
    traced: list[tuple[Trace, list[MatrixCell]]] = []
    known: set[str] = set()
    try:
        for cause in (one for one in several if one.severity in TRACED):
            for trace, of_cause in _traces_of_cause(cause, cells, settings, jobs.pool):
                if folder is not None:
                    file.write(trace, folder)
                found = trace.of_cause
                yield of_cause[0].id, found
                traced.append((trace, of_cause))
                if is_audited(cause.model_copy(update=dict(found))):
                    known.add(trace.finding)
        for prove in (prover.changed, prover.proven):
            waiting, traced = traced, []
            for number, (trace, of_cause) in enumerate(waiting, 1):
                if lines := prove(trace, of_cause, others=len(waiting) - number):
                    yield of_cause[0].id, replace(trace, suspects=lines).of_cause
                elif trace.finding not in known:
                    traced.append((trace, of_cause))
    except StartError:  # the framework could not be reloaded after a crash
        return


def _traces_of_cause(
    cause: Cause, cells: Mapping[str, MatrixCell], settings: Settings, pool: RankPool
) -> Iterator[tuple[Trace, list[MatrixCell]]]:
    """Yield the most telling traces of a cause, each with all findings, the traced one first.

    Raises:
        StartError: the framework could not be loaded again.
    """
    of_cause = sorted(
        (cells[name] for name in cause.findings if name in cells),
        key=lambda cell: (
            cell.spec.metric is not None,
            cell.spec.objective in COMPARING_ADVANTAGES,  # token selection may be wrong as well
        ),
    )
    are_computed = any(cell.spec.check is Check.ADVANTAGES for cell in of_cause[:1])
    tried = of_cause[: MOST_OF_ADVANTAGES if are_computed else MOST_OF_A_CAUSE]
    traces = _traces(tried, settings, pool)
    chosen = [*traces] if is_inferred(cause) else _most_telling(traces, settings, are_computed)
    for cell, trace in chosen:
        yield trace, [cell, *(one for one in of_cause if one is not cell)]


def _of_law(
    cell: MatrixCell, settings: Settings, jobs: SharedJobs
) -> Iterator[tuple[str, CauseTrace]]:
    """Yield a cell's id and the lines that first compute a number which a law's change alters.

    Only the first such number is looked for.
    """
    after = [value for _, value in changed_by_law(cell, jobs).values()]
    ran = jobs.run(replace(cell.job, is_recorded=True)) if after else None
    if not isinstance(ran, Ran):
        return
    package, source = settings.adapter.package, settings.source.path
    of_ranks = [lines_of(trace, after[:1], package) for trace in ran.traces]
    suspects = next(filter(None, of_ranks), [])
    if suspects:
        yield cell.id, CauseTrace(suspects=suspected(suspects, source))


def _traces(
    cells: Sequence[MatrixCell], settings: Settings, pool: RankPool
) -> Iterator[tuple[MatrixCell, Trace]]:
    """Yield the traces of findings; findings that cannot be traced are left out.

    Raises:
        StartError: the framework could not be loaded again.
    """
    for cell in cells:
        with suppress(NotTracedError):
            yield cell, _of_cell(cell, settings, pool)


def _most_telling(
    traces: Iterable[tuple[MatrixCell, Trace]], settings: Settings, are_computed: bool
) -> list[tuple[MatrixCell, Trace]]:
    """The first trace whose first suspect is a line of the framework, or else the best trace.

    Empty if there is no trace. ``are_computed`` says that the framework computes the advantages.
    """
    package = settings.adapter.package
    tried: list[tuple[MatrixCell, Trace]] = []
    telling: list[tuple[bool, bool]] = []
    for cell, trace in traces:
        of_cause = trace.of_cause
        is_clear = not are_computed or is_clearly_wrong(of_cause.token)
        tried.append((cell, trace))
        telling.append((_tells(of_cause, package), is_clear))
        if all(telling[-1]):
            break
    return [tried[telling.index(max(telling))]] if tried else []


def _tells(trace: CauseTrace, package: str | None) -> bool:
    """Whether a trace's first suspect is a line of the framework, and not of its engine."""
    return bool(trace.suspects) and f"{package or ''}/" in trace.suspects[0].file


def _of_cell(
    cell: MatrixCell, settings: Settings, pool: RankPool, token: Token | None = None
) -> Trace:
    """The trace of a cell's job.

    Raises:
        NotTracedError: the step did not run, or the batch lacks the token.
    """
    job = traced_job(cell.job, pool, token, traced_metric(cell))
    if not isinstance(job, TracedJob):
        raise NotTracedError(f"the step did not run: {job.message.splitlines()[0]}")
    return Trace.of(cell.id, job, settings.adapter.package, settings.source.path)


def traced_job(
    job: Job, pool: RankPool, token: Token | None = None, metric: Metric | None = None
) -> TracedJob | Crashed | Declined:
    """A traced job, for a token's weight, its share in a logged number, or its advantage.

    For a poisoned job, a masked token is traced without poison: the line where its value becomes 0
    is the line that should have removed the poison.

    Raises:
        NotTracedError: the job lacks the token, or has nothing to trace.
    """
    if job.poison is not None:
        token = first_masked(job) if token is None else token
        job = replace(job, poison=None)
    if metric is None and job.objective in FROM_REWARDS:
        return trace_advantage(job, pool, token)
    return tracer.trace(job, pool, token, metric)


def _traced(cell: MatrixCell, settings: Settings, token: tuple[int, int] | None) -> Trace:
    chosen = None if token is None else Token(*token)
    ranks = cell.layout.world_size
    with RankPool(settings.adapter, settings.source.path, ranks, settings.time_limit) as pool:
        return _of_cell(cell, settings, pool, chosen)


def _parsed(finding: str) -> FindingId:
    try:
        return FindingId.parse(finding)
    except ValueError as error:
        raise NotTracedError(f"{finding!r} is no id of a finding: {error}") from error


def _settings(
    finding: FindingId,
    adapter: str,
    engine: str | None,
    source: str | None,
    time_limit: float,
    modes: str | None,
) -> Settings:
    return Settings.of(
        adapter=adapter,
        source=source,
        engine=engine,
        modes=modes,
        checks=finding.check,
        depth="step",
        layouts=[str(finding.layout)],
        plan_size=PlanSize.FULL,
        rank_budget=RankBudget.of(max(MAX_RANKS, finding.layout.world_size)),
        time_limit=time_limit,
        report=Path(),
        examples=0,
        seed="0",
    )


def _traceable(cell: AnyMatrixCell) -> MatrixCell:
    """The cell, if it can be traced.

    Raises:
        NotTracedError: the cell is not a sum over tokens that a painted token could show.
    """
    if not isinstance(cell, MatrixCell) or not is_traced(cell):
        raise NotTracedError(
            f"{cell.id} cannot be traced: a trace follows what a token adds to a sum",
            "trace a finding of weights, losses or logged numbers",
        )
    return cell
