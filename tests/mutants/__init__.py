"""The catalogue of mutants: mistakes that a conformance suite must notice."""

import inspect
from collections.abc import Iterator
from types import ModuleType

from tests.mutants import (
    advantages,
    auxiliary,
    corrections,
    counts,
    critics,
    factors,
    gradients,
    groups,
    logging,
    losses,
    metrics,
    misaligned,
    off_policy,
    parts,
    pipelines,
    poison,
    rejection,
    rollouts,
    router,
    sharding,
    startup,
    windows,
)
from tests.mutants.mutant import Mutant


def _of(module: ModuleType) -> Iterator[type[Mutant]]:
    for member in vars(module).values():
        is_mutant = inspect.isclass(member) and issubclass(member, Mutant)
        if is_mutant and member.__module__ == module.__name__ and hasattr(member, "diagnosis"):
            yield member


MODULES = (
    factors,
    counts,
    parts,
    pipelines,
    losses,
    misaligned,
    metrics,
    windows,
    auxiliary,
    off_policy,
    rejection,
    critics,
    corrections,
    advantages,
    groups,
    rollouts,
    poison,
    gradients,
    router,
    sharding,
    startup,
    logging,
)

MUTANTS = [mutant for module in MODULES for mutant in _of(module)]
"""In the order of the modules and of their source."""
