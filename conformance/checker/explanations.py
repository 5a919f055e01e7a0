"""Explains what the probe's gradient shows of an adapter, given samples of equal weight.

The advantages of tokens are known and differ, so that a gradient that was not divided by them, one
of another token and one of a clipped ratio can be told apart.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from conformance.checker.words import WORDS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from adapters.contract import Job, Observation
    from conformance.checker.jobs import StepWeights
    from reference.step import Step

    Array = NDArray[np.float64]
    Chosen = NDArray[np.bool_]

MEASURED = 2.0**-16
"""The largest relative difference of numbers that are taken to be equal: float32 after a softmax
over some thousand tokens."""

SHOWN = 4
"""How many tokens a flaw names."""


@dataclass(frozen=True)
class Flaw:
    """What an adapter got wrong: its name in `WORDS`, and the numbers that these need."""

    name: str
    numbers: Mapping[str, object] = field(default_factory=dict)

    @property
    def words(self) -> str:
        """What the author is told."""
        return WORDS[self.name].format(**self.numbers)


def explain_shapes(job: Job, observation: Observation) -> Flaw | None:
    """Which field of an observation has other arrays than one of every token for each step."""
    right = [len(step.mask) for step in job.steps]
    shapes_of = {
        name: [np.shape(array) for array in getattr(observation, name)]
        for name in ("token_weights", "forward_passes")
    }
    for name, shapes in shapes_of.items():
        if (shapes or name == "token_weights") and shapes != [(tokens,) for tokens in right]:
            return Flaw("wrong_shape", {"field": name, "right": right, "shapes": shapes})
    return None


def explain_weights(weights: StepWeights) -> Flaw | None:
    """The first flaw that explains all weights of a step; None if they are right."""
    if weights.are_right:
        return None
    divided = replace(weights, observed=weights.observed / weights.dloss_dlogprob)
    if (flaw := _first(weights)) is None and _first(divided) is not None:
        return Flaw("gradients_returned")  # and something else, which comes to light after it
    return flaw or _unexplained(weights)


def _first(weights: StepWeights) -> Flaw | None:
    """The first explanation that holds."""
    found = (flaw for explain in EXPLANATIONS if (flaw := explain(weights)))
    return next(found, None)


def factor(observed: Array, expected: Array) -> float | None:
    """The number by which all expected values were multiplied; None if none was, or 0."""
    used = expected != 0
    ratios = observed[used] / expected[used]
    common = float(np.median(ratios))
    is_common = np.abs(ratios - common).max(initial=0.0) <= MEASURED * abs(common)
    return common if common and is_common and not observed[~used].any() else None


def _not_finite(weights: StepWeights) -> Flaw | None:
    strange = ~np.isfinite(weights.observed)
    return Flaw("not_finite", {"tokens": _tokens(strange, weights)}) if strange.any() else None


def _no_gradient(weights: StepWeights) -> Flaw | None:
    return None if weights.observed.any() else Flaw("no_gradient")


def _gradients(weights: StepWeights) -> Flaw | None:
    """Weights that were not divided by the derivative of the loss."""
    found = factor(weights.observed, weights.expected_gradient)
    return None if found is None else Flaw("gradients_returned")


def _scaled(weights: StepWeights) -> Flaw | None:
    """Weights that are all off by one factor."""
    common = factor(weights.observed, weights.expected)
    if common is None or common < 0:
        return None if common is None else Flaw("wrong_sign")
    tokens = _whole(1 / (1 - common), weights) if 0 < common < 1 else None
    if tokens is None:
        return Flaw("factor", {"factor": common})
    return Flaw("derivative_not_one", {"factor": common, "vocabulary": tokens})


def _shifted(weights: StepWeights) -> Flaw | None:
    """Gradients of the token after or before."""
    seen, right = weights.gradient, weights.expected_gradient
    responses = list(weights.step.responses)
    first, last = slice(None, -1), slice(1, None)
    for way, mine, other in (("after", first, last), ("before", last, first)):
        observed = np.concatenate([seen[one][mine] for one in responses])
        expected = np.concatenate([right[one][other] for one in responses])
        if factor(observed, expected) is not None:
            return Flaw("probe_of_another_token", {"way": way})
    return None


def _clipped(weights: StepWeights) -> Flaw | None:
    """Weights of 0 where advantages have one sign, and one factor where they have the other."""
    positive = weights.dloss_dlogprob < 0
    for clipped, trained in (("negative", positive), ("positive", ~positive)):
        common = factor(weights.observed[trained], weights.expected[trained])
        if common is not None and common > 0 and not weights.observed[~trained].any():
            softmax = _softmax_words(common, weights)
            numbers = {"difference": math.log(common), "softmax": softmax, "clipped": clipped}
            return Flaw("ratio_not_one", {"factor": common, **numbers})
    return None


def _softmax_words(slope: float, weights: StepWeights) -> str:
    """Names the plain softmax with a ratio of 1/V and a derivative of 1 - 1/V, if there is one."""
    if slope >= 1 / 4:
        return ""
    tokens = _whole((1 + math.sqrt(1 - 4 * slope)) / (2 * slope), weights)
    return f" (a plain softmax over {tokens} tokens gives 1/{tokens})" if tokens else ""


def _whole(tokens: float, weights: StepWeights) -> int | None:
    """The size of a vocabulary, if it is a whole number that can be one of the job's."""
    if not weights.vocabulary <= tokens < 1 / MEASURED:
        return None
    return round(tokens) if abs(tokens - round(tokens)) <= tokens * MEASURED else None


