"""Runs mutants over the corpus and says which cases kill them, and what for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from adapters.contract import Depth, Layout
from adapters.native.adapter import NativeAdapter
from conformance.corpus.log_cases import LOG_CASES, LOG_ENTRIES
from conformance.findings.verdict import Verdict
from conformance.judging.logs import judge_log
from conformance.judging.weights import Judgement
from conformance.ranks.log_process import LogProcess
from conformance.ranks.pool import Ran
from conformance.runs.check import judge, judge_startup
from tests.mutants import one_process
from tests.mutants.logging import LogMutant
from tests.mutants.mutant import MutantJob
from tests.mutants.one_process import OneProcess
from tests.mutants.startup import StartupMutant

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from adapters.contract import LogEntry, Rank
    from conformance.corpus.cases import Case
    from conformance.plan.checks import CheckSpec
    from conformance.ranks.pool import RankPool
    from reference.aggregation import Mode
    from tests.mutants.mutant import Mutant


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What a check made of a mutant on one case, mode and layout."""

    case: str
    mode: Mode
    layout: Layout
    judgement: Judgement

    @property
    def is_kill(self) -> bool:
        return self.judgement.verdict is Verdict.MISMATCH

    def names(self, diagnosis: str) -> bool:
        """Whether the mistake is among what the finding says it may be."""
        return any(_is(diagnosis, names) for names in self.named)

    def names_first(self, diagnosis: str) -> bool:
        """Whether it is what the finding is named after."""
        return _is(diagnosis, self.named[0])

    @property
    def named(self) -> list[list[str]]:
        """What the mistake may be, the diagnosis first: names, and those that are told from none.

        Sizes that are alike are in one name, such as ``divided_by_dp_or_cp``.
        """
        diagnosis = self.judgement.diagnosis
        names = [diagnosis.name, *diagnosis.also] if diagnosis else []
        return [_alternatives(name) for name in names]


def trials(mutant: type[Mutant], pool: RankPool) -> Iterator[Trial]:
    """Everything that a mutant is tried on."""
    if issubclass(mutant, StartupMutant):
        return _startup_trials(mutant, pool)
    if issubclass(mutant, LogMutant):
        return _log_trials(mutant)
    if one_process.is_seen(mutant):
        return trials_by(mutant.spec, mutant, OneProcess(), mutant.cases, Depth.LOSS)
    return trials_by(mutant.spec, mutant, pool, mutant.cases)


def trials_by(
    spec: CheckSpec,
    mutant: type[Mutant],
    pool: RankPool | OneProcess,
    cases: Sequence[Case],
    depth: Depth = Depth.STEP,
) -> Iterator[Trial]:
    """Every case in the mutant's modes and on its layouts, as a check sees it."""
    description = replace(pool.description, conventions=mutant.conventions)
    for layout in mutant.layouts:
        for case in cases:
            if not case.runs_on(layout):
                continue
            for mode in mutant.modes:
                job = MutantJob(
                    steps=case.steps,
                    aggregation=case.aggregation(mode),
                    layout=layout,
                    depth=depth,
                    objective=spec.objective,
                    mutant=mutant,
                )
                outcome = pool.run(job)
                assert isinstance(outcome, Ran), outcome
                judgement = judge(spec)(job, outcome.observations, description)
                assert judgement is not None
                yield Trial(case=case.name, mode=mode, layout=layout, judgement=judgement)


def _startup_trials(mutant: type[StartupMutant], pool: RankPool) -> Iterator[Trial]:
    """Every configuration, in every mode that it is about."""
    [layout] = mutant.layouts
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
            judgement = judge_startup(config_case, job, pool)
            if isinstance(judgement, Judgement):
                yield Trial(case=config_case.name, mode=mode, layout=layout, judgement=judgement)


def _log_trials(mutant: type[LogMutant]) -> Iterator[Trial]:
    """Every log, with asserts and without."""
    adapter = LogMutantAdapter(mutant)
    with (
        LogProcess(adapter, None, LOG_ENTRIES, optimized=False) as plain,
        LogProcess(adapter, None, LOG_ENTRIES, optimized=True) as optimized,
    ):
        outcomes = [
            (case, plain.outcomes[case.name], optimized.outcomes[case.name]) for case in LOG_CASES
        ]
    for log_case, *of_case in outcomes:
        judgement = judge_log(log_case, *of_case)
        yield Trial(case=log_case.name, mode=log_case.mode, layout=Layout(), judgement=judgement)


class LogMutantAdapter(NativeAdapter):
    """`native` with the log of a mutant."""

    def __init__(self, mutant: type[LogMutant]) -> None:
        self._mutant = mutant

    def aggregate(self, entries: Sequence[LogEntry], rank: Rank) -> Mapping[str, float]:
        """The mutant's."""
        return self._mutant.aggregate(entries)


def _alternatives(name: str) -> list[str]:
    verb, by, sizes = name.partition("_by_")
    return [f"{verb}{by}{size}" for size in sizes.split("_or_")] if by else [name]


def _is(diagnosis: str, names: list[str]) -> bool:
    return any(name.startswith(diagnosis) for name in names)
