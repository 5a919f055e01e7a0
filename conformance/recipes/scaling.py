"""Scales a recipe's layout down to few ranks, and chooses its checks."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from adapters.contract import Depth, Layout, Option
from adapters.contract.objective import (
    CORRECTIONS,
    FROM_REWARDS,
    OF_CRITIC,
    OF_SEQUENCES,
    OF_TERMS,
    WITH_REJECTION,
    Metric,
    Objective,
)
from adapters.contract.recipe import MASKED_END
from conformance.corpus.cases import ALL_CASES
from conformance.explain.conditions.facts import ends_masked, of_steps
from conformance.findings.errors import InvalidRecipeError
from conformance.findings.verdict import Check
from conformance.plan.checks import CHECK_SPECS, LAWFUL, CheckSpec
from conformance.plan.matrix import MatrixCell
from conformance.runs.check import is_offered

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from adapters.contract import Description
    from conformance.corpus.cases import Case
    from conformance.recipes.matching import Match

SEVERAL = 2
"""The size of each dimension of a small layout, and the number of its micro-batches."""

DIMENSIONS = ("dp", "cp", "tp", "pp")
"""Kinds of parallelism, the ones with most mistakes first."""

USUAL = ("two_steps", "split_groups", "fully_masked_sample", "uneven_lengths", "odd_groups")
"""Cases of ordinary batches, those that detect most mistakes first: several steps of different
counts, prompts split over ranks, a sample without active tokens."""

UNUSUAL = ("lone_samples", "groups_of_one", "several_samples", "step_rewards")
"""Cases that few recipes can meet: prompts with one sample, rollouts of several samples."""

MOST_CASES = 3
"""The number of cases that each check is made on."""

ORDER = (
    Check.WEIGHTS,
    Check.METRIC,
    Check.OFF_POLICY,
    Check.REJECTION,
    Check.ADVANTAGES,
    Check.AUXILIARY,
    Check.OTHER_LOSSES,
    Check.ROLLOUTS,
    Check.LAWS,
)
"""The checks of a recipe in their order; bad input and NaN at masked tokens are left out."""


def scaled(layout: Layout, ranks: int) -> tuple[Layout, list[str]]:
    """A small layout of the same shape, and the dimensions that do not fit on the ranks.

    Raises:
        InvalidRecipeError: ``ranks`` is less than 1.
    """
    if ranks < 1:
        raise InvalidRecipeError(f"a recipe needs at least one rank, not {ranks}", "give 1 or more")
    sizes, left = dict.fromkeys(DIMENSIONS, 1), []
    for name in DIMENSIONS:
        if getattr(layout, name) > 1:
            if math.prod(sizes.values()) * SEVERAL <= ranks:
                sizes[name] = SEVERAL
            else:
                left.append(f"{name} {getattr(layout, name)}")
    cut = layout.micro_batches
    few = min(cut, SEVERAL) if isinstance(cut, int) else cut
    return replace(layout, **sizes, micro_batches=few), left  # type: ignore[arg-type]


def driven(layout: Layout, description: Description) -> tuple[Layout, list[str]]:
    """The part of a layout that the adapter's engine supports, and the parts that are left out."""
    options = tuple(one for one in layout.options if one in description.options)
    left = [str(one) for one in layout.options if one not in options]
    sizes = {"tp": description.largest_tp, "pp": description.largest_pp}
    left += [
        f"{name} {getattr(layout, name)}"
        for name, most in sizes.items()
        if getattr(layout, name) > most
    ]
    fewer = {name: min(getattr(layout, name), most) for name, most in sizes.items()}
    return replace(layout, options=options, **fewer), left


def cells(
    match: Match, layout: Layout, description: Description, unlike: Collection[str] = ()
) -> list[MatrixCell]:
    """The cells of a recipe, those that detect most mistakes first, cells of one job together.

    Cases with a fact in ``unlike``, which the recipe's batches never have, are left out.
    """
    made = [
        MatrixCell(
            aggregation=match.aggregation,
            case=case,
            layout=_layout(spec, layout),
            depth=Depth.STEP,
            spec=replace(spec, modes=(match.aggregation.mode,)),
        )
        for spec in _specs(match, layout)
        for case in _cases(spec, layout)
    ]
    offered = [
        cell for cell in made if is_offered(cell, description) and not _facts(cell) & {*unlike}
    ]
    first: dict[str, int] = {}
    for cell in sorted(offered, key=_rank):
        first.setdefault(cell.job_id, len(first))
    return sorted(offered, key=lambda cell: (first[cell.job_id], _rank(cell)))


