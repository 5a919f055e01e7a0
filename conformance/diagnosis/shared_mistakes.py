"""Names the mistakes of a loss of which several terms are wrong.

What stands beside the policy loss often goes one way through a framework: entropy and divergence
are then off alike, and the policy loss is right or has a mistake of its own. Or the policy loss is
right, and each of them counts what fills up, or leaves out what other ranks hold, for itself.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

from conformance.diagnosis.catalogue import mistakes
from conformance.diagnosis.missing_tokens import shares
from conformance.diagnosis.parts import filled_up
from conformance.findings.finding import Diagnosis

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from conformance.diagnosis.step_context import LossTerm


def diagnose_shared_mistake(
    policy: LossTerm, others: Sequence[LossTerm], matches: Callable[[NDArray[np.float64]], bool]
) -> Diagnosis | None:
    """The mistake of all ``others``, or one of each, if that explains the sum.

    Where they share one, the policy loss may have one of its own. ``matches`` says whether the sum
    is explained by what all summands would add up to: [tokens].
    """
    for own_words, own in _alternatives(policy):
        for name, words, shared in _shared(others):
            if matches(own + shared):
                explanation = f"{' and '.join(other.metric for other in others)}: {words}"
                if own_words:
                    explanation += f"; {policy.metric}: {own_words}"
                return Diagnosis(name=name, explanation=explanation)
    for name, words, apart in _apart(others):
        if matches(policy.products + apart):
            return Diagnosis(name=name, explanation=words)
    return None


def _alternatives(term: LossTerm) -> Iterator[tuple[str, NDArray[np.float64]]]:
    """What a term would be if it were right, and by each known mistake."""
    yield "", term.products
    for mistake in mistakes(term.context):
        yield mistake.words, term.factors * mistake.weights


def _apart(others: Sequence[LossTerm]) -> Iterator[tuple[str, str, NDArray[np.float64]]]:
    """What the others would add up to where each has a mistake of its own in what it averages."""
    own = [[*filled_up(other.context), *shares(other.context)] for other in others]
    for mistaken in product(*own):
        pairs = [*zip(others, mistaken, strict=True)]
        name = "_and_".join(dict.fromkeys(mistake.name for mistake in mistaken))
        words = "; ".join(f"{other.metric}: {mistake.words}" for other, mistake in pairs)
        total = sum(other.factors * mistake.weights for other, mistake in pairs)
        yield name, words, total  # type: ignore[misc]


def _shared(others: Sequence[LossTerm]) -> Iterator[tuple[str, str, NDArray[np.float64]]]:
    """What the others would add up to by each mistake that all of them may have."""
    known = [{(m.name, m.words): m for m in mistakes(other.context)} for other in others]
    for key in known[0]:
        if all(key in of_other for of_other in known):
            total = sum(
                other.factors * of_other[key].weights
                for other, of_other in zip(others, known, strict=True)
            )
            yield *key, total  # type: ignore[misc]
