"""Explains mistakes of an adapter by the probe's gradient on samples of equal weight.

The advantages of tokens are known and differ. This distinguishes a gradient that was not divided by
the advantages, the gradient of another token, and the gradient of a clipped ratio.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from adapters.contract import Job, Observation
    from conformance.checker.jobs import StepWeights
    from reference.step import Step

    Array = NDArray[np.float64]
    Chosen = NDArray[np.bool_]


MEASURED = 2.0**-16
"""The largest relative difference of numbers that count as equal: the rounding of float32 in a
softmax over some thousand tokens."""

SHOWN = 4
"""The largest number of tokens that a flaw names."""

WORDS = {
    "wrong_shape": (
        "{field} must have an array for each optimizer step, with an entry for each response"
        " token: {right} entries, and it has the shapes {shapes}"
    ),
    "not_finite": "some token weights are NaN or infinite: {tokens}",
    "no_gradient": (
        "the gradient of the probe is 0 for every token: it does not reach the loss (is it"
        " detached, or a copy?), or it is read before the backward pass or after it was zeroed"
    ),
    "gradients_returned": (
        "token_weights holds the gradients of the probe and not the weights: divide them by"
        " ProbedBatch.dloss_dlogprob, as ProbedBatch.weights_of_steps does"
    ),
    "wrong_sign": (
        "every weight has the wrong sign: the derivative of a loss by the log-probability is"
        " minus the advantage (ProbedBatch.dloss_dlogprob)"
    ),
    "derivative_not_one": (
        "the derivative of a log-probability by the probe is {factor:.7g} = 1 - 1/{vocabulary}"
        " and not 1: the model's logits are those of a plain softmax over {vocabulary} tokens."
        " Use adapters.toolkit.probe.logits_head, whose CERTAIN_LOGIT makes all other logits"
        " negligible, and lower old log-probabilities by CERTAIN_LOGIT"
    ),
    "factor": (
        "every weight is {factor:.7g} times as large as it should be, on samples that weigh the"
        " same in every mode: the derivative of a log-probability by the probe, or the ratio of"
        " the new to the old policy, is that number and not 1; or the gradient is read before or"
        " after a division of the framework's, or is of several steps. If it is none of these,"
        " the framework divides by a wrong number"
    ),
    "advantages_per_sample": (
        "all tokens of a sample have the gradient of one advantage, that of its {place} token: the"
        " framework takes one advantage for each sample. Give it ProbedBatch.sample_advantages, and"
        " set advantage_unit=AdvantageUnit.SAMPLE in the conventions of the record"
    ),
    "probe_of_another_token": (
        "each token has the weight of the token {way} it: entries of the probe are added to the"
        " log-probabilities of the wrong tokens. Logits at a position predict the next"
        " token, whose id is input_ids + 1"
    ),
    "ratio_not_one": (
        "the ratio of the new to the old policy is {factor:.4g} and not exactly 1, so that"
        " tokens with {clipped} advantages are clipped: new log-probabilities differ from the old"
        " ones by {difference:+.4g}{softmax}. Old log-probabilities must be those of the probed"
        " model: logits_head lowers them by adapters.toolkit.probe.CERTAIN_LOGIT = 64"
    ),
    "depends_on_the_whole_probe": (
        "the log-probability of every token depends on the whole probe: inactive tokens get a"
        " gradient, and all tokens the same. The logits at a position may contain the probe's"
        " entry of the token that they predict, and of no other"
        " (adapters.toolkit.probe.logits_head)"
    ),
    "unexplained": (
        "{wrong} of {all} tokens have another weight than they should, and nothing that this"
        " check knows explains it: {tokens}"
    ),
    "gradient_not_zeroed": (
        "the second of two equal jobs gives the sum of both: the gradient of the probe is not"
        " set to 0 after it was read (adapters.toolkit.probe.GradientReader does so)"
    ),
    "state_left_behind": (
        "the second of two equal jobs gives other weights than the first, so something of the"
        " first is left: has its optimizer step changed the probe? The probe must stay 0, so give"
        " a learning rate of 0. {tokens}"
    ),
    "padding_reaches_the_probe": (
        "where samples are equally long all weights are right, and where some are padded,"
        " {wrong} of {all} tokens have another weight than the rest of their sample: {tokens}."
        " Padding must have the id 0 (PADDING_ID), advantages of 0 and no place in the loss mask"
    ),
    "forward_passes_not_recorded": (
        "describe() declares records_forward_passes, and {wrong} of {all} tokens are in none:"
        " {places}. Have the model call ForwardPasses.note with all of its input ids, and return"
        " ProbedBatch.forward_passes of them"
    ),
    "prompts_not_recorded": (
        "the first token of every response is in no forward pass, as it is looked for where its"
        " prompt ends: record the ids of prompts as well"
    ),
    "padding_has_the_id_of_a_token": (
        "{wrong} of {all} tokens are in a forward pass without the rest of their sample:"
        " {places}. Is padding given the id of a token? It must be 0"
        " (adapters.contract.batch.sequences.PADDING_ID)"
    ),
}
"""The words for each flaw, by name; the numbers of a flaw replace the fields in braces."""

_MODEL = "model = ProbedModel(probe_capacity(batch.probe_size), passes, logits_head)"
_WEIGHTS = "token_weights=batch.weights_of_steps(gradients.drain()),"
_PASSES = "forward_passes=batch.forward_passes(passes.drain()),"

EXAMPLES = {
    "wrong_shape": _WEIGHTS,
    "no_gradient": _MODEL,
    "gradients_returned": _WEIGHTS,
    "wrong_sign": _WEIGHTS,
    "derivative_not_one": _MODEL,
    "probe_of_another_token": _MODEL,
    "ratio_not_one": "[values - CERTAIN_LOGIT for values in batch.old_log_probs],",
    "depends_on_the_whole_probe": _MODEL,
    "gradient_not_zeroed": "gradients = GradientReader(trainer.optimizer)",
    "state_left_behind": 'always={"lr": 0.0},',
    "forward_passes_not_recorded": _PASSES,
    "prompts_not_recorded": _PASSES,
}
"""The right line in the example of docs/adapters.md, by the name of the flaw."""


@dataclass(frozen=True)
class Flaw:
    """A flaw of an adapter: its name in `WORDS`, and the numbers for the fields in these words."""

    name: str
    numbers: Mapping[str, object] = field(default_factory=dict)

    @property
    def words(self) -> str:
        """The flaw in words for the author."""
        words = WORDS[self.name].format(**self.numbers)
        line = EXAMPLES.get(self.name)
        return words if line is None else f"{words}\nThe example of docs/adapters.md has: {line}"


def explain_shapes(job: Job, observation: Observation) -> Flaw | None:
    """The flaw of a field that has no array for a step, or not an entry for every token."""
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
        return Flaw("gradients_returned")  # further flaws show once this one is fixed
    return flaw or _unexplained(weights)


def _first(weights: StepWeights) -> Flaw | None:
    """The first explanation that fits the weights; None if none fits."""
    found = (flaw for explain in EXPLANATIONS if (flaw := explain(weights)))
    return next(found, None)


def factor(observed: Array, expected: Array) -> float | None:
    """The common ratio of observed to expected values; None if there is none, or it is 0."""
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
    """Gradients that belong to the next or to the previous token."""
    seen, right = weights.gradient, weights.expected_gradient
    responses = list(weights.step.responses)
    first, last = slice(None, -1), slice(1, None)
    for way, mine, other in (("after", first, last), ("before", last, first)):
        observed = np.concatenate([seen[one][mine] for one in responses])
        expected = np.concatenate([right[one][other] for one in responses])
        if factor(observed, expected) is not None:
            return Flaw("probe_of_another_token", {"way": way})
    return None


def _per_sample(weights: StepWeights) -> Flaw | None:
    """Gradients of whole samples that use the advantage of the first or last token."""
    seen, right = weights.gradient, weights.dloss_dlogprob
    for place, token in (("first", 0), ("last", -1)):
        of_sample = [np.full_like(right[one], right[one][token]) for one in weights.step.responses]
        if factor(seen, weights.expected * np.concatenate(of_sample)) is not None:
            return Flaw("advantages_per_sample", {"place": place})
    return None


def _clipped(weights: StepWeights) -> Flaw | None:
    """Weights of 0 for one sign of the advantage, and of one factor for the other sign."""
    positive = weights.dloss_dlogprob < 0
    for clipped, trained in (("negative", positive), ("positive", ~positive)):
        common = factor(weights.observed[trained], weights.expected[trained])
        if common is not None and common > 0 and not weights.observed[~trained].any():
            softmax = _softmax_words(common, weights)
            numbers = {"difference": math.log(common), "softmax": softmax, "clipped": clipped}
            return Flaw("ratio_not_one", {"factor": common, **numbers})
    return None


def _softmax_words(slope: float, weights: StepWeights) -> str:
    """Words on a plain softmax whose slope at ratio 1/V would be this one; empty if none fits."""
    if slope >= 1 / 4:
        return ""
    tokens = _whole((1 + math.sqrt(1 - 4 * slope)) / (2 * slope), weights)
    return f" (a plain softmax over {tokens} tokens gives 1/{tokens})" if tokens else ""


def _whole(tokens: float, weights: StepWeights) -> int | None:
    """The number as a vocabulary size, if it is whole and large enough for the job's token ids."""
    if not weights.vocabulary <= tokens < 1 / MEASURED:
        return None
    return round(tokens) if abs(tokens - round(tokens)) <= tokens * MEASURED else None


