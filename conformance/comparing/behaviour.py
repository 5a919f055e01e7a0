"""Differences in behaviour of two versions, compared with each other and not with the reference.

Findings with the same id trained the same step. Their gradients and logged numbers are compared
within the bound of the dtype; a refactoring changes none of them.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import TYPE_CHECKING

import numpy as np

from conformance.explain.reach import options
from conformance.judging.laws import first_of, is_same
from reference.rounding import weight_bound

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conformance.findings.finding import Behaviour, Finding
    from conformance.findings.report import Report

TOKENS = 1000
"""The number of summands for the bound on sums: no step of the corpus has more tokens."""

GONE = "no longer logged, or no longer moved by any value"
NEW = "newly logged, or newly moved by values"
GRADIENT = "gradient"
"""The name of a changed gradient, among the names of logged numbers."""

Pair = tuple["Finding", "Finding"]


@dataclass(frozen=True)
class ChangedNumber:
    """A number that differs between versions in some steps, with its values in the first step."""

    name: str
    changed: tuple[Pair, ...]
    steps: int
    """The number of steps that have the number in both versions."""

    options: tuple[str, ...]
    """Options that all steps in which it differs have, and no other step has."""

    @property
    def values(self) -> tuple[float, float]:
        """The number before and after, in the first step where it differs; NaN if not finite."""
        old, new = (one.behaviour for one in self.changed[0])
        assert old is not None
        assert new is not None
        return _number(old.logged[self.name]), _number(new.logged[self.name])


@dataclass(frozen=True)
class BehaviourChange:
    """The numbers that differ in the steps that two versions both trained."""

    old: Report
    new: Report

    @cached_property
    def pairs(self) -> list[Pair]:
        """Pairs of findings that both recorded the result of their step."""
        before = {one.id: one for one in self.old.findings if one.behaviour}
        after = [one for one in self.new.findings if one.behaviour]
        return [(before[one.id], one) for one in after if one.id in before]

    @cached_property
    def gradient(self) -> ChangedNumber | None:
        """The change of the gradient; None if it is the same in every step."""
        changed = [
            pair for pair in self.pairs if not _same_gradient(*_behaviours(pair), self.dtype)
        ]
        return self._number(GRADIENT, changed, self.pairs) if changed else None

    @cached_property
    def numbers(self) -> list[ChangedNumber]:
        """The logged numbers that differ, those that differ in most steps first."""
        having: dict[str, list[Pair]] = defaultdict(list)
        changed: dict[str, list[Pair]] = defaultdict(list)
        for pair in self.pairs:
            old, new = _behaviours(pair)
            for name in old.logged.keys() & new.logged.keys():
                having[name].append(pair)
                one, other = _number(old.logged[name]), _number(new.logged[name])
                if not is_same(one, other, TOKENS, self.dtype):
                    changed[name].append(pair)
        found = [self._number(name, some, having[name]) for name, some in changed.items()]
        return sorted(found, key=lambda one: (-len(one.changed), one.name))

    @property
    def names(self) -> tuple[list[str], list[str]]:
        """The names that are no longer logged, and the names that are new.

        Numbers that do not depend on the batch are not recorded, so such a name may still be
        logged.
        """
        old, new = (
            {name for pair in self.pairs for name in _behaviours(pair)[side].logged}
            for side in (0, 1)
        )
        return sorted(old - new), sorted(new - old)

    @property
    def dtype(self) -> str:
        """The dtype whose rounding errors both versions may have."""
        return self.new.environment.dtype

    def _number(self, name: str, changed: list[Pair], having: list[Pair]) -> ChangedNumber:
        typed = [{*options(new, self.new.chosen_by)} for _, new in changed]
        ids = {new.id for _, new in changed}
        elsewhere = [options(new, self.new.chosen_by) for _, new in having if new.id not in ids]
        shared = reduce(set.intersection, typed) - {one for some in elsewhere for one in some}
        return ChangedNumber(name, tuple(changed), len(having), tuple(sorted(shared)))


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
        yield f"the gradient is another in {_extent(gradient)}"
    for one in numbers:
        old, new = one.values
        yield f"`{one.name}` is {new:.6g} instead of {old:.6g} in {_extent(one)}"
    for words, names in zip((GONE, NEW), found.names, strict=True):
        if names:
            yield f"{words}: {', '.join(names)}"


def final_clause(found: BehaviourChange) -> Iterator[str]:
    """Yield the end of a sentence on what changed between the versions."""
    if not found.pairs:
        return
    numbers = found.numbers
    if found.gradient is None and not numbers:
        yield f"no number changed in {len(found.pairs)} steps"
    elif found.gradient is None:
        names = first_of(f"`{one.name}`" for one in numbers)
        yield f"gradients are the same, and {names} changed"


def _extent(changed: ChangedNumber) -> str:
    """Words on how many steps a number changed in, and on the options of only these steps."""
    extent = f"{len(changed.changed)} of {changed.steps} steps"
    return f"{extent}, all with `{' '.join(changed.options)}`" if changed.options else extent


def _behaviours(pair: Pair) -> tuple[Behaviour, Behaviour]:
    old, new = (one.behaviour for one in pair)
    assert old is not None
    assert new is not None
    return old, new


def _same_gradient(old: Behaviour, new: Behaviour, dtype: str) -> bool:
    """Whether weights agree in all steps; errors are relative to the sum of absolute weights."""
    one, other = (np.array(each.gradients, np.float64) for each in (old, new))
    if one.shape != other.shape:
        return False
    atol = 2 * weight_bound(dtype, terms=1) * np.abs(one[:, :1])
    return bool((np.abs(one - other) <= atol).all() | np.array_equal(one, other, equal_nan=True))


def _number(value: float | None) -> float:
    return math.nan if value is None else value
