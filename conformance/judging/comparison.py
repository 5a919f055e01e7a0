"""Compares two trained jobs: the gradients of tokens, and the numbers that ranks log.

Logged numbers need no formula: each must keep its value under a change that must not matter.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np

from adapters.contract.batch.probed_batch import ProbedBatch
from adapters.contract.batch.token_values import LARGEST
from conformance.findings.finding import Behaviour
from reference.rounding import TERM_OPERATIONS, reported_bound, weight_bound

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from adapters.contract import Observation
    from conformance.judging.weights import Trained

    Gradients = NDArray[np.float64]
    Changes = dict[str, tuple[float, float]]
    """For each name of a number that a change alters, its values before and after the change."""


MOST_NAMED = 3
"""The most changes that a sentence names."""


def changed_gradient(before: Trained, after: Trained) -> Changes:
    """The gradient, before and after, of the first token whose gradient differs."""
    tolerance = weight_bound(after.description.dtype)
    pair = differing_gradients(before, after, tolerance)
    if pair is None:
        return {}
    differs = ~np.isclose(*pair, rtol=tolerance, atol=0.0, equal_nan=True)
    one, other = (gradients[differs][0] for gradients in pair)
    return {"gradient": (one, other)}


def differing_gradients(
    before: Trained, after: Trained, tolerance: float
) -> tuple[Gradients, Gradients] | None:
    """The gradients in each job of the tokens that both jobs have; None if they are equal."""
    old, new = map(_gradient_by_name, (before, after))
    common = sorted(old.keys() & new.keys())
    one, other = (np.array([of[name] for name in common]) for of in (old, new))
    return None if is_same_gradient(one, other, tolerance) else (one, other)


def is_same_gradient(one: Gradients, other: Gradients, tolerance: float) -> bool:
    """Whether gradients are equal, within twice ``tolerance`` times the largest of ``one``."""
    largest = float(np.abs(one[np.isfinite(one)]).max(initial=0.0))
    return np.allclose(one, other, rtol=0.0, atol=2 * tolerance * largest, equal_nan=True)


def _gradient_by_name(trained: Trained) -> dict[tuple[int, int], float]:
    """The gradient by rank and token name, summed over all steps."""
    names = np.concatenate(ProbedBatch(trained.job.steps).names).tolist()
    found: defaultdict[tuple[int, int], float] = defaultdict(float)
    of_steps = [of_ranks for _, _, of_ranks in trained.steps()]
    for rank, weights in enumerate(zip(*of_steps, strict=True)):
        for name, weight in zip(names, np.concatenate(weights).tolist(), strict=True):
            found[rank, name] += weight  # a masked and an active token may share a name
    return found


def changed_numbers(before: Trained, after: Trained) -> Changes:
    """The values before and after of logged numbers that differ, by the framework's names."""
    tokens = sum(len(step.mask) for step in before.job.steps)
    found: Changes = {}
    for name, one, other in _pairs(before, after):
        if not is_same(one, other, tokens, before.description.dtype):
            found.setdefault(name, (one, other))
    return found


def is_same(one: float, other: float, tokens: int, dtype: str) -> bool:
    """Whether a number that two runs log is the same up to rounding.

    A number without a formula is treated as a mean over tokens. The values of the tokens are
    assumed to be as large as any value of a batch. The bound is twice that of such a mean, relative
    to the largest value.
    """
    bound = 2 * reported_bound(tokens, dtype, TERM_OPERATIONS)
    size = max(LARGEST, abs(one), abs(other))
    return bool(np.isclose(one, other, rtol=0.0, atol=bound * size, equal_nan=True))


def steady_numbers(first: Trained, with_other_values: Trained, again: Trained) -> frozenset[str]:
    """The names of logged numbers that depend on the values of a batch and on nothing else.

    The arguments are a job, the job with other values, and the first job run again. Times differ in
    every run and counts in none, so both are left out.
    """
    moved = changed_numbers(first, with_other_values).keys()
    return frozenset(moved) - {name for name, one, other in _pairs(first, again) if one != other}


def _pairs(before: Trained, after: Trained) -> Iterator[tuple[str, float, float]]:
    """Yield the name and both values of each number that both runs log."""
    old, new = (_logged(one.observations) for one in (before, after))
    for name in sorted(old.keys() & new.keys()):
        yield from ((name, one, other) for one, other in zip(old[name], new[name], strict=False))


def _logged(run: Sequence[Observation]) -> dict[str, list[float]]:
    """The numbers that the ranks log, by name; for each name, one rank after the other."""
    found: defaultdict[str, list[float]] = defaultdict(list)
    for one in run:
        for name, numbers in one.logged.items():
            found[name] += [number for number in numbers if number is not None]
    return found


def first_of(said: Iterable[str]) -> str:
    """The first few statements in one sentence, with the number of further statements."""
    named = [*said]
    more = [f"{len(named) - MOST_NAMED} more"] if len(named) > MOST_NAMED else []
    return " and ".join([*named[:MOST_NAMED], *more])


def behaviour(trained: Trained, names: Iterable[str]) -> Behaviour:
    """The result of a job: its gradients, and the first value logged under each name."""
    gradients = []
    for _, _, (weights, *_) in trained.steps():
        factors = np.cos(1.0 + np.arange(len(weights)))
        gradients.append((_rounded(np.abs(weights).sum()), _rounded(weights @ factors)))
    numbers = _logged(trained.observations)
    logged = {name: _rounded(numbers[name][0]) for name in sorted(names) if numbers.get(name)}
    return Behaviour(gradients=tuple(gradients), logged=logged)


def _rounded(value: float) -> float | None:
    """A number rounded to six digits, as float32 has no more; None if it is not finite."""
    return float(f"{value:.6g}") if math.isfinite(value) else None
