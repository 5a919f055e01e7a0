"""Names the mistake that explains a mismatch.

The most plausible known mistake that predicts the observation is the diagnosis, which also names
the other mistakes that fit. All of them come from the choices that `engine` found. Weights that no
mistake predicts are unexplained, and the diagnosis describes their ratios to the expected weights.
"""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np

from conformance.explain.catalogue import missing_tokens
from conformance.explain.catalogue.mistake import INACTIVE, MISTAKES, Kind, doubt
from conformance.explain.measurement import ObservedWeights
from conformance.findings.cause import UNEXPLAINED
from conformance.findings.finding import ALTERNATIVES, Diagnosis
from reference.aggregation import Mode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from conformance.expected.step_context import StepContext
    from conformance.expected.term import LossTerm
    from conformance.explain.catalogue.mistake import Prediction
    from conformance.explain.engine import Explained
    from conformance.explain.measurement import Measurement
    from reference.arrays import Integers


MOST_ALTERNATIVES = 3
"""The most alternatives that an explanation names, in order of plausibility."""

_order: Callable[[Prediction], int] = attrgetter("order")

OF_A_MEAN = (Kind.FILLED, Kind.UNREDUCED, Kind.READ_OFF)
"""Kinds of mistakes that each auxiliary term may have: in the tokens or the ranks of its mean."""


def diagnose(explained: Explained) -> Diagnosis:
    """Name the mistake that explains an observation; ``unexplained`` if none does."""
    is_one = len(explained.measurement.terms) == 1
    return _term_diagnosis(explained, 0) if is_one else _of_several(explained)


def read_off(explained: Explained) -> list[str]:
    """The names of mistakes that have no prediction, but show in the numbers of a single term."""
    measurement = explained.measurement
    if not measurement.is_per_token:
        return [] if np.isfinite(measurement.observed).all() else ["not_finite"]
    weights = ObservedWeights(measurement)
    if (whole := _of_whole_step(weights, _alone(explained, 0))) is not None:
        return [whole.name]
    counted = _count(weights)
    return [one.name for one in (*_lost(weights), *([counted] if counted is not None else []))]


def likeliest(of_terms: Iterable[tuple[str, Diagnosis]]) -> Diagnosis:
    """The most plausible diagnosis among terms: predicted mistakes before inferred ones."""
    term, diagnosis = min(of_terms, key=lambda of_term: doubt(of_term[1].name))
    return diagnosis.model_copy(update={"explanation": f"{term}: {diagnosis.explanation}"})


def _first(explanations: list[Diagnosis]) -> Diagnosis:
    """The first diagnosis, with the names of the others; its text names the likeliest of these."""
    first, *others = explanations
    also = list(dict.fromkeys(other.name for other in others if other.name != first.name))
    if not also:
        return first
    told = ", ".join(also[:MOST_ALTERNATIVES])
    return first.model_copy(
        update={"explanation": f"{first.explanation}{ALTERNATIVES}{told}", "also": also}
    )


def _term_diagnosis(explained: Explained, place: int) -> Diagnosis:
    """The diagnosis of one term if all others are right."""
    measurement, known = explained.measurement, _alone(explained, place)
    alone = measurement.of_term(measurement.terms[place])
    if not measurement.is_per_token:
        return _of_sum(alone, known)
    return _of_tokens(ObservedWeights(alone, explained.elsewhere), known)


def _of_sum(measurement: Measurement, known: Iterable[Prediction]) -> Diagnosis:
    """The diagnosis of a logged number of one term."""
    [term], reported = measurement.terms, float(measurement.observed[0])
    if not math.isfinite(reported):
        logged = f"{reported} is reported"
        if term.context.is_skipped:
            words = f"the optimizer step is skipped, and {logged} of it"
            return Diagnosis(name="step_skipped", explanation=words)
        return Diagnosis(name="not_finite", explanation=logged)
    words = f"{reported:.7g} is reported instead of {term.expected:.7g}"
    if dropped := missing_tokens.of_untrained(term.context):
        return dropped.model_copy(update={"explanation": f"{words}: {dropped.explanation}"})
    numbers = {"reported": reported, "expected": term.expected}
    explanations = [
        Diagnosis(name=one.name, explanation=f"{words}: {one.says}", numbers=numbers | one.sizes)
        for one in known
        if one.kind is not Kind.ABSENT
    ]
    name = UNEXPLAINED if reported else "nothing_reported"
    return _first(explanations or [Diagnosis(name=name, explanation=words, numbers=numbers)])


