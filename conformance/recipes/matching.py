"""Finds the losses, estimators and terms of an adapter's record that a recipe chooses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from adapters.contract.framework import Substitute
from adapters.contract.objective import (
    CORRECTIONS,
    FROM_REWARDS,
    OF_CRITIC,
    OF_VALUES,
    POLICY_LOSSES,
    Objective,
)
from conformance.findings.errors import InvalidRecipeError
from reference.aggregation import Aggregation, Mode

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from adapters.contract.framework import Framework, Settings
    from adapters.contract.recipe import Recipe

OF_POLICY = (
    Objective.OFF_POLICY,
    Objective.REJECTION_OFF_POLICY,
    *POLICY_LOSSES,
    *CORRECTIONS,
)
"""Policy losses, including corrected ones; a recipe has exactly one of them."""

OF_TERMS = (Objective.ENTROPY, Objective.KL, Objective.ROUTER, *OF_CRITIC)
"""Loss terms besides the policy loss; a recipe may have several."""

USER_DIVISOR = 40
"""The divisor L of `constant` if the record states none: a recipe's own L does not fit small steps.
"""


@dataclass(frozen=True, kw_only=True)
class Match:
    """The entries of a framework's record that a recipe chooses."""

    reduction: str
    """The framework's own name for the reduction."""

    aggregation: Aggregation
    policy: Objective
    estimator: Objective | None
    terms: tuple[Objective, ...]
    instead: Mapping[str, tuple[Any, Any]]
    """Options run with another value than the recipe's, each with the recipe's value and ours."""

    not_looked_at: Mapping[str, str]
    """Options of the recipe that no check looks at, each with its text in docs/options.md."""


def match(record: Framework, recipe: Recipe) -> Match:
    """Find the entries of a record that a recipe chooses.

    Raises:
        InvalidRecipeError: the record has no reduction with the recipe's options.
    """
    reduction, aggregation = _reduction(record, recipe)
    terms = tuple(one for one in OF_TERMS if _is_on(one, record.objectives.get(one, {}), recipe))
    policy, of_policy = _nearest(record, OF_POLICY, recipe)
    estimator, of_estimator = _nearest(record, _estimators(record, terms), recipe)
    if any(_is_kind(ours) for _, ours in of_estimator.values()):
        estimator, of_estimator = None, {}  # no check has this estimator's formula
    return Match(
        reduction=reduction,
        aggregation=aggregation,
        policy=policy or Objective.OFF_POLICY,
        estimator=estimator,
        terms=terms,
        instead=of_policy | of_estimator | _kinds_of_terms(record, terms, recipe),
        not_looked_at=dict(_not_looked_at(record, recipe)),
    )


def _reduction(record: Framework, recipe: Recipe) -> tuple[str, Aggregation]:
    """The name and aggregation of a recipe's reduction: the one that most options choose.

    Of several reductions, the first wins. Options that a version lacks do not count, nor do options
    whose value depends on a job, unless the value is the reduction's own name.
    """
    found = {
        name: sum(
            str(recipe.values[option]) == name or not callable(value)
            for option, value in chosen.items()
            if option in recipe.values
        )
        for name, (_, chosen) in record.modes.items()
        if all(
            option not in recipe.values or _is_same(value, recipe.values[option])
            for option, value in chosen.items()
        )
    }
    if found:
        name = max(found, key=lambda one: found[one])
        mode, _, divisor = record.modes[name][0].partition(":")
        if mode != Mode.CONSTANT:
            return name, Aggregation(Mode(mode), None)
        return name, Aggregation(Mode.CONSTANT, float(divisor or USER_DIVISOR))
    options = {option for _, chosen in record.modes.values() for option in chosen}
    typed = ", ".join(f"{one}={recipe.values.get(one)}" for one in sorted(options))
    raise InvalidRecipeError(
        f"no check knows how {record.title} reduces losses with {typed}",
        f"{record.title} is checked with {', '.join(record.modes)}",
    )


def _estimators(record: Framework, terms: Iterable[Objective]) -> list[Objective]:
    """The estimators that a recipe may have; those that use a critic only if it trains one.

    A framework without an option for the critic chooses it by the estimator.
    """
    without = bool(record.objectives.get(Objective.VALUE)) and not {*terms} & {*OF_CRITIC}
    return [one for one in FROM_REWARDS if not (without and one in OF_VALUES)]


