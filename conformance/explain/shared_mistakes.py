"""Diagnoses a loss with several wrong terms.

Auxiliary losses often share one path through a framework: entropy and divergence then have the same
mistake, and the policy loss is right or has another one. Or one of them is a part of each token's
loss, and shares the policy loss's mistake. Or the policy loss is right, and each
auxiliary loss counts padding or leaves out other ranks in its own way.
"""

from __future__ import annotations

from itertools import chain, product
from typing import TYPE_CHECKING

import numpy as np

from conformance.explain.catalogue.missing_tokens import shares
from conformance.explain.catalogue.parts import filled_up
from conformance.explain.catalogue.predictions import predictions
from conformance.findings.finding import Diagnosis

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from conformance.expected.term import LossTerm


def diagnose_shared_mistake(
    policy: LossTerm, others: Sequence[LossTerm], matches: Callable[[NDArray[np.float64]], bool]
) -> Diagnosis | None:
    """The mistake that terms share, or one mistake of each, if it explains the sum.

    It may be shared by all ``others``; the policy loss is right if that explains the sum. Else it
    shares the mistake of those that are aggregated with it, or has one besides that of the others.
    ``matches`` says whether the predicted sum of all terms, [tokens], explains the observation.
    """
    shared = [*_shared(others)]
    right, *mistaken = _alternatives(policy)
    of_right = ((right, wrong) for wrong in chain(shared, _apart(others)))
    nothing = np.zeros_like(policy.products)
    together = ((("", nothing), wrong) for wrong in _with_policy_loss(policy, others))
    of_both = product(mistaken, shared)
    for (own_words, own), (name, words, wrong) in chain(of_right, together, of_both):
        if matches(own + wrong):
            explanation = f"{words}; {policy.metric}: {own_words}" if own_words else words
            return Diagnosis(name=name, explanation=explanation)
    return None


def _with_policy_loss(
    policy: LossTerm, others: Sequence[LossTerm]
) -> Iterator[tuple[str, str, NDArray[np.float64]]]:
    """Yield the sum of all terms for each mistake of those aggregated as the policy loss is."""
    together = [other for other in others if other.context == policy.context]
    apart = [other.products for other in others if other.context != policy.context]
    if together and apart:
        for name, words, wrong in _shared([policy, *together]):
            yield name, words, wrong + sum(apart)


def _alternatives(term: LossTerm) -> Iterator[tuple[str, NDArray[np.float64]]]:
    """Yield the products of a term if it is right, and with each known mistake."""
    yield "", term.products
    for mistake in predictions(term.context):
        yield mistake.says, term.factors * mistake.weights


def _apart(others: Sequence[LossTerm]) -> Iterator[tuple[str, str, NDArray[np.float64]]]:
    """Yield the sum of the others for each combination of mistakes in what they average."""
    own = [[*filled_up(other.context), *shares(other.context)] for other in others]
    for mistaken in product(*own):
        pairs = [*zip(others, mistaken, strict=True)]
        name = "_and_".join(dict.fromkeys(mistake.name for mistake in mistaken))
        words = "; ".join(f"{other.metric}: {mistake.says}" for other, mistake in pairs)
        total = sum(other.factors * mistake.weights for other, mistake in pairs)
        yield name, words, total  # type: ignore[misc]


def _shared(others: Sequence[LossTerm]) -> Iterator[tuple[str, str, NDArray[np.float64]]]:
    """Yield the sum of the others for each mistake that all of them may share."""
    terms = " and ".join(other.metric for other in others)
    known = [{(m.name, m.says): m for m in predictions(other.context)} for other in others]
    for name, words in known[0]:
        if all((name, words) in of_other for of_other in known):
            total = sum(
                other.factors * of_other[name, words].weights
                for other, of_other in zip(others, known, strict=True)
            )
            yield name, f"{terms}: {words}", total  # type: ignore[misc]
