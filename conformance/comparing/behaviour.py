"""Differences in behaviour of two versions, compared with each other and not with the reference.

Findings with the same id trained the same step. Their gradients and logged numbers are compared
within the bound of the dtype; a refactoring changes none of them.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from conformance.explain.reach import options
from conformance.judging.comparison import first_of, is_same, is_same_gradient
from reference.rounding import weight_bound

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conformance.findings.finding import Behaviour, Finding
    from conformance.findings.report import Report

TOKENS = 1000
"""The number of summands for the bound on sums: no step of the corpus has more tokens."""

GONE = "no longer logged, or no longer moved by any value"
NEW = "newly logged, or newly moved by values"


class StepPair(NamedTuple):
    """A finding of the newer version, with the results of its step in both versions."""

    finding: Finding
    old: Behaviour
    new: Behaviour

    def numbers(self, name: str) -> tuple[float, float]:
        """A logged number before and after; NaN if not finite."""
        old, new = (logged[name] for logged in (self.old.logged, self.new.logged))
        return math.nan if old is None else old, math.nan if new is None else new


@dataclass(frozen=True)
class ChangedNumber:
    """A number that differs in some of the steps that have it."""

    name: str
    changed: tuple[StepPair, ...]
    steps: int
    """The number of steps that have the number in both versions."""

    options: tuple[str, ...]
    """The options of all steps in which the number differs, and of no other step."""

    @property
    def extent(self) -> str:
        """The number of steps in which it differs, and the options that only these steps have."""
        extent = f"{len(self.changed)} of {self.steps} steps"
        return f"{extent}, all with `{' '.join(self.options)}`" if self.options else extent


@dataclass(frozen=True)
class BehaviourChange:
    """The numbers that differ in the steps that two versions both trained."""

    old: Report
    new: Report

    @cached_property
    def pairs(self) -> list[StepPair]:
        """The findings of both versions that have the results of their step."""
        before = {one.id: one.behaviour for one in self.old.findings}
        after = [(one, before.get(one.id), one.behaviour) for one in self.new.findings]
        return [StepPair(one, old, new) for one, old, new in after if old and new]

    @cached_property
    def gradient(self) -> ChangedNumber | None:
        """The gradient, if it differs in any step."""
        changed = [pair for pair in self.pairs if not _same_gradient(pair, self.dtype)]
        return self._number("gradient", changed, self.pairs) if changed else None

    @cached_property
    def numbers(self) -> list[ChangedNumber]:
        """The logged numbers that differ, sorted by the number of steps in which they differ."""
        having: dict[str, list[StepPair]] = defaultdict(list)
        for pair in self.pairs:
            for name in pair.old.logged.keys() & pair.new.logged.keys():
                having[name].append(pair)
        found = [
            self._number(name, changed, pairs)
            for name, pairs in having.items()
            if (changed := [one for one in pairs if not self._is_same(*one.numbers(name))])
        ]
        return sorted(found, key=lambda one: (-len(one.changed), one.name))

    @property
    def names(self) -> tuple[list[str], list[str]]:
        """The names that are no longer logged, and the names that are new.

        Numbers that do not depend on the batch are not recorded, so such a name may still be
        logged.
        """
        old = {name for pair in self.pairs for name in pair.old.logged}
        new = {name for pair in self.pairs for name in pair.new.logged}
        return sorted(old - new), sorted(new - old)

    @property
    def dtype(self) -> str:
        """The dtype whose rounding errors both versions may have."""
        return self.new.environment.dtype

    def _is_same(self, one: float, other: float) -> bool:
        return is_same(one, other, TOKENS, self.dtype)

    def _number(self, name: str, changed: list[StepPair], having: list[StepPair]) -> ChangedNumber:
        ids = {pair.finding.id for pair in changed}
        typed = {pair.finding.id: {*options(pair.finding, self.new.chosen_by)} for pair in having}
        shared = set.intersection(*(typed[one] for one in ids))
        elsewhere = set().union(*(typed[one] for one in typed.keys() - ids))
        return ChangedNumber(name, tuple(changed), len(having), tuple(sorted(shared - elsewhere)))


def said(found: BehaviourChange) -> Iterator[str]:
    """Yield what changed: gradients, then logged numbers, then names."""
    steps = len(found.pairs)
    if not steps:
        return
    gradient, numbers = found.gradient, found.numbers
    if gradient is None and not numbers:
        yield f"no number changed in {steps} steps"
    elif gradient is None:
        yield f"gradients are the same in all {steps} steps"
    else:
        yield f"the gradient is another in {gradient.extent}"
    for one in numbers:
        old, new = one.changed[0].numbers(one.name)
        yield f"`{one.name}` is {new:.6g} instead of {old:.6g} in {one.extent}"
    for words, names in zip((GONE, NEW), found.names, strict=True):
        if names:
            yield f"{words}: {', '.join(names)}"


def final_clause(found: BehaviourChange) -> Iterator[str]:
    """Yield the end of a sentence on what changed between the versions."""
    if not found.pairs:
        return
    names = first_of(f"`{one.name}`" for one in found.numbers)
    if found.gradient is None and not names:
        yield f"no number changed in {len(found.pairs)} steps"
    elif found.gradient is None:
        yield f"gradients are the same, and {names} changed"


def _same_gradient(pair: StepPair, dtype: str) -> bool:
    """Whether the weights of all steps agree; errors are relative to the largest sum of sizes."""
    one, other = (np.array(each.gradients, np.float64) for each in (pair.old, pair.new))
    tolerance = weight_bound(dtype, terms=1)
    return one.shape == other.shape and is_same_gradient(one, other, tolerance)