def _whole_probe(weights: StepWeights) -> Flaw | None:
    """An extra gradient that is the same for all tokens, active or not."""
    further = weights.gradient - weights.expected_gradient
    is_equal = np.ptp(further) <= MEASURED * np.abs(weights.expected_gradient).max()
    return Flaw("depends_on_the_whole_probe") if is_equal and further.all() else None


EXPLANATIONS: Sequence[Callable[[StepWeights], Flaw | None]] = (
    _not_finite,
    _no_gradient,
    _gradients,
    _scaled,
    _per_sample,
    _shifted,
    _clipped,
    _whole_probe,
)
"""Explanations in the order to try: each assumes that no earlier one fits."""


def _unexplained(weights: StepWeights) -> Flaw:
    wrong = np.abs(weights.observed - weights.expected) > weights.tolerance * weights.expected
    return Flaw("unexplained", _counted(wrong, weights))


def explain_repetition(first: StepWeights, second: StepWeights) -> Flaw | None:
    """The flaw of a job whose weights change when it runs again in the same processes."""
    if second.are_right:
        return None
    added = factor(second.observed - first.observed, first.expected)
    if added is not None and abs(added - 1) <= MEASURED:
        return Flaw("gradient_not_zeroed")
    return Flaw("state_left_behind", _counted(second.observed != second.expected, second))


