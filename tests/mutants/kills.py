"""Runs mutants over the corpus and says which cases kill them, and what for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from adapters.contract import Depth
from conformance.check import judge
from conformance.ranks import Ran
from conformance.report import Verdict
from tests.mutants.mutant import MutantJob

if TYPE_CHECKING:
    from collections.abc import Iterator

    from adapters.contract import Layout
    from conformance.judge import Judgement
    from conformance.ranks import RankPool
    from conformance.subjects import Subject
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


def trials(mutant: type[Mutant], pool: RankPool, subject: Subject | None = None) -> Iterator[Trial]:
    """Every case, mode and layout that the mutant is tried on."""
    subject = subject or mutant.subject
    description = replace(pool.description, conventions=mutant.conventions)
    for layout in mutant.layouts:
        for case in mutant.cases:
            if not case.runs_on(layout):
                continue
            for mode in mutant.modes:
                job = MutantJob(
                    steps=case.steps,
                    aggregation=case.aggregation(mode),
                    layout=layout,
                    depth=Depth.STEP,
                    objective=subject.objective,
                    mutant=mutant,
                )
                outcome = pool.run(job)
                assert isinstance(outcome, Ran), outcome
                judgement = judge(subject)(job, outcome.observations, description)
                assert judgement is not None
                yield Trial(case=case.name, mode=mode, layout=layout, judgement=judgement)


def _alternatives(name: str) -> list[str]:
    verb, by, sizes = name.partition("_by_")
    return [f"{verb}{by}{size}" for size in sizes.split("_or_")] if by else [name]


def _is(diagnosis: str, names: list[str]) -> bool:
    return any(name.startswith(diagnosis) for name in names)
