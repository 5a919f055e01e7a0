"""Runs mutants over the corpus and reports which cases kill them, and with which diagnosis."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from adapters.contract import Depth, Layout, LogEntry, Rank
from adapters.native.adapter import NativeAdapter
from conformance.corpus.configurations import LOG_CASES, LOG_ENTRIES
from conformance.findings.report import PlanSize
from conformance.findings.verdict import Verdict
from conformance.judging.laws import judge_attached, judge_same
from conformance.judging.outcome import judge
from conformance.judging.startup import judge_log, judge_startup
from conformance.judging.weights import Judgement, Trained
from conformance.plan.checks import CheckSpec
from conformance.plan.matrix import MatrixCell
from conformance.plan.plan import Plan
from conformance.ranks.hardware import ON_CPU
from conformance.ranks.log_process import LogRequest, Logs
from conformance.ranks.pool import Ran, RankPool
from conformance.runs.jobs import SharedJobs
from reference.aggregation import Mode
from tests.declaring import assumed
from tests.mutants import one_process
from tests.mutants.logging import LogMutant
from tests.mutants.mutant import LARGEST, Mutant, MutantJob
from tests.mutants.one_process import OneProcess
from tests.mutants.startup import StartupMutant


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A check's verdict on a mutant in one case, mode and layout."""

    case: str
    mode: Mode
    layout: Layout
    judgement: Judgement

    @property
    def is_kill(self) -> bool:
        return self.judgement.verdict is Verdict.MISMATCH

    def names(self, diagnosis: str) -> bool:
        """Whether the mistake is among the names of the finding: its diagnosis or its clues.

        Clues include names that the mistake has on other layouts, where more sizes are distinct.
        """
        clues = self.judgement.clues
        explanations = clues.explanations if clues else []
        consistent = [
            name.partition("/")[2] for parts in explanations for part in parts for name in part
        ]
        return any(_is(diagnosis, names) for names in [*self.named, consistent])

    def names_first(self, diagnosis: str) -> bool:
        """Whether the mistake is the finding's diagnosis."""
        return _is(diagnosis, self.named[0])

    @property
    def named(self) -> list[list[str]]:
        """The mistakes that explain the finding, its diagnosis first, each with all its names.

        Equal sizes share one name, such as ``divided_by_dp_or_cp``.
        """
        diagnosis = self.judgement.diagnosis
        names = [diagnosis.name, *diagnosis.also] if diagnosis else []
        return [_alternatives(name) for name in names]


def all_cells(cells: Sequence[MatrixCell]) -> Sequence[MatrixCell]:
    """All of the cells."""
    return cells


def trials(
    mutant: type[Mutant],
    pool: RankPool,
    choice: Callable[[Sequence[MatrixCell]], Sequence[MatrixCell]] = all_cells,
) -> Iterator[Trial]:
    """The trials of a mutant in those of its cells that ``choice`` selects, by default in all."""
    if issubclass(mutant, StartupMutant):
        return _startup_trials(mutant, pool)
    if issubclass(mutant, LogMutant):
        return _log_trials(mutant)
    cells = choice(cells_of(mutant.spec, mutant))
    if one_process.is_seen(mutant):
        return trials_on(cells, mutant, OneProcess(), Depth.LOSS)
    return trials_on(cells, mutant, pool)


def cells_of(spec: CheckSpec, mutant: type[Mutant]) -> list[MatrixCell]:
    """The quick plan's cells for a check, in the mutant's modes and corpus."""
    if mutant.case is not None:
        return [
            MatrixCell(
                aggregation=mutant.case.aggregation(mode),
                case=mutant.case,
                layout=Layout(format="thd"),  # packed, as padded rows would not fit the memory
                depth=Depth.STEP,
                spec=spec,
            )
            for mode in mutant.modes
        ]
    return [
        cell
        for cell in _quick_plan(tuple(mutant.further_layouts))
        if cell.spec == spec and cell.aggregation.mode in mutant.modes
        if cell.case in mutant.corpus
    ]


@cache
def _quick_plan(further_layouts: tuple[Layout, ...]) -> list[MatrixCell]:
    layouts = (one for one in NativeAdapter().layouts() if one.world_size <= LARGEST)
    plan = Plan(layouts=(*layouts, *further_layouts), size=PlanSize.QUICK)
    return [cell for cell in plan.cells() if type(cell) is MatrixCell]


def trials_on(
    cells: Sequence[MatrixCell],
    mutant: type[Mutant],
    pool: RankPool | OneProcess,
    depth: Depth = Depth.STEP,
) -> Iterator[Trial]:
    """The trials of a mutant in these cells."""
    description = replace(pool.description, declared=assumed(mutant.conventions))
    for cell in cells:
        job = MutantJob(**{**vars(cell.job), "depth": depth}, mutant=mutant)
        outcome = pool.run(job)
        assert isinstance(outcome, Ran), outcome
        if job.attached:
            judgement = judge_attached(job, outcome, description)
        elif cell.spec.law:
            judgement = judge_same(cell.spec, job, outcome, SharedJobs(pool))
        else:
            judgement = judge(cell.spec)(Trained(job, outcome.observations, description))
        yield Trial(
            case=cell.case.name, mode=cell.aggregation.mode, layout=cell.layout, judgement=judgement
        )


def _startup_trials(mutant: type[StartupMutant], pool: RankPool) -> Iterator[Trial]:
    """A trial of each configuration of a mutant, in each of its modes."""
    layout = mutant.layout
    for config_case in mutant.config_cases:
        if not config_case.fits(layout) or not config_case.applies(mutant.conventions):
            continue
        for mode in config_case.modes:
            job = MutantJob(
                steps=config_case.given.steps,
                aggregation=config_case.given.aggregation(mode),
                layout=layout,
                depth=Depth.STEP,
                configuration=config_case.configuration,
                mutant=mutant,
            )
            judgement = judge_startup(config_case, job, SharedJobs(pool))
            yield Trial(case=config_case.name, mode=mode, layout=layout, judgement=judgement)


def _log_trials(mutant: type[LogMutant]) -> Iterator[Trial]:
    """A trial of each log of the corpus, with asserts and without."""
    request = LogRequest(
        adapter=LogMutantAdapter(mutant), source=None, hardware=ON_CPU, cases=LOG_ENTRIES
    )
    with Logs(request) as logs:
        judgements = [(case, judge_log(case, *logs.of(case.name))) for case in LOG_CASES]
    for case, judgement in judgements:
        yield Trial(case=case.name, mode=case.mode, layout=Layout(), judgement=judgement)


class LogMutantAdapter(NativeAdapter):
    """`native`, which logs as a mutant does."""

    def __init__(self, mutant: type[LogMutant]) -> None:
        self._mutant = mutant

    def aggregate(self, entries: Sequence[LogEntry], rank: Rank) -> Mapping[str, float]:
        """The log that the mutant makes of the entries."""
        return self._mutant.aggregate(entries)


def _alternatives(name: str) -> list[str]:
    verb, by, sizes = name.partition("_by_")
    return [f"{verb}{by}{size}" for size in sizes.split("_or_")] if by else [name]


def _is(diagnosis: str, names: list[str]) -> bool:
    return any(name.startswith(diagnosis) for name in names)
