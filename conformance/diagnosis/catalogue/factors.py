"""The known mistakes in what the weights of a term are multiplied by."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from conformance.diagnosis.catalogue.advantages import wrong_advantages
from conformance.diagnosis.catalogue.derivatives import wrong_derivatives
from conformance.diagnosis.catalogue.values_of_others import values_of_others
from conformance.expected.advantages import BatchAdvantages

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from conformance.expected.term import LossTerm


@dataclass(frozen=True, kw_only=True, eq=False)
class WrongFactors:
    """A known mistake in what the weights of a term are multiplied by: its name and [tokens]."""

    name: str
    factors: NDArray[np.float64]
    together: tuple[str, ...] = ()
    """The names of the mistakes that are made besides."""


def wrong_factors(term: LossTerm) -> Sequence[WrongFactors]:
    """What known mistakes would multiply the weights of a term by, the more common ones first."""
    return () if term.source is None else _kept(term)


@lru_cache(maxsize=64)
def _kept(term: LossTerm) -> Sequence[WrongFactors]:
    source = term.source
    assert source is not None
    if isinstance(source, BatchAdvantages):
        return [*_of_advantages(source)]
    placement = term.context.placement
    wrong = wrong_derivatives(
        source.objective,
        source.tokens,
        term.context.expected,
        None if placement is None else placement.cp_rank,
    )
    return [WrongFactors(name=name, factors=factors) for name, factors in wrong]


def _of_advantages(source: BatchAdvantages) -> Iterator[WrongFactors]:
    for name, found in wrong_advantages(source.estimate, source.placement):
        yield WrongFactors(name=name, factors=source.factors(found))
    if source.observed is not None:
        for name, found, together in values_of_others(
            source.estimate, source.placement, source.observed
        ):
            yield WrongFactors(name=name, factors=source.factors(found), together=together)
