"""Reads a recipe in a process that loads its framework, and runs its checks on the ranks."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from adapters.contract.recipe import Recipe, RecipeRefused
from conformance.comparing.report_file import assembled
from conformance.findings.errors import AdapterError, InvalidRecipeError
from conformance.findings.report import Selection
from conformance.findings.verdict import WRONG, Check
from conformance.plan.plan import Plan
from conformance.ranks.pool import RankPool
from conformance.ranks.preload import die_with_parent
from conformance.recipes.matching import match
from conformance.recipes.scaling import cells, driven, scaled
from conformance.runs import registry
from conformance.runs.check import job_cells, make
from conformance.runs.jobs import SharedJobs
from conformance.runs.recorder import Consistency, header
from conformance.runs.settings import Settings
from conformance.sources.source import resolve

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from adapters.contract import Adapter, Layout
    from adapters.contract.framework import Framework
    from adapters.contract.recipe import Typed
    from conformance.findings.cause import Clues
    from conformance.findings.finding import Finding
    from conformance.findings.report import Report
    from conformance.judging.weights import Judgement
    from conformance.plan.matrix import MatrixCell

    Made = tuple[MatrixCell, Judgement]
    from conformance.recipes.matching import Match

MOST_RANKS = 4
"""Ranks that a recipe is run on unless a user allows more."""

BUDGET = 90.0
"""Seconds from reading a recipe to the answer. Every check is made at least once, even if that
takes longer."""

AGAIN = 0.1
"""The share of the budget that is reserved for repeating checks that were wrong."""

OUTPUT = (1, 2)
"""File descriptors of the streams that frameworks print to."""

PLAIN = (bool, int, float, str, type(None))
"""Types of values that can be read without the framework."""

TIME_LIMIT = 300.0
"""Seconds that a job may take, as some frameworks compile during the first job."""


class Excluded(NamedTuple):
    """A mistake that would show in a finding, and does not show there."""

    finding: str
    mistake: str
    facts: frozenset[str]
    """Facts of the finding's step."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """A recipe that was run, and the report of its findings."""

    recipe: Recipe
    match: Match
    record: Framework
    layout: Layout
    """The small layout that the recipe was run on."""

    report: Report
    excluded: frozenset[Excluded]

    left_out: tuple[str, ...]
    """Kinds of ranks that did not fit, and layout options that the adapter does not support."""

    unsteady: tuple[str, ...]
    """Findings that were wrong at first, and right when the check was repeated."""

    planned: int
    """The number of findings that the budget was meant for."""


def read(adapter: Adapter, source: Path | None, typed: Typed) -> Recipe:
    """Have an adapter's framework read a recipe, in a separate process.

    Raises:
        InvalidRecipeError: the framework refuses the recipe; the message is the framework's.
        AdapterError: the adapter reads no recipes, or the framework cannot be loaded.
    """
    if not adapter.recipes:
        raise AdapterError(
            f"the adapter of {adapter.name} reads no recipes", "see docs/your-recipe.md"
        )
    if typed.file is not None and not typed.file.is_file():
        raise InvalidRecipeError(f"there is no file {typed.file}", "name the file of a recipe")
    # The server that ranks are forked from must load only the engine that the recipe names.
    context = multiprocessing.get_context("spawn")
    with (
        _silent(),
        ProcessPoolExecutor(
            1, mp_context=context, initializer=die_with_parent, initargs=(signal.SIGKILL,)
        ) as executor,
    ):
        try:
            return executor.submit(_read, adapter, source, typed).result()
        except RecipeRefused as refusal:
            title = adapter.framework.title if adapter.framework else adapter.name
            raise InvalidRecipeError(f"{title} refuses this recipe: {refusal}") from refusal
        except (ImportError, LookupError, BrokenProcessPool) as error:
            raise AdapterError(f"{adapter.name} cannot be loaded: {error}") from error


def _read(adapter: Adapter, source: Path | None, typed: Typed) -> Recipe:
    adapter.load(source)
    name, _, function = adapter.recipes.partition(":")
    found: Recipe = getattr(importlib.import_module(name), function)(adapter, typed)
    return replace(found, values=_plain(found.values), defaults=_plain(found.defaults))


def _plain(value: Any) -> Any:
    """The value, with objects of the framework's own types replaced by their text."""
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [*map(_plain, value)]
    return value if type(value) in PLAIN else str(value)