def _is_on(term: Objective, chosen: Settings, recipe: Recipe) -> bool:
    """Whether a recipe has a term. A text option of a divergence only names the estimator."""
    of_kind = {name for name, value in chosen.items() if _is_kind(value)}
    switches = chosen.keys() - (of_kind if term is Objective.KL else set())
    return bool(switches) and all(
        _is_same(chosen[name], recipe.values.get(name)) for name in switches
    )


def _is_kind(value: Any) -> bool:
    return isinstance(value, str) and not isinstance(value, Substitute)


def _kinds_of_terms(
    record: Framework, terms: Iterable[Objective], recipe: Recipe
) -> dict[str, tuple[Any, Any]]:
    """Options for the kind of a term whose value no check uses: the recipe's value and ours."""
    return {
        name: (recipe.values.get(name), value)
        for one in terms
        for name, value in record.objectives[one].items()
        if _is_kind(value) and not _is_same(value, recipe.values.get(name))
    }


def _nearest(
    record: Framework, objectives: Iterable[Objective], recipe: Recipe
) -> tuple[Objective | None, dict[str, tuple[Any, Any]]]:
    """The objective whose options are most like a recipe's, and both values where they differ.

    Options with one value in all objectives do not count. If an objective leaves an option out, the
    option has the value that all jobs use, if any, or else its default. Options that are sizes,
    folders or part of a mode count only if an objective sets them.
    """
    offered = {one: record.objectives[one] for one in objectives if one in record.objectives}
    of_modes = {name for _, chosen in record.modes.values() for name in chosen}
    telling = {
        name
        for chosen in offered.values()
        for name, value in chosen.items()
        if not (callable(value) or isinstance(value, Substitute) or name in of_modes)
    }
    names = {name for chosen in offered.values() for name in chosen} - recipe.ours
    of_all = {name for name in names if all(name in chosen for chosen in offered.values())}
    # Options of the KL term belong to the term, unless every objective sets them.
    names -= record.objectives.get(Objective.KL, {}).keys() - of_all
    names -= {name for name in names if _is_alike(name, offered.values())}
    left_out = {**recipe.defaults, **record.always}
    found: tuple[Objective | None, dict[str, tuple[Any, Any]]] = (None, {})
    for objective, chosen in offered.items():
        compared = {name for name in names if name in chosen or name in telling}
        different = {
            name: (recipe.values.get(name), chosen.get(name, left_out.get(name)))
            for name in sorted(compared)
            if not _is_same(chosen.get(name, left_out.get(name)), recipe.values.get(name))
        }
        if found[0] is None or len(different) < len(found[1]):
            found = objective, different
    return found


def _is_alike(name: str, offered: Iterable[Settings]) -> bool:
    """Whether an option has the same value in all objectives, and so distinguishes none."""
    return len({repr(chosen.get(name, chosen)) for chosen in offered}) == 1


def _is_same(value: Any, of_recipe: Any) -> bool:
    """Whether a recipe's value matches a record's; numbers match if both or neither are 0.

    A value that depends on a job matches anything; a value of ours matches any value that is set.
    """
    if callable(value) or value == "" or not (value or of_recipe):
        return True
    if isinstance(value, Substitute | list | tuple | dict):
        return bool(of_recipe)
    if _is_number(value) or _is_number(of_recipe):
        return bool(value) == bool(of_recipe)
    return str(value) == str(of_recipe)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def looked_at(record: Framework) -> set[str]:
    """The options that some mode, objective or layout of a record sets."""
    of_modes = [chosen for _, chosen in record.modes.values()]
    return {
        name
        for chosen in (*of_modes, *record.objectives.values(), *record.layout.values())
        for name in chosen
    }


def chosen_options(record: Framework, found: Match) -> set[str]:
    """The options that choose the recipe's loss, estimator, terms and layout, or tune them."""
    chosen = (found.policy, found.estimator, *found.terms)
    settings = [record.objectives.get(one, {}) for one in chosen if one is not None]
    of_all = (record.modes[found.reduction][1], *settings, *record.layout.values())
    return {name for each in of_all for name in each}


def _not_looked_at(record: Framework, recipe: Recipe) -> Iterator[tuple[str, str]]:
    """Yield the options of a recipe that no check looks at, with the reason for each."""
    yield from (
        (name, "no package that is installed here reads it") for name in sorted(recipe.unread)
    )
    as_run = {
        name for name, value in record.always.items() if _is_same(value, recipe.values.get(name))
    }
    known = looked_at(record) | as_run | recipe.sizes
    for row in record.options:
        for name in row.names:
            if name in recipe.chosen and name not in known:
                yield name, ": ".join(filter(None, (row.changes, row.note)))