def _alone(explained: Explained, place: int) -> list[Prediction]:
    """The predictions for one term that alone explain the observation, most plausible first."""
    found = [
        one
        for choice in explained.choices
        if not any(choice[:place]) and not any(choice[place + 1 :])
        for one in choice[place]
    ]
    return sorted(found, key=_order)


def _of_tokens(weights: ObservedWeights, known: Sequence[Prediction]) -> Diagnosis:
    """The diagnosis of the weights of one term.

    Wrong derivatives come first, since tokens with a derivative of 0 look like lost tokens.
    """
    if (whole := _of_whole_step(weights, known)) is not None:
        return whole
    explanations = [
        *(Diagnosis(name=it.name, explanation=it.says) for it in known if it.factors is not None),
        *_lost(weights),
        *(_named(weights, one) for one in known if one.factors is None and not _is_lost(one)),
    ]
    return _first(explanations or [_count(weights) or _unexplained(weights)])


def _is_lost(one: Prediction) -> bool:
    """Whether a prediction is about tokens without weight, which `_lost` diagnoses."""
    kinds = {one.kind, *(MISTAKES[name].kind for name in one.together)}
    return not kinds.isdisjoint({Kind.ABSENT, Kind.UNREDUCED, Kind.READ_OFF})


def _lost(weights: ObservedWeights) -> Iterator[Diagnosis]:
    """Yield diagnoses of tokens that are lost or repeated."""
    if not weights.hidden_have_gradient:
        yield from missing_tokens.diagnoses_of_lost(weights)


def _named(weights: ObservedWeights, one: Prediction) -> Diagnosis:
    if one.sizes:
        ratio = weights.middle
        simple = Fraction(ratio).limit_denominator(1000)
        is_simple = abs(float(simple) - ratio) <= 1e-6 * abs(ratio)
        shown = simple if is_simple else f"{ratio:.7g}"
        words = f"every weight is {shown} of the expected one: {one.says}"
        numbers = {"ratio": ratio, **one.sizes}
    else:
        denominators, numbers = _denominators(weights)
        words = f"{one.says}: {denominators}"
    return Diagnosis(name=one.name, explanation=words, numbers=numbers)


def _of_whole_step(weights: ObservedWeights, known: Sequence[Prediction]) -> Diagnosis | None:
    """The diagnosis of a skipped step, of numbers that are not finite, or of dropped samples.

    These diagnoses take precedence over all others; None if none of them applies.
    """
    if weights.context.is_skipped:
        lost = int(weights.context.step.mask.sum())
        words = (
            f"the optimizer step is skipped, as its gradient is NaN or infinite: {lost} active"
            " tokens are not trained on"
        )
        return Diagnosis(name="step_skipped", explanation=words, numbers={"tokens": lost})
    if broken := int((~np.isfinite(weights.observed)).sum()):
        words = f"{broken} tokens weigh NaN or infinity, as after a division by 0"
        return Diagnosis(name="not_finite", explanation=words, numbers={"tokens": broken})
    if dropped := missing_tokens.of_untrained(weights.context):
        return next((one for one in _lost(weights) if one.name == dropped.name), dropped)
    inactive = weights.observed[weights.expected == 0]
    if not (weighed := int(np.count_nonzero(inactive))):
        return None
    name, words = INACTIVE, f"{weighed} masked tokens have a weight"
    if known:
        name, words = known[0].name, f"{known[0].says}: {words}"
    numbers = {"tokens": weighed, "largest": float(np.abs(inactive).max())}
    return Diagnosis(name=name, explanation=words, numbers=numbers)


def _denominators(weights: ObservedWeights) -> tuple[str, dict[str, float]]:
    """The observed and expected denominator of the most wrong token, in words and numbers."""
    worst = int(np.abs(weights.ratios - 1).argmax())
    expected = float(1 / weights.expected[weights.active][worst])
    if weights.ratios[worst] == 0:
        return f"a token weighs nothing that is to be divided by {expected:.7g}", {}
    observed = expected / float(weights.ratios[worst])
    words = f"a token is divided by {observed:.7g} instead of {expected:.7g}"
    return words, {"denominator": observed, "expected_denominator": expected}


