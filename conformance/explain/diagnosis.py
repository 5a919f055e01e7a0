"""Names the mistake that explains a wrong result.

Each known mistake predicts weights. The first whose prediction is within the bound of every active
token is the diagnosis; others that fit as well are named with it. Weights that no mistake predicts
are unexplained, and the diagnosis describes their ratios to the expected ones. The same mistakes
predict logged numbers.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from adapters.contract import CodeLocation
from conformance.explain.catalogue import missing_tokens
from conformance.explain.catalogue.mistake import MISTAKES, Kind
from conformance.explain.catalogue.predictions import (
    predictions,
    predictions_of_factors,
    predictions_of_sums,
)
from conformance.findings.finding import Diagnosis
from conformance.findings.verdict import Check
from reference.aggregation import Mode

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from conformance.expected.step_context import StepContext
    from conformance.explain.catalogue.mistake import Prediction
    from conformance.explain.evidence import Evidence, ReportedEvidence
    from conformance.plan.checks import CheckSpec


MOST_ALTERNATIVES = 3
"""Alternatives that an explanation names, the most plausible ones as `mistakes` orders them."""


def diagnose(evidence: Evidence) -> Diagnosis:
    """Name the mistake that explains weights; ``unexplained`` if none does."""
    for fault in READ_OFF:
        diagnosis = fault(evidence)
        if diagnosis is not None:
            return diagnosis
    return _first([*_explanations(evidence)] or [_inferred(evidence) or _unexplained(evidence)])


def read_off(evidence: Evidence) -> list[str]:
    """Names of the mistakes that weights show of themselves, and which nothing predicts."""
    for fault in READ_OFF:
        diagnosis = fault(evidence)
        if diagnosis is not None:
            return [diagnosis.name]
    lost = () if evidence.hidden_have_gradient else _missing(evidence)
    counted = _inferred(evidence)
    return [one.name for one in (*lost, *([counted] if counted is not None else []))]


def diagnose_reported(evidence: ReportedEvidence) -> Diagnosis:
    """Name the mistake that explains a logged number; ``unexplained`` if none does."""
    term, context = evidence.term, evidence.term.context
    words = f"{evidence.reported:.7g} is reported instead of {term.expected:.7g}"
    numbers = {"reported": evidence.reported, "expected": term.expected}
    if not math.isfinite(evidence.reported):
        logged = f"{evidence.reported} is reported"
        if context.is_skipped:
            words = f"the optimizer step is skipped, and {logged} of it"
            return Diagnosis(name="step_skipped", explanation=words)
        return Diagnosis(name="not_finite", explanation=logged)
    explanations = [
        Diagnosis(
            name=mistake.name,
            explanation=f"{words}: {mistake.says}",
            numbers=numbers | mistake.sizes,
        )
        for mistake in predictions_of_sums(context)
        if evidence.matches(mistake.weights)
    ]
    explanations += [
        Diagnosis(name=wrong.name, explanation=f"{words}: {wrong.says}", numbers=numbers)
        for wrong in predictions_of_factors(term)
        if evidence.is_sum_of(wrong.products(term))
    ]
    name = "unexplained" if evidence.reported else "nothing_reported"
    return _first(explanations or [Diagnosis(name=name, explanation=words, numbers=numbers)])


def likeliest(of_terms: Iterable[tuple[str, Diagnosis]]) -> Diagnosis:
    """The most plausible diagnosis among terms: a known mistake before an inferred count."""

    def doubt(of_term: tuple[str, Diagnosis]) -> int:
        name = of_term[1].name
        is_counted = name in MISTAKES and MISTAKES[name].kind is Kind.COUNT
        return 2 if name in ("unexplained", "nothing_reported") else int(is_counted)

    term, diagnosis = min(of_terms, key=doubt)
    return diagnosis.model_copy(update={"explanation": f"{term}: {diagnosis.explanation}"})


def place(spec: CheckSpec, mode: Mode, diagnosis: Diagnosis) -> CodeLocation | None:
    """Where in a framework a mistake must have been made; None if it may be in several places.

    A factor may be anywhere between the loss and the optimizer, and a number that is logged wrongly
    anywhere between the micro-batch and the log. Only in `token_mean` are tokens counted once.
    """
    if spec.check is Check.SHARDING:
        return CodeLocation.SHARDING
    at = MISTAKES[diagnosis.name].at if diagnosis.name in MISTAKES else None
    if (at is CodeLocation.ARGUMENTS) is not (spec.check is Check.ARGUMENTS):
        return None
    of_any_mode = (CodeLocation.ARGUMENTS, CodeLocation.REDUCTION)
    is_told = spec.metric is None and (mode is Mode.TOKEN_MEAN or at in of_any_mode)
    return at if is_told else None


def left_out(term: str) -> Diagnosis:
    """The diagnosis of a sum that lacks one term and is right otherwise."""
    return Diagnosis(name="term_left_out", explanation=f"the term {term} is left out of the loss")


def without_gradient(term: str) -> Diagnosis:
    """The diagnosis of a term that has no gradient."""
    words = f"the {term} term reaches no gradient: no token's weight has a share of it"
    return Diagnosis(name="term_without_gradient", explanation=words)


def _first(explanations: list[Diagnosis]) -> Diagnosis:
    """The first explanation, with the names of the others; its text names the likeliest of them."""
    first, *others = explanations
    also = list(dict.fromkeys(other.name for other in others if other.name != first.name))
    if not also:
        return first
    told = ", ".join(also[:MOST_ALTERNATIVES])
    return first.model_copy(
        update={"explanation": f"{first.explanation}; or it is {told}", "also": also}
    )


def _explanations(evidence: Evidence) -> Iterator[Diagnosis]:
    """Yield every known mistake that predicts the weights.

    A wrong derivative comes first: tokens that have none seem to be lost.
    """
    for wrong in evidence.wrong_factors:
        if evidence.is_close_to(wrong.weights):
            yield Diagnosis(name=wrong.name, explanation=wrong.says)
    if not evidence.hidden_have_gradient:
        yield from _missing(evidence)
        for mistake in predictions(evidence.context):
            if evidence.matches(mistake.weights) and not _gives_inactive(evidence, mistake):
                yield _named(evidence, mistake)


def _missing(evidence: Evidence) -> Iterator[Diagnosis]:
    return missing_tokens.diagnoses(
        evidence.context,
        evidence.observed,
        evidence.active,
        evidence.matches,
        elsewhere=evidence.elsewhere,
    )


def _named(evidence: Evidence, mistake: Prediction) -> Diagnosis:
    if mistake.sizes:
        assert evidence.common_ratio is not None
        ratio = _fraction(evidence.common_ratio)
        words = f"every weight is {ratio} of the expected one: {mistake.says}"
        numbers = {"ratio": evidence.common_ratio, **mistake.sizes}
    else:
        denominators, numbers = _denominators(evidence)
        words = f"{mistake.says}: {denominators}"
    return Diagnosis(name=mistake.name, explanation=words, numbers=numbers)


def _skipped(evidence: Evidence) -> Diagnosis | None:
    if not evidence.context.is_skipped:
        return None
    lost = int(evidence.context.step.mask.sum())
    return Diagnosis(
        name="step_skipped",
        explanation=f"the optimizer step is skipped, as its gradient is NaN or infinite: {lost}"
        " active tokens are not trained on",
        numbers={"tokens": lost},
    )


def _not_finite(evidence: Evidence) -> Diagnosis | None:
    broken = int((~np.isfinite(evidence.observed)).sum())
    if not broken:
        return None
    return Diagnosis(
        name="not_finite",
        explanation=f"{broken} tokens weigh NaN or infinity: a denominator of 0 was divided by",
        numbers={"tokens": broken},
    )


def _inactive_tokens(evidence: Evidence) -> Diagnosis | None:
    inactive = evidence.observed[evidence.expected == 0]
    weighed = int(np.count_nonzero(inactive))
    if not weighed:
        return None
    name, words = "inactive_tokens_weigh", f"{weighed} tokens that the mask excludes have a weight"
    for mistake in predictions(evidence.context):
        if _gives_inactive(evidence, mistake) and evidence.is_all_of(mistake.weights):
            name, words = mistake.name, f"{mistake.says}: {words}"
            break
    return Diagnosis(
        name=name,
        explanation=words,
        numbers={"tokens": weighed, "largest": float(np.abs(inactive).max())},
    )


def _gives_inactive(evidence: Evidence, mistake: Prediction) -> bool:
    """Whether a mistake gives tokens a weight that are to have none."""
    return bool(mistake.weights[evidence.expected == 0].any())


READ_OFF = (_skipped, _not_finite, _inactive_tokens)
"""What is the matter whatever else is wrong, in this order."""


def _denominators(evidence: Evidence) -> tuple[str, dict[str, float]]:
    """Observed and expected denominator of the token that is most wrong, in words and numbers."""
    worst = int(np.abs(evidence.ratios - 1).argmax())
    expected = float(1 / evidence.expected[evidence.active][worst])
    if evidence.ratios[worst] == 0:
        return f"a token weighs nothing that is to be divided by {expected:.7g}", {}
    observed = expected / float(evidence.ratios[worst])
    words = f"a token is divided by {observed:.7g} instead of {expected:.7g}"
    return words, {"denominator": observed, "expected_denominator": expected}


def _inferred(evidence: Evidence) -> Diagnosis | None:
    """The count that would explain a common ratio of all weights, if any.

    For `constant` it is another L, otherwise another integer number of tokens or units.
    """
    context, ratio = evidence.context, evidence.common_ratio
    if ratio is None or evidence.hidden_have_gradient:
        return None
    divisor = context.aggregation.divisor
    if divisor is not None:
        used = divisor / ratio
        return Diagnosis(
            name="other_divisor",
            explanation=f"the sum is divided by L = {used:.7g} instead of {divisor:.7g}",
            numbers={"divisor": used, "expected_divisor": divisor},
        )
    per_token = context.mode is Mode.TOKEN_MEAN
    right = int(context.counted.sum()) if per_token else context.units
    counted = round(right / ratio)
    if abs(right / ratio - counted) > 2 * evidence.tolerance * counted:
        return None
    what = f"{context.mode.removesuffix('_mean')}s"
    return Diagnosis(
        name=f"{what}_miscounted",
        explanation=f"{counted} {what} are counted instead of {right}",
        numbers={"counted": counted, "expected": right},
    )


def _unexplained(evidence: Evidence) -> Diagnosis:
    ratios = evidence.ratios
    low, high = float(ratios.min()), float(ratios.max())
    ratio = f"{low:.7g}" if evidence.common_ratio else f"{low:.7g} to {high:.7g}"
    words, numbers = _denominators(evidence) if ratios.all() else ("some weights are 0", {})
    return Diagnosis(
        name="unexplained",
        explanation=f"weights are {ratio} times the expected ones, {_pattern(evidence)}; {words}",
        numbers={"lowest_ratio": low, "highest_ratio": high} | numbers,
    )


def _pattern(evidence: Evidence) -> str:
    """The largest parts of the step within which the ratio is constant."""
    if evidence.common_ratio:
        return "the same for all tokens"
    for name, part in _parts(evidence.context):
        of_active = part[evidence.active]
        spread = max(
            float(np.ptp(evidence.ratios[of_active == value])) for value in np.unique(of_active)
        )
        if spread <= 2 * evidence.tolerance * float(np.abs(evidence.ratios).max()):
            return f"one ratio per {name}"
    return "different within samples"


def _parts(context: StepContext) -> Iterator[tuple[str, NDArray[np.int64]]]:
    """Yield ways to divide the step into parts, the coarsest first: [tokens] each."""
    placement = context.placement
    if placement is not None:
        yield "rank", placement.dp_rank
        yield "context-parallel slice", placement.dp_rank * context.layout.cp + placement.cp_rank
        yield "micro-batch", placement.micro_batch_number
    yield "group", context.step.groups[context.sample]
    yield "sample", context.sample


def _fraction(ratio: float) -> str:
    simple = Fraction(ratio).limit_denominator(1000)
    return str(simple) if abs(float(simple) - ratio) <= 1e-6 * abs(ratio) else f"{ratio:.7g}"