def _whole_probe(weights: StepWeights) -> Flaw | None:
    """A further gradient that is the same for all tokens, active or not."""
    further = weights.gradient - weights.expected_gradient
    is_equal = np.ptp(further) <= MEASURED * np.abs(weights.expected_gradient).max()
    return Flaw("depends_on_the_whole_probe") if is_equal and further.all() else None


EXPLANATIONS: Sequence[Callable[[StepWeights], Flaw | None]] = (
    _not_finite,
    _no_gradient,
    _gradients,
    _scaled,
    _shifted,
    _clipped,
    _whole_probe,
)
"""In this order: a later one takes for granted that no earlier one holds."""


def _unexplained(weights: StepWeights) -> Flaw:
    wrong = np.abs(weights.observed - weights.expected) > weights.tolerance * weights.expected
    return Flaw("unexplained", _counted(wrong, weights))


def explain_repetition(first: StepWeights, second: StepWeights) -> Flaw | None:
    """Why the weights of a job that ran twice in the same processes differ; None if they do not."""
    if second.are_right:
        return None
    added = factor(second.observed - first.observed, first.expected)
    if added is not None and abs(added - 1) <= MEASURED:
        return Flaw("gradient_not_zeroed")
    return Flaw("state_left_behind", _counted(second.observed != second.expected, second))


def explain_padding(weights: StepWeights) -> Flaw | None:
    """Which tokens weigh more or less than others of their sample, if samples are padded.

    A factor of all tokens of a sample is left to findings: padding that is counted gives it too.
    """
    wrong = np.concatenate(
        [_differ(weights.observed[one], weights.expected[one]) for one in weights.step.responses]
    )
    return Flaw("padding_reaches_the_probe", _counted(wrong, weights)) if wrong.any() else None


def _differ(observed: Array, expected: Array) -> Chosen:
    """The tokens of a sample that are no common multiple of what they should be."""
    active = expected > 0
    common = np.median(observed[active] / expected[active])
    differ: Chosen = np.abs(observed - common * expected) > MEASURED * abs(common) * expected
    return differ


def explain_forward_passes(step: Step, passes: NDArray[np.int32] | None) -> Flaw | None:
    """What is wrong with the forward passes of tokens, [ranks, tokens]; None if nothing is."""
    held = np.full((1, len(step.mask)), -1, np.int32) if passes is None else passes
    missing: Chosen = np.all(held < 0, axis=0)
    first = np.zeros_like(missing)
    first[step.offsets[:-1]] = True
    if (missing == first).all():
        return Flaw("prompts_not_recorded")
    return Flaw("forward_passes_not_recorded", _named(missing, step)) if missing.any() else None


def explain_strays(step: Step, passes: NDArray[np.int32]) -> Flaw | None:
    """Which tokens are in other forward passes, [ranks, tokens], than the rest of their sample.

    It holds where a rank has whole samples: without context parallelism.
    """
    usual = [np.median(passes[:, one], axis=1, keepdims=True) for one in step.responses]
    stray = np.concatenate(
        [(passes[:, s] != u).any(axis=0) for s, u in zip(step.responses, usual, strict=True)]
    )
    return Flaw("padding_has_the_id_of_a_token", _named(stray, step)) if stray.any() else None


def _counted(chosen: Chosen, weights: StepWeights) -> dict[str, object]:
    """The number of chosen tokens, and the first of them with their weights."""
    return {**_named(chosen, weights.step), "tokens": _tokens(chosen, weights)}


def _named(chosen: Chosen, step: Step) -> dict[str, object]:
    """The number of chosen tokens, and the first of them."""
    return {"wrong": chosen.sum(), "all": len(chosen), "places": "; ".join(_places(chosen, step))}


def _tokens(chosen: Chosen, weights: StepWeights) -> str:
    """The first chosen tokens with their weights."""
    places = _places(chosen, weights.step)
    pairs = zip(places, weights.observed[chosen], weights.expected[chosen], strict=False)
    return "; ".join(f"{place}: {seen:.6g} and not {right:.6g}" for place, seen, right in pairs)


def _places(chosen: Chosen, step: Step) -> list[str]:
    """The first chosen tokens by sample and place in its response."""
    tokens = np.flatnonzero(chosen)[:SHOWN]
    samples = np.searchsorted(step.offsets, tokens, side="right") - 1
    return [
        f"token {token - step.offsets[sample]} of sample {sample}"
        for token, sample in zip(tokens, samples, strict=True)
    ]