def _count(weights: ObservedWeights) -> Diagnosis | None:
    """The diagnosis of a wrong count that explains a common ratio of all weights, if any.

    In `constant` mode the count is another L, else another integer number of tokens or units.
    """
    if weights.hidden_have_gradient:
        return None
    context, ratio = weights.context, weights.common_ratio
    if ratio is None or ratio < 0:  # no count is negative
        return None
    divisor = context.aggregation.divisor
    if divisor is not None:
        used = divisor / ratio
        words = f"the sum is divided by L = {used:.7g} instead of {divisor:.7g}"
        numbers = {"divisor": used, "expected_divisor": divisor}
        return Diagnosis(name="other_divisor", explanation=words, numbers=numbers)
    per_token = context.mode is Mode.TOKEN_MEAN
    right = int(context.counted.sum()) if per_token else context.units
    counted = round(right / ratio)
    if abs(right / ratio - counted) > 2 * weights.tolerance * counted:
        return None
    what = f"{context.mode.removesuffix('_mean')}s"
    words = f"{counted} {what} are counted instead of {right}"
    numbers = {"counted": counted, "expected": right}
    return Diagnosis(name=f"{what}_miscounted", explanation=words, numbers=numbers)


def _unexplained(weights: ObservedWeights) -> Diagnosis:
    ratios = weights.ratios
    if not ratios.size:
        words = "tokens have a gradient, and that of every token must be 0"
        return Diagnosis(name=UNEXPLAINED, explanation=words)
    low, high = float(ratios.min()), float(ratios.max())
    ratio = f"{low:.7g}" if weights.common_ratio else f"{low:.7g} to {high:.7g}"
    words, numbers = _denominators(weights) if ratios.all() else ("some weights are 0", {})
    shown = f"weights are {ratio} times the expected ones, {_pattern(weights)}; {words}"
    numbers = {"lowest_ratio": low, "highest_ratio": high, **numbers}
    return Diagnosis(name=UNEXPLAINED, explanation=shown, numbers=numbers)


def _pattern(weights: ObservedWeights) -> str:
    """The largest parts of the step within which the ratio of weights is constant, in words."""
    if weights.common_ratio:
        return "the same for all tokens"
    for name, part in _parts(weights.context):
        of_active = part[weights.active]
        spread = max(
            float(np.ptp(weights.ratios[of_active == value])) for value in np.unique(of_active)
        )
        if spread <= 2 * weights.tolerance * float(np.abs(weights.ratios).max()):
            return f"one ratio per {name}"
    return "different within samples"


def _parts(context: StepContext) -> Iterator[tuple[str, Integers]]:
    """Yield ways to divide the step into parts, the coarsest first: [tokens] each."""
    placement = context.placement
    if placement is not None:
        yield "rank", placement.dp_rank
        yield "context-parallel slice", placement.dp_rank * context.layout.cp + placement.cp_rank
        yield "micro-batch", placement.micro_batch_number
    yield "group", context.step.groups[context.sample]
    yield "sample", context.sample


def _of_several(explained: Explained) -> Diagnosis:
    """The diagnosis of a sum of several terms; more than one of them may be wrong."""
    measurement = explained.measurement
    for choice in explained.choices:
        wrong = [pair for pair in zip(measurement.terms, choice, strict=True) if pair[1]]
        if len(wrong) == 1 and any(one.kind is Kind.ABSENT for one in wrong[0][1]):
            return _absent(wrong[0][0].metric, measurement)
    of_terms = [(term, _term_diagnosis(explained, n)) for n, term in enumerate(measurement.terms)]
    possible = [one for one in of_terms if not _is_of_others(*one, measurement)] or of_terms
    alone = likeliest((term.metric, diagnosis) for term, diagnosis in possible)
    # A gradient at tokens that one term masks may belong to another term.
    if alone.name not in (UNEXPLAINED, INACTIVE):
        return alone
    return _lost_in_all(measurement) or _shared(explained) or alone


