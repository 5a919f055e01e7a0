"""Names a mistake that several terms of a loss share.

What stands beside the policy loss often goes one way through a framework: entropy and divergence
are then off alike, and the policy loss is right or has a mistake of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from conformance.mistakes import mistakes
from conformance.report import Diagnosis

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from conformance.mistakes import Situation


@dataclass(frozen=True, kw_only=True, eq=False)
class Summand:
    """One term: what it is called, how it is reduced, and what of each token: [tokens]."""

    name: str
    situation: Situation
    factors: NDArray[np.float64]


def diagnose_joint(
    policy: Summand, others: Sequence[Summand], matches: Callable[[NDArray[np.float64]], bool]
) -> Diagnosis | None:
    """The mistake of all ``others``, if it and perhaps one of the policy loss explain the sum.

    ``matches`` says so of what all summands would add up to: [tokens].
    """
    for own_words, own in _alternatives(policy):
        for name, words, shared in _shared(others):
            if matches(own + shared):
                explanation = f"{' and '.join(other.name for other in others)}: {words}"
                if own_words:
                    explanation += f"; {policy.name}: {own_words}"
                return Diagnosis(name=name, explanation=explanation)
    return None


def _alternatives(summand: Summand) -> Iterator[tuple[str, NDArray[np.float64]]]:
    """What a term would be if it were right, and by each known mistake."""
    yield "", summand.factors * summand.situation.expected
    for mistake in mistakes(summand.situation):
        yield mistake.words, summand.factors * mistake.weights


def _shared(others: Sequence[Summand]) -> Iterator[tuple[str, str, NDArray[np.float64]]]:
    """What the others would add up to by each mistake that all of them may have."""
    known = [{(m.name, m.words): m for m in mistakes(other.situation)} for other in others]
    for key in known[0]:
        if all(key in of_other for of_other in known):
            total = sum(
                other.factors * of_other[key].weights
                for other, of_other in zip(others, known, strict=True)
            )
            yield *key, total  # type: ignore[misc]