def run(
    name: str,
    typed: Typed,
    *,
    engine: str | None = None,
    source: str | None = None,
    most_ranks: int,
    budget: float = BUDGET,
) -> Run:
    """Read a recipe, and make its checks for as long as the budget lasts.

    Raises:
        ConformanceError: the recipe or an option is wrong; nothing was started.
    """
    until = time.monotonic() + (1 - AGAIN) * budget
    reading = registry.create(name, engine)
    found = resolve(reading, source)
    recipe = read(reading, found.path, typed)
    adapter = registry.create(name, engine or recipe.engine)
    assert adapter.framework is not None
    chosen = match(adapter.framework, recipe)
    layout, left_out = scaled(recipe.layout, most_ranks)
    settings = Settings(
        adapter=adapter,
        source=found,
        plan=Plan(layouts=(layout,), aggregations={chosen.aggregation.mode: chosen.aggregation}),
        time_limit=TIME_LIMIT,
        report=Path(os.devnull),
    )
    with (
        RankPool(adapter, found.path, layout.world_size, TIME_LIMIT) as pool,
        closing(SharedJobs(pool)) as jobs,
    ):
        with _silent():
            description = pool.description  # starts the server that ranks are forked from
        layout, not_driven = driven(layout, description)
        planned = cells(chosen, layout, description, recipe.unlike)
        report, excluded, unsteady = _look_at(planned, jobs, settings, until)
    return Run(
        recipe=recipe,
        match=chosen,
        record=adapter.framework,
        layout=layout,
        report=report,
        excluded=excluded,
        unsteady=unsteady,
        left_out=(*left_out, *not_driven),
        planned=len(planned),
    )


@contextmanager
def _silent() -> Iterator[None]:
    """Start processes in the context that print nothing, not even when they end."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept, nowhere = [os.dup(stream) for stream in OUTPUT], os.open(os.devnull, os.O_WRONLY)
    for stream in OUTPUT:
        os.dup2(nowhere, stream)
    try:
        yield
    finally:
        for stream, before in zip(OUTPUT, kept, strict=True):
            os.dup2(before, stream)
            os.close(before)
        os.close(nowhere)


def _look_at(
    planned: Sequence[MatrixCell], jobs: SharedJobs, settings: Settings, until: float
) -> tuple[Report, frozenset[Excluded], tuple[str, ...]]:
    """The report of all cells begun in time, the excluded mistakes and the unsteady findings.

    Each check is made at least once, even after the time is over: an answer needs evidence.
    """
    made: list[Made] = []
    consistency = Consistency()
    looked_at = set[str]()
    jobs.share(planned)
    for place, cell in enumerate(planned, start=1):
        is_again = cell.spec.check is Check.LAWS or cell.spec.slug in looked_at
        if is_again and time.monotonic() > until:
            continue
        looked_at.add(cell.spec.slug)
        jobs.expect(job_cells(planned[place:], jobs.description))
        made.append((cell, make(cell, jobs)))
        consistency.require(cell.case.name, cell.id, made[-1][1].expected)
    jobs.settle()
    steady = _steady(made, jobs)
    pairs = zip(made, steady, strict=True)
    unsteady = tuple(one[0].id for one, again in pairs if one[1].verdict is not again[1].verdict)
    findings, clues = _numbered(steady)
    excluded = {
        Excluded(finding.id, one.mistake, frozenset(clues[finding.clues].conditions))
        for finding in findings
        if finding.clues is not None
        for one in clues[finding.clues].excluded
    }
    selection = Selection(selected=len(findings), deselected=len(planned) - len(findings))
    report = assembled(header(settings, jobs.description), findings, clues, selection)
    return report, frozenset(excluded), unsteady


def _steady(made: Sequence[Made], jobs: SharedJobs) -> list[Made]:
    """Repeat wrong findings, and replace those that are right the second time.

    Findings with the same diagnosis are repeated in order, until one of them is wrong again.
    """
    again, confirmed = SharedJobs(jobs.pool), set[str]()
    steady: list[Made] = []
    for cell, judgement in made:
        name = judgement.diagnosis.name if judgement.diagnosis else str(judgement.verdict)
        if judgement.verdict in WRONG and name not in confirmed:
            judgement = make(cell, again)
            confirmed |= {name} if judgement.verdict in WRONG else set()
        steady.append((cell, judgement))
    return steady


def _numbered(made: Sequence[Made]) -> tuple[list[Finding], list[Clues]]:
    """The findings, and the clues that their ``clues`` index."""
    findings: list[Finding] = []
    clues: list[Clues] = []
    for cell, judgement in made:
        finding = judgement.finding(cell.id, cell.depth)
        if judgement.clues is not None:
            finding = finding.model_copy(update={"clues": len(clues)})
            clues.append(judgement.clues)
        findings.append(finding)
    return findings, clues
