"""A worked-out step in words: its samples, right denominators, and observed or logged numbers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from adapters.contract.objective import OF_SAMPLES, WITH_REJECTION
from conformance.explain.conditions.wording import said
from conformance.views.formatting import markdown_table
from conformance.views.listing import mask_digits
from reference.aggregation import DenominatorMask, EmptyUnits, Mode, SampleUnit

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from adapters.contract import Layout
    from conformance.findings.finding import Picture
    from conformance.worked.step import WorkedStep, WorkedTerm

MODES = {
    Mode.SAMPLE_MEAN: "the mean over samples of each sample's token mean",
    Mode.PROMPT_MEAN: "the mean over prompts of each prompt's token mean",
    Mode.TOKEN_MEAN: "the mean over all active tokens of the step",
    Mode.CONSTANT: "the sum over active tokens divided by a constant L, mean over samples",
}

DENOMINATORS = {
    Mode.SAMPLE_MEAN: "the number of samples · the active tokens of its own sample",
    Mode.PROMPT_MEAN: "the number of prompts · the active tokens of its own prompt",
    Mode.TOKEN_MEAN: "the active tokens of the whole step",
    Mode.CONSTANT: "L · the number of samples",
}
"""The divisor of an active token's loss in each mode."""

MOST_ROWS = 64
"""The largest number of rows in a table."""

WHOLE = 5e-6
"""The relative distance from a whole number that is within the rounding to six digits."""

MEAN_OF_MEANS = "the mean over data-parallel ranks and micro-batches of each micro-batch's"


def layout_words(layout: Layout, chosen_by: Mapping[str, Sequence[str]]) -> str:
    """Returns words on the cut of a step over ranks and micro-batches, and the options of users."""
    sizes = (("data", layout.dp), ("context", layout.cp), ("tensor", layout.tp))
    named = " × ".join(f"{size} {what}-parallel" for what, size in sizes if size > 1)
    micro_batches = {
        "1": "one micro-batch",
        "uneven": "micro-batches of different numbers of samples",
        "tokens": "micro-batches up to a number of tokens",
    }.get(str(layout.micro_batches), f"{layout.micro_batches} micro-batches")
    rows = {"thd": "packed", "bshd": "padded"}[layout.format]
    options = "".join(f", {said(f'with {option}', chosen_by)}" for option in layout.options)
    ranks = f"{named} ranks" if named else "one rank"
    if layout.pp > 1:
        ranks = f"{layout.pp} pipeline stages of {ranks}"
    return f"{ranks}, {micro_batches} on each data-parallel rank, {rows} rows{options}"


def open_choices(worked: WorkedStep) -> dict[str, str]:
    """Returns sentences, by convention, on choices of the framework that the step depends on."""
    conventions = worked.context.conventions
    counts = "still counts" if conventions.empty_units is EmptyUnits.COUNTED else "does not count"
    choices = {"empty_units": f"a sample or prompt without active tokens adds 0 and {counts}"}
    if conventions.sample_unit is SampleUnit.ROLLOUT:
        choices["sample_unit"] = "the samples of one rollout count as one sample"
    if worked.spec.objective in WITH_REJECTION:
        too = conventions.denominator_mask is DenominatorMask.ORIGINAL
        choices["denominator_mask"] = f"rejected tokens are {'' if too else 'not '}counted"
    for term in worked.terms:
        if term.context.per_micro_batch:
            choices[term.convention] = f"`{term.name}` is {MEAN_OF_MEANS} `{term.mode}`"
    return choices


def weight_words(weight: float) -> str:
    """Returns a weight with its denominator, such as ``1/24 = 0.0416667``."""
    if not math.isfinite(weight):
        return "NaN or infinite"
    if not 0 < weight < 1:
        return f"{weight:.6g}"
    inverse = 1 / weight
    whole = abs(inverse - round(inverse)) <= WHOLE * inverse
    return f"1/{round(inverse) if whole else format(inverse, '.6g')} = {weight:.6g}"


def sample_table(worked: WorkedStep) -> str:
    """Returns a table of the samples of a step, with their masks."""
    step = worked.step
    rows = []
    for i, response in enumerate(step.responses):
        mask = f"`{mask_digits(step.mask[response])}`"
        if step.original_mask is not None:
            before = mask_digits(step.mask_before_rejection[response])
            mask = f"{mask} (before rejection sampling `{before}`)"
        rows.append([str(i), str(step.groups[i]), str(step.prompt_lengths[i]), mask])
    return table(rows, ["sample", "prompt", "prompt tokens", "loss mask"])


def denominators(term: WorkedTerm, observed: NDArray[np.float64] | None = None) -> str:
    """Returns a line for each right denominator, with the observed weights of its tokens."""
    return "\n".join(_denominators(term, observed))