def explain_padding(weights: StepWeights) -> Flaw | None:
    """The flaw of padded samples in which some tokens weigh more or less than others.

    A factor on all tokens of a sample is left to findings, as the framework may count padding.
    """
    wrong = np.concatenate(
        [_differ(weights.observed[one], weights.expected[one]) for one in weights.step.responses]
    )
    return Flaw("padding_reaches_the_probe", _counted(wrong, weights)) if wrong.any() else None


def _differ(observed: Array, expected: Array) -> Chosen:
    """The tokens whose ratio of observed to expected weight differs from the rest of the sample."""
    active = expected > 0
    common = np.median(observed[active] / expected[active])
    differ: Chosen = np.abs(observed - common * expected) > MEASURED * abs(common) * expected
    return differ


def explain_forward_passes(step: Step, passes: NDArray[np.int32] | None) -> Flaw | None:
    """The flaw in the forward passes of tokens, [ranks, tokens]; None if there is none."""
    held = np.full((1, len(step.mask)), -1, np.int32) if passes is None else passes
    missing: Chosen = np.all(held < 0, axis=0)
    first = np.zeros_like(missing)
    first[step.offsets[:-1]] = True
    if (missing == first).all():
        return Flaw("prompts_not_recorded")
    return Flaw("forward_passes_not_recorded", _named(missing, step)) if missing.any() else None


def explain_strays(step: Step, passes: NDArray[np.int32]) -> Flaw | None:
    """The flaw of tokens in another forward pass, [ranks, tokens], than most of their sample.

    Ranks must hold whole samples, so there must be no context parallelism.
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