def _facts(cell: MatrixCell) -> set[str]:
    """The facts of a cell's steps, including masked ends if advantages come from rewards."""
    steps = cell.job.steps
    facts = {*of_steps(steps, cell.layout)}
    if cell.spec.objective in FROM_REWARDS and any(map(ends_masked, steps)):
        facts.add(MASKED_END)
    return facts


def _layout(spec: CheckSpec, layout: Layout) -> Layout:
    """The layout of a check; for a law, without the short batch that would be trained first."""
    if spec.law is None:
        return layout
    kept = tuple(one for one in layout.options if one is not Option.SHORT_BATCH)
    return replace(layout, options=kept)


def _rank(cell: MatrixCell) -> tuple[int, int]:
    """A sort key: by case and then by check, so that every check is made before one is repeated."""
    names = [*USUAL]
    of_case = names.index(cell.case.name) if cell.case.name in names else len(names)
    is_law = cell.spec.check is Check.LAWS
    return (len(names) if is_law else of_case), ORDER.index(cell.spec.check)


def _cases(spec: CheckSpec, layout: Layout) -> Iterable[Case]:
    """The cases of a check that fit a layout and detect most mistakes."""
    by_name = {
        case.name: case for case in ALL_CASES if case.runs_on(layout) and case.name not in UNUSUAL
    }
    usual = [by_name[name] for name in USUAL if name in by_name]
    of_check = [case for case in spec.cases if case.name in by_name]
    is_plain = spec.law is None and spec.objective not in (*WITH_REJECTION, *OF_CRITIC)
    telling = [case for case in usual if is_plain or case in of_check]
    if spec.is_of_advantages:
        telling = [case for case in usual if case in of_check]
    return [*dict.fromkeys([*telling, *of_check])][:MOST_CASES]


def _specs(match: Match, layout: Layout) -> Iterator[CheckSpec]:
    """Yield the checks of a recipe, each with the recipe's objective for it."""
    for spec in (*CHECK_SPECS, *LAWFUL):
        objective = _objective(spec, match)
        fits = spec.law is None or (
            spec.law.fits(layout) and spec.law.mode in (None, match.aggregation.mode)
        )
        if objective is not None and spec.check in ORDER and fits:
            of_recipe = replace(spec, objective=objective)
            if of_recipe.is_seen_on(layout) or layout.micro_batches == 1:
                yield of_recipe


def _objective(spec: CheckSpec, match: Match) -> Objective | None:
    """The recipe's objective for a check; None if the check does not apply to the recipe."""
    chosen = objectives(match)
    if spec.objective in chosen:
        return spec.objective
    if spec.metric is None or spec.check is not Check.METRIC:
        return None
    if spec.objective is Objective.OFF_POLICY and match.policy in CORRECTIONS:
        return match.policy  # a corrected loss clips the same ratios
    if spec.objective in OF_TERMS and spec.metric in (Metric.ENTROPY, Metric.LOSS):
        return Objective.POLICY if Objective.POLICY in chosen else None
    has_kl = Objective.KL in chosen and spec.metric is Metric.KL
    return Objective.KL if has_kl and spec.objective in OF_TERMS else None


def objectives(match: Match) -> set[Objective]:
    """The objectives whose checks apply to a recipe."""
    chosen = {match.policy, *match.terms}
    if match.policy not in OF_SEQUENCES:
        chosen.add(Objective.POLICY)
    if match.estimator is not None:
        chosen.add(match.estimator)
    if match.policy in WITH_REJECTION:
        chosen |= {Objective.REJECTION, Objective.REJECTION_OFF_POLICY}
    if Objective.ENTROPY in chosen:
        chosen.add(Objective.WITH_ENTROPY)
        if Objective.KL in chosen:
            chosen.add(Objective.COMBINED)
    return chosen
