"""Names the mistake that explains wrong weights.

Each known mistake predicts the weights it would give. The first whose prediction lies within the
bound of every active token is the diagnosis: a size of the layout before another way of counting,
and that before a size of the step, which small steps hit by chance. Those that explain as much are
named with it. Weights that none predicts are said to be unexplained, with the pattern of their
ratios to the expected ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from conformance.report import Diagnosis
from reference.aggregation import Aggregation, Conventions, EmptyUnits, Mode, SampleUnit
from reference.weights import token_weights

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from adapters.contract import Layout
    from reference.step import Step


@dataclass(frozen=True, kw_only=True, eq=False)
class Evidence:
    """Weights [response tokens of the step], expected and observed, and how they came about."""

    step: Step
    aggregation: Aggregation
    conventions: Conventions
    layout: Layout
    expected: NDArray[np.float64]
    observed: NDArray[np.float64]
    tolerance: float

    @cached_property
    def active(self) -> NDArray[np.bool_]:
        """Tokens whose weight is to differ from 0."""
        return np.not_equal(self.expected, 0)

    @cached_property
    def ratios(self) -> NDArray[np.float64]:
        """Observed over expected, on the active tokens."""
        return self.observed[self.active] / self.expected[self.active]

    @cached_property
    def common_ratio(self) -> float | None:
        """The one ratio of all active tokens, if there is one and it is not 0."""
        if not self.ratios.size:
            return None
        middle = float(np.median(self.ratios))
        same = np.abs(self.ratios - middle) <= 2 * self.tolerance * abs(middle)
        return middle if middle and same.all() else None

    def matches(self, predicted: NDArray[np.float64]) -> bool:
        """Whether a prediction explains every active token."""
        observed, predicted = self.observed[self.active], predicted[self.active]
        return bool((np.abs(observed - predicted) <= self.tolerance * np.abs(predicted)).all())


def diagnose(evidence: Evidence) -> Diagnosis:
    """Name the mistake, or say that none is known."""
    for fault in (_not_finite, _inactive_tokens):
        diagnosis = fault(evidence)
        if diagnosis is not None:
            return diagnosis
    first, *others = [*_explanations(evidence)] or [_other_divisor(evidence)]
    if not others:
        return first
    names = ", ".join(other.name for other in others)
    return first.model_copy(update={"explanation": f"{first.explanation}; or it is {names}"})


def _explanations(evidence: Evidence) -> Iterator[Diagnosis]:
    """Every known mistake that predicts the weights."""
    yield from _tokens_lost(evidence)
    yield from _layout_factor(evidence)
    yield from _undivided(evidence)
    yield from _wrong_counts(evidence)
    yield from _step_factor(evidence)


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
    inactive = evidence.observed[~evidence.active]
    weighed = int(np.count_nonzero(inactive))
    if not weighed:
        return None
    return Diagnosis(
        name="inactive_tokens_weigh",
        explanation=f"{weighed} tokens that the mask excludes have a weight",
        numbers={"tokens": weighed, "largest": float(np.abs(inactive).max())},
    )


def _tokens_lost(evidence: Evidence) -> Iterator[Diagnosis]:
    """Some active tokens weigh nothing and all others what they should."""
    lost = evidence.active & np.equal(evidence.observed, 0)
    if lost.any() and evidence.matches(np.where(lost, 0, evidence.expected)):
        sample = np.repeat(np.arange(evidence.step.size), evidence.step.response_lengths)
        samples = len(np.unique(sample[lost]))
        yield Diagnosis(
            name="tokens_lost",
            explanation=(
                f"{lost.sum()} active tokens of {samples} samples weigh nothing,"
                " all others are right: their gradient was lost"
            ),
            numbers={"tokens": int(lost.sum()), "samples": samples},
        )


def _undivided(evidence: Evidence) -> Iterator[Diagnosis]:
    """Every token weighs 1, or what averaging over ranks or micro-batches makes of 1."""
    for name, size in {"nothing": 1, **_layout_sizes(evidence)}.items():
        if (name == "nothing" or size > 1) and evidence.matches(evidence.active / size):
            words, numbers = _denominators(evidence)
            averaged = "" if name == "nothing" else f", but for an average over {name} = {size}"
            yield Diagnosis(
                name="not_divided",
                explanation=f"token losses are added up and not divided{averaged}: {words}",
                numbers=numbers,
            )
            return


def _layout_sizes(evidence: Evidence) -> dict[str, int]:
    layout = evidence.layout
    sizes = {"dp": layout.dp, "cp": layout.cp}
    if layout.dp > 1 and layout.cp > 1:
        sizes["dp_cp"] = layout.dp * layout.cp
    if isinstance(layout.micro_batches, int):
        sizes["micro_batches"] = layout.micro_batches
    return sizes


def _step_sizes(evidence: Evidence) -> dict[str, int]:
    step = evidence.step
    rollouts = [len(np.unique(step.rollouts[step.groups == g])) for g in np.unique(step.groups)]
    return {"group_size": max(rollouts), "prompts": len(rollouts), "samples": step.size}


def _layout_factor(evidence: Evidence) -> Iterator[Diagnosis]:
    """A factor that is a size of the layout, and perhaps one of the step as well."""
    layout_sizes = _layout_sizes(evidence)
    for verb, hits in _factors(evidence, layout_sizes | _step_sizes(evidence)):
        if layout_sizes.keys() & hits.keys():
            yield _scaled(evidence, verb, hits)


def _step_factor(evidence: Evidence) -> Iterator[Diagnosis]:
    """A factor that is a size of the step and none of the layout."""
    layout_sizes = _layout_sizes(evidence)
    for verb, hits in _factors(evidence, layout_sizes | _step_sizes(evidence)):
        if not layout_sizes.keys() & hits.keys():
            yield _scaled(evidence, verb, hits)


def _factors(evidence: Evidence, sizes: dict[str, int]) -> Iterator[tuple[str, dict[str, int]]]:
    """Whether all weights are divided or multiplied, and the sizes that are just so large."""
    ratio = evidence.common_ratio
    if ratio is None:
        return
    for verb, target in (("divided", 1 / ratio), ("multiplied", ratio)):
        margin = 2 * evidence.tolerance * target
        hits = {
            name: size for name, size in sizes.items() if size > 1 and abs(target - size) <= margin
        }
        if hits:
            yield verb, hits


def _scaled(evidence: Evidence, verb: str, hits: dict[str, int]) -> Diagnosis:
    assert evidence.common_ratio is not None
    return Diagnosis(
        name=f"{verb}_by_{'_or_'.join(hits)}",
        explanation=(
            f"every weight is {_fraction(evidence.common_ratio)} of the expected one:"
            f" {verb} once too often by {' or '.join(hits)} = {max(hits.values())}"
        ),
        numbers={"ratio": evidence.common_ratio, **hits},
    )


def _wrong_counts(evidence: Evidence) -> Iterator[Diagnosis]:
    """Tokens, samples or groups counted in another way."""
    for name, explanation, predicted in _counts(evidence):
        if evidence.matches(predicted):
            words, numbers = _denominators(evidence)
            yield Diagnosis(name=name, explanation=f"{explanation}: {words}", numbers=numbers)


def _denominators(evidence: Evidence) -> tuple[str, dict[str, float]]:
    """What the token that is most off was divided by, and what it should have been."""
    worst = int(np.abs(evidence.ratios - 1).argmax())
    expected = float(1 / evidence.expected[evidence.active][worst])
    observed = expected / float(evidence.ratios[worst])
    words = f"a token is divided by {observed:.7g} instead of {expected:.7g}"
    return words, {"denominator": observed, "expected_denominator": expected}


def _counts(evidence: Evidence) -> Iterator[tuple[str, str, NDArray[np.float64]]]:
    """What other ways of counting are called, and the weights they would give.

    The mode itself with other counts comes first: it is the smaller mistake.
    """
    step, aggregation, conventions = evidence.step, evidence.aggregation, evidence.conventions
    if aggregation.mode is not Mode.CONSTANT:
        counted = np.maximum(step.active_tokens, 1)
        words = "a sample without active tokens is counted as one token"
        yield "empty_samples_counted", words, _with_counts(evidence, counted)
        words = "masked tokens are counted"
        yield "masked_tokens_counted", words, _with_counts(evidence, step.response_lengths)
        words = "padding up to the longest response is counted"
        widest = np.full(step.size, step.response_lengths.max())
        yield "padding_counted", words, _with_counts(evidence, widest)
    for mode in Mode:
        if mode not in (aggregation.mode, Mode.CONSTANT):
            weights = token_weights(step, Aggregation(mode), conventions)
            yield f"weights_of_{mode}", f"these are the weights of {mode}", weights
    for unit in SampleUnit:
        for empty in EmptyUnits:
            other = Conventions(sample_unit=unit, empty_units=empty)
            if other != conventions:
                weights = token_weights(step, aggregation, other)
                words = f"{unit}s are the units and empty ones are {empty}"
                yield f"{unit}_units_{empty}", words, weights


def _with_counts(evidence: Evidence, counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """The mode's weights if its samples had so many tokens: units · tokens of the unit."""
    step = evidence.step
    if evidence.aggregation.mode is Mode.TOKEN_MEAN:
        unit = np.zeros(step.size, np.int64)
    elif evidence.aggregation.mode is Mode.PROMPT_MEAN:
        unit = np.unique(step.groups, return_inverse=True)[1]
    else:
        unit = np.arange(step.size)
    tokens = np.bincount(unit, weights=counts)
    return np.repeat((1 / (len(tokens) * tokens))[unit], step.response_lengths) * step.mask