def _is_of_others(term: LossTerm, diagnosis: Diagnosis, measurement: Measurement) -> bool:
    """Whether masked tokens seem to weigh in a term, although they have no gradient at all."""
    if diagnosis.name != INACTIVE or not measurement.is_per_token:
        return False
    return not measurement.observed[term.context.expected == 0].any()


def _absent(term: str, measurement: Measurement) -> Diagnosis:
    """The diagnosis of a sum that lacks one term and is otherwise right."""
    if measurement.is_per_token:
        words = f"the {term} term reaches no gradient: no token's weight has a share of it"
        return Diagnosis(name="term_without_gradient", explanation=words)
    return Diagnosis(name="term_left_out", explanation=f"the term {term} is left out of the loss")


def _lost_in_all(measurement: Measurement) -> Diagnosis | None:
    """The diagnosis of tokens without any gradient, if all other gradients are right."""
    active = np.not_equal(measurement.expected, 0)
    gone = active & np.equal(measurement.observed, 0)
    if not measurement.is_per_token or not gone.any():
        return None
    off = np.abs(measurement.observed - np.where(gone, 0, measurement.expected))
    if (off > measurement.tolerance * measurement.magnitude).any():
        return None
    return next(missing_tokens.of_lost_tokens(measurement.terms[0], gone, active), None)


def _shared(explained: Explained) -> Diagnosis | None:
    """The diagnosis of mistakes in several terms, the most plausible combination.

    Auxiliary losses often share code in a framework and therefore a mistake. Most plausible is that
    they share a mistake and the policy loss is right. Next, each has a mistake in its mean. Last,
    the policy loss is wrong too, by the same mistake or by another.
    """
    terms = explained.measurement.terms
    found = chain.from_iterable(_shared_in(terms, choice) for choice in explained.choices)
    best = min(found, key=lambda one: one[0], default=None)
    return None if best is None else best[1]


def _shared_in(
    terms: Sequence[LossTerm], choice: Sequence[Sequence[Prediction]]
) -> Iterator[tuple[tuple[int, ...], Diagnosis]]:
    """Yield diagnoses of a choice of mistakes for the policy loss and each auxiliary term.

    Each diagnosis comes with a sort key, which is smaller for a more plausible one.
    """
    own, *of_others = choice
    shared = _common(of_others)
    if shared is not None and not own:
        yield (0, shared.order), _term_mistakes([(terms[1:], shared)])
    averaged = [[one for one in found if one.kind in OF_A_MEAN] for found in of_others]
    if not own and all(averaged):
        firsts = [min(found, key=_order) for found in averaged]
        parts = [([term], one) for term, one in zip(terms[1:], firsts, strict=True)]
        yield (1, *map(_order, firsts)), _term_mistakes(parts)
    wrong = [pair for pair in zip(terms, choice, strict=True) if pair[1]]
    if own and 1 < len(wrong) < len(terms):
        common = _common([found for _, found in wrong])
        if common is not None:
            yield (2, common.order), _term_mistakes([([term for term, _ in wrong], common)])
    mistaken = [one for one in own if not _is_lost(one) and one.factors is None]
    if shared is not None and mistaken:
        first = min(mistaken, key=_order)
        both = _term_mistakes([(terms[1:], shared), (terms[:1], first)])
        yield (3, first.order, shared.order), both.model_copy(update={"name": shared.name})


def _term_mistakes(mistakes: Sequence[tuple[Sequence[LossTerm], Prediction]]) -> Diagnosis:
    """The diagnosis that combines several mistakes, each with the terms that have it."""
    return Diagnosis(
        name="_and_".join(dict.fromkeys(one.name for _, one in mistakes)),
        explanation="; ".join(
            f"{' and '.join(term.metric for term in terms)}: {one.says}" for terms, one in mistakes
        ),
    )


def _common(of_terms: Sequence[Sequence[Prediction]]) -> Prediction | None:
    """The most plausible mistake that all of the given terms may have; None if there is none."""
    first, *others = of_terms
    known = [{(one.name, one.says) for one in found} for found in others]
    shared = (
        one
        for one in first
        if not _is_lost(one)
        and one.kind is not Kind.LOGGED
        and all((one.name, one.says) in names for names in known)
    )
    return min(shared, key=_order, default=None)