def _denominators(term: WorkedTerm, observed: NDArray[np.float64] | None) -> Iterator[str]:
    if not term.is_known:
        yield cut_unknown(term)
        return
    for one in term.denominators:
        right = f": right {weight_words(one.weight)}" if one.weight else ""
        seen = "" if observed is None else _seen(observed[one.tokens], one.weight)
        yield f"- {one.whose}: {one.composition}{right}{seen}"
    if observed is not None and (excluded := observed[~term.context.step.mask]).any():
        yield f"- tokens that the mask excludes: right 0{_seen(excluded, 0.0)}"


def cut_unknown(term: WorkedTerm) -> str:
    """Returns a sentence on why the weights of a term are unknown."""
    return (
        f"`{term.name}` is {MEAN_OF_MEANS} mean; the report does not say how the step was cut into"
        " micro-batches."
    )


def _seen(observed: NDArray[np.float64], right: float) -> str:
    """Returns the end of a line: the observed weights of tokens that must weigh the same."""
    known = observed[~np.isnan(observed)]
    if not len(known):
        return ""
    low, high = float(known.min()), float(known.max())
    span = weight_words(low) + (f" to {weight_words(high)}" if low != high else "")
    if not right or low != high or not math.isfinite(high):
        return f", observed {span}"
    is_right = abs(high - right) <= WHOLE * right
    return f", observed {'the same' if is_right else f'{span} ({high / right:.4g} times)'}"


def factors(term: WorkedTerm) -> str:
    """Returns a sentence on the factors of all weights of a term."""
    different = np.unique(term.term.factors)
    return f"{different[0]:g}" if len(different) == 1 else "minus each token's advantage"


def logged(worked: WorkedStep) -> str:
    """Returns the composition of the right number, and the number that was logged instead."""
    return "\n".join(_logged(worked))


def _logged(worked: WorkedStep) -> Iterator[str]:
    number = worked.finding.logged
    assert number is not None
    known = [term for term in worked.terms if term.is_known]
    if known:
        of_samples = worked.spec.metric in OF_SAMPLES
        given = "samples, each counted as one token" if of_samples else "tokens"
        yield f"Values are those that the run gives to {given}, times the coefficient of the term."
        header = ["term", "tokens", "right denominator", "sum of their values", "adds"]
        yield from ("", table([row for term in known for row in _addends(term)], header), "")
    yield from (cut_unknown(term) for term in worked.terms if term not in known)
    if len(known) < len(worked.terms):
        rest = number.expected - math.fsum(term.term.expected for term in known)
        yield f"That of this run adds {rest:.7g}."
    reported = "NaN or infinity" if number.reported is None else f"{number.reported:.7g}"
    divided = _divided(known[0], number.reported) if len(known) == len(worked.terms) == 1 else ""
    yield f"Together, {number.expected:.7g} is right, and {reported} is logged{divided}."


def _addends(term: WorkedTerm) -> Iterator[list[str]]:
    for one, total, adds in term.addends:
        yield [f"`{term.name}`", one.whose, one.composition, f"{total:.7g}", f"{adds:.7g}"]


def _divided(term: WorkedTerm, reported: float | None) -> str:
    """Returns the divisor of all values that would give the logged number, in words.

    Empty if the values have several right denominators.
    """
    total = math.fsum(term.term.factors[term.context.step.mask])
    if not reported or not total or len(term.denominators) > 1:
        return ""
    return f", which is {total:.7g} divided by {total / reported:.5g}"


def token_table(picture: Picture) -> str:
    """Returns a table of right and observed weights, a row for each run of equal tokens."""
    rows = []
    for sample in picture.samples:
        first = 1
        for run in sample.runs:
            last = first + run.tokens - 1
            tokens = f"{first}–{last}" if last > first else str(first)
            places = ["?" if one is None else str(one) for one in run[3:]]
            observed = "NaN or infinite" if run.observed is None else f"{run.observed:.6g}"
            rows.append([str(sample.sample), tokens, *places, f"{run.expected:.6g}", observed])
            first = last + 1
    return table(
        rows, ["sample", "tokens", "dp rank", "cp rank", "micro-batch", "right", "observed"]
    )


def table(rows: Sequence[Iterable[str]], header: Sequence[str]) -> str:
    """Returns a table of at most `MOST_ROWS` rows, and the number of rows left out."""
    lines = [*markdown_table(header, rows[:MOST_ROWS])]
    if len(rows) > MOST_ROWS:
        lines += ["", f"{len(rows) - MOST_ROWS} further rows are left out."]
    return "\n".join(lines)