def _other_divisor(evidence: Evidence) -> Diagnosis:
    """`constant` with another divisor than the one asked for, if all weights have one factor."""
    divisor, ratio = evidence.aggregation.divisor, evidence.common_ratio
    if divisor is None or ratio is None:
        return _unexplained(evidence)
    used = divisor / ratio
    return Diagnosis(
        name="other_divisor",
        explanation=f"the sum is divided by L = {used:.10g} instead of {divisor:.10g}",
        numbers={"divisor": used, "expected_divisor": divisor},
    )


def _unexplained(evidence: Evidence) -> Diagnosis:
    ratios = evidence.ratios
    if not ratios.size:
        return Diagnosis(name="unexplained", explanation="no token is active, and some weigh")
    low, high = float(ratios.min()), float(ratios.max())
    ratio = f"{low:.7g}" if evidence.common_ratio else f"{low:.7g} to {high:.7g}"
    words, numbers = _denominators(evidence) if ratios.all() else ("some weights are 0", {})
    return Diagnosis(
        name="unexplained",
        explanation=f"weights are {ratio} times the expected ones, {_pattern(evidence)}; {words}",
        numbers={"lowest_ratio": low, "highest_ratio": high} | numbers,
    )


def _pattern(evidence: Evidence) -> str:
    """Over what the ratios are constant."""
    if evidence.common_ratio:
        return "the same for all tokens"
    sample = np.repeat(np.arange(evidence.step.size), evidence.step.response_lengths)
    for name, unit in (("group", evidence.step.groups[sample]), ("sample", sample)):
        of_active = unit[evidence.active]
        spread = max(
            float(np.ptp(evidence.ratios[of_active == value])) for value in np.unique(of_active)
        )
        if spread <= 2 * evidence.tolerance * float(np.abs(evidence.ratios).max()):
            return f"one ratio per {name}"
    return "different within samples"


def _fraction(ratio: float) -> str:
    simple = Fraction(ratio).limit_denominator(1000)
    return str(simple) if abs(float(simple) - ratio) <= 1e-6 * abs(ratio) else f"{ratio:.7g}"
