"""The step of one finding worked out by hand: its samples, right denominators, what was observed.

Right numbers are the reference's, observed ones stand in the report.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from adapters.contract.objective import (
    FROM_REWARDS,
    OF_ROLLOUTS,
    OF_SAMPLES,
    OFF_POLICY,
    Metric,
    Objective,
)
from adapters.contract.probed_batch import ProbedBatch
from conformance.expected import loss_terms
from conformance.expected.step_context import StepContext
from conformance.expected.term import LossTerm
from conformance.findings.verdict import Check
from conformance.views.advantages import advantage_table, advantage_words
from conformance.views.derivatives import derivative_table, derivative_words
from conformance.views.listing import denominators, mask_digits
from conformance.views.tables import markdown_table
from reference.aggregation import DenominatorMask, EmptyUnits, Mode, SampleUnit

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from adapters.contract import Layout
    from conformance.corpus.cases import Case
    from conformance.findings.finding import Finding, Picture, Run
    from conformance.findings.report import Report
    from conformance.plan.checks import CheckSpec
    from reference.step import Step

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
"""What divides the loss of an active token."""

MOST_ROWS = 64
"""Rows of a table."""

WHOLE = 5e-6
"""Relative distance from a whole number that six digits of a weight leave unknown."""

CUT_UNKNOWN = (
    "is a mean over data-parallel ranks and micro-batches of each micro-batch's mean; how the step"
    " was cut into micro-batches is not in the report"
)


def layout_words(layout: Layout) -> str:
    """Returns how a step is cut over ranks and micro-batches."""
    sizes = (("data", layout.dp), ("context", layout.cp), ("tensor", layout.tp))
    named = " × ".join(f"{size} {what}-parallel" for what, size in sizes if size > 1)
    micro_batches = {
        "1": "one micro-batch",
        "uneven": "micro-batches of different numbers of samples",
        "tokens": "micro-batches up to a number of tokens",
    }.get(str(layout.micro_batches), f"{layout.micro_batches} micro-batches")
    rows = {"thd": "packed", "bshd": "padded"}[layout.format]
    options = "".join(f", `{option}`" for option in layout.options)
    ranks = f"{named} ranks" if named else "one rank"
    if layout.pp > 1:
        ranks = f"{layout.pp} pipeline stages of {ranks}"
    return f"{ranks}, {micro_batches} on each data-parallel rank, {rows} rows{options}"


def open_choices(worked: WorkedStep) -> dict[str, str]:
    """Returns what the modes leave open, as far as it concerns a step, by convention."""
    conventions = worked.context.conventions
    counts = "still counts" if conventions.empty_units is EmptyUnits.COUNTED else "does not count"
    choices = {"empty_units": f"a sample or prompt without active tokens adds 0 and {counts}"}
    if conventions.sample_unit is SampleUnit.ROLLOUT:
        choices["sample_unit"] = "the samples of one rollout count as one sample"
    if worked.spec.objective is Objective.REJECTION:
        too = conventions.denominator_mask is DenominatorMask.ORIGINAL
        choices["denominator_mask"] = f"rejected tokens are {'' if too else 'not '}counted"
    for term in worked.terms:
        if term.context.per_micro_batch:
            choices[worked.convention(term)] = (
                f"`{term.metric}` is the mean over data-parallel ranks and micro-batches of each"
                f" micro-batch's `{term.context.mode}`"
            )
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


class WorkedStep:
    """The step that a finding of a check is about, as far as case and report tell of it."""

    def __init__(self, report: Report, finding: Finding, spec: CheckSpec, case: Case) -> None:
        self.finding, self.spec = finding, spec
        aggregation = case.aggregation(finding.mode)
        if finding.mode is Mode.CONSTANT and report.request.divisor is not None:
            aggregation = replace(aggregation, divisor=report.request.divisor)
        contexts = [
            StepContext(
                steps=case.steps,
                step_index=index,
                aggregation=aggregation,
                conventions=report.conventions,
                layout=finding.layout,
                forward_pass_of_token=_passes(finding, index, step),
            )
            for index, step in enumerate(case.steps)
        ]
        if spec.metric in OF_ROLLOUTS:
            self.terms = [loss_terms.rollout_term(contexts, spec.objective, spec.metric)]
            self.context = self.terms[0].context
        else:
            self.context = next(filter(self._is_wrong, contexts), contexts[0])
            self.terms = self._terms(self.context)

    def convention(self, term: LossTerm) -> str:
        """The convention by which a term that is averaged over micro-batches is aggregated."""
        if self.spec.metric in (None, Metric.LOSS):
            return str(term.metric)
        return str(loss_terms.convention_of_log(self.spec.metric, self.context.conventions))

    def _is_wrong(self, context: StepContext) -> bool:
        """Whether the finding is about this step of the batch."""
        if self.finding.picture is not None:
            return self.finding.picture.step == context.step_index
        terms, logged = self._terms(context), self.finding.logged
        if logged is None or not all(map(_is_known, terms)):
            return False
        total = math.fsum(term.expected for term in terms)
        return math.isclose(total, logged.expected, rel_tol=1e-9)

    def _terms(self, context: StepContext) -> list[LossTerm]:
        """The terms of what the check looks at, with what their weights are multiplied by."""
        objective = self.spec.objective
        if self.spec.metric is not None:
            return loss_terms.logged_terms(context, objective, self.spec.metric)
        batch = ProbedBatch.under(context.conventions, context.steps, objective)
        dloss_dlogprob = batch.split(batch.dloss_dlogprob)[context.step_index]
        if objective is Objective.COMBINED:
            return loss_terms.combined_terms(context, dloss_dlogprob)
        if objective in OFF_POLICY:
            tokens = batch.policy_tokens_of_step(context.step_index)
            return [loss_terms.off_policy_term(context, objective, tokens)]
        if objective in FROM_REWARDS:
            return [self._advantage_term(context)]
        return [
            LossTerm(
                metric=loss_terms.trained_term(objective),
                context=context.of_term(loss_terms.reducer(objective, context.conventions)),
                factors=np.ones_like(dloss_dlogprob),
            )
        ]

    def _advantage_term(self, context: StepContext) -> LossTerm:
        """The term of a step, whose advantages may depend on the others of its batch."""
        batch = [
            replace(context, step_index=index, forward_pass_of_token=None)
            for index in range(len(context.steps))
        ]
        return loss_terms.advantage_terms(batch, self.spec.objective)[context.step_index]


def worked_step(worked: WorkedStep) -> Iterator[str]:
    """Yields the samples of a step, its right denominators, and what was observed."""
    step = worked.context.step
    if len(worked.context.steps) > 1:
        yield f"It is step {worked.context.step_index} of a batch of {len(worked.context.steps)}."
        yield ""
    yield from _table(["sample", "prompt", "prompt tokens", "loss mask"], _samples(step))
    yield from ("", "Denominators by hand:", "")
    if worked.finding.logged is not None:
        yield from _logged(worked)
    elif worked.spec.objective in OFF_POLICY:
        yield from _weights(worked.terms[0], None)
        yield from ("", derivative_words(worked.spec.objective), "")
        yield from _table(*derivative_table(worked.terms[0], worked.spec.objective))
    elif worked.spec.objective in FROM_REWARDS:
        yield from _weights(worked.terms[0], None)
        yield from ("", advantage_words(worked.terms[0], worked.spec.objective), "")
        yield from _table(*advantage_table(worked.terms[0], worked.spec.objective))
    elif len(worked.terms) == 1:
        yield from _weights(worked.terms[0], observed_weights(worked.finding.picture, step))
    else:
        yield "The right gradient of a token is the sum over its terms of factor times weight."
        for term in worked.terms:
            yield from ("", f"{_name(term)}, with a factor of {_factors(term)}:", "")
            yield from _weights(term, None)
    if worked.finding.picture is not None:
        yield from ("", *token_table(worked.finding.picture))


def _is_known(term: LossTerm) -> bool:
    """Whether the right weights of a term are known without the cut, or the cut is."""
    return not term.context.per_micro_batch or term.context.placement is not None


def _name(term: LossTerm) -> str:
    return f"`{term.metric}`"


def _factors(term: LossTerm) -> str:
    """Returns what all weights of a term are multiplied by, in words."""
    different = np.unique(term.factors)
    return f"{different[0]:g}" if len(different) == 1 else "minus each token's advantage"


def _samples(step: Step) -> Iterator[list[str]]:
    removed = "" if step.original_mask is None else " (before rejection sampling {})"
    for i, response in enumerate(step.responses):
        before = mask_digits(step.mask_before_rejection[response])
        mask = f"`{mask_digits(step.mask[response])}`{removed.format(f'`{before}`')}"
        yield [str(i), str(step.groups[i]), str(step.prompt_lengths[i]), mask]


def _weights(term: LossTerm, observed: NDArray[np.float64] | None) -> Iterator[str]:
    """Yields a line for each right denominator, with the observed weights of its tokens."""
    if not _is_known(term):
        yield f"{_name(term)} {CUT_UNKNOWN}."
        return
    for one in denominators(term.context):
        right = f": right {weight_words(one.weight)}" if one.weight else ""
        seen = "" if observed is None else _seen(observed[one.tokens], one.weight)
        yield f"- {one.whose}: {one.composition}{right}{seen}"
    if observed is not None and (excluded := observed[~term.context.step.mask]).any():
        yield f"- tokens that the mask excludes: right 0{_seen(excluded, 0.0)}"


def _seen(observed: NDArray[np.float64], right: float) -> str:
    """Returns the observed weights of tokens that must weigh the same, as the end of a line."""
    known = observed[~np.isnan(observed)]
    if not len(known):
        return ""
    low, high = float(known.min()), float(known.max())
    span = weight_words(low) + (f" to {weight_words(high)}" if low != high else "")
    if not right or low != high or not math.isfinite(high):
        return f", observed {span}"
    is_right = abs(high - right) <= WHOLE * right
    return f", observed {'the same' if is_right else f'{span} ({high / right:.4g} times)'}"


def _logged(worked: WorkedStep) -> Iterator[str]:
    """Yields how the right number is composed, and what was logged in its place."""
    logged = worked.finding.logged
    assert logged is not None
    header = ["term", "tokens", "right denominator", "sum of their values", "adds"]
    known = [term for term in worked.terms if _is_known(term)]
    if known:
        of_samples = worked.spec.metric in OF_SAMPLES
        given = "samples, each of which counts as one token" if of_samples else "tokens"
        yield f"Values are those that the run gives to {given}, times the coefficient of the term."
        yield from ("", *_table(header, (row for term in known for row in _addends(term))), "")
    for term in worked.terms:
        if term not in known:
            yield f"{_name(term)} {CUT_UNKNOWN}."
    if len(known) < len(worked.terms):
        rest = logged.expected - math.fsum(term.expected for term in known)
        yield f"That of this run adds {rest:.7g}."
    reported = "NaN or infinity" if logged.reported is None else f"{logged.reported:.7g}"
    divided = _divided(known, logged.reported) if len(known) == len(worked.terms) == 1 else ""
    yield f"Together, {logged.expected:.7g} is right, and {reported} is logged{divided}."


def _divided(terms: Sequence[LossTerm], reported: float | None) -> str:
    """Returns by what all values would have to be divided to give what was logged.

    Empty where they have several right denominators.
    """
    [term] = terms
    total = math.fsum(term.factors[term.context.step.mask])
    if not reported or not total or len([*denominators(term.context)]) > 1:
        return ""
    return f", which is {total:.7g} divided by {total / reported:.5g}"


def _addends(term: LossTerm) -> Iterator[list[str]]:
    for one in denominators(term.context):
        total = math.fsum(term.factors[one.tokens])
        adds = math.fsum(term.products[one.tokens])
        yield [_name(term), one.whose, one.composition, f"{total:.7g}", f"{adds:.7g}"]


OTHER_GRADIENTS = (Check.OFF_POLICY, Check.ADVANTAGES)
"""Checks of weights that are multiplied by derivatives or advantages."""


def ratios(findings: Iterable[Finding]) -> tuple[float, float] | None:
    """Returns the smallest and the largest observed weight, relative to the right one, in pictures.

    Gradients of several terms, which may cancel, and those that are no weights are left out; None
    if nothing else is there.
    """
    found = [
        run.observed / run.expected
        for finding in findings
        if finding.picture is not None
        if finding.subject != Objective.COMBINED and finding.check not in OTHER_GRADIENTS
        for sample in finding.picture.samples
        for run in sample.runs
        if run.expected and run.observed is not None
    ]
    return (min(found), max(found)) if found else None


def token_table(picture: Picture) -> Iterator[str]:
    """Yields a table of the right and the observed weights of tokens, in runs of equal ones."""
    header = ["sample", "tokens", "dp rank", "cp rank", "micro-batch", "right", "observed"]
    yield from _table(header, _token_rows(picture))
    if len(picture.samples) < picture.samples_of_step:
        yield ""
        yield (
            f"These are {len(picture.samples)} of {picture.samples_of_step} samples, those with the"
            " largest errors."
        )


def _token_rows(picture: Picture) -> Iterator[list[str]]:
    for sample in picture.samples:
        first = 1
        for run in sample.runs:
            last = first + run.tokens - 1
            tokens = f"{first}–{last}" if last > first else str(first)
            places = ["?" if one is None else str(one) for one in run[3:]]
            observed = "NaN or infinite" if run.observed is None else f"{run.observed:.6g}"
            yield [str(sample.sample), tokens, *places, f"{run.expected:.6g}", observed]
            first = last + 1


def _table(header: Sequence[str], rows: Iterable[list[str]]) -> Iterator[str]:
    """Yields a table of at most `MOST_ROWS` rows, and how many others there are."""
    every = [*rows]
    yield from markdown_table(header, every[:MOST_ROWS])
    if len(every) > MOST_ROWS:
        yield from ("", f"{len(every) - MOST_ROWS} further rows are left out.")


def observed_weights(picture: Picture | None, step: Step) -> NDArray[np.float64] | None:
    """Returns the observed weights of a step, NaN where unknown, infinite if not finite: [tokens].

    None if the finding has no picture.
    """
    if picture is None:
        return None
    observed = np.full(len(step.mask), np.nan)
    for tokens, run in _spans(picture, step):
        observed[tokens] = np.inf if run.observed is None else run.observed
    return observed


def _passes(finding: Finding, step_index: int, step: Step) -> NDArray[np.int32] | None:
    """The micro-batch in which each rank held each token, or -1: [ranks, tokens].

    None if the finding has no picture of the step.
    """
    picture, layout = finding.picture, finding.layout
    if picture is None or picture.step != step_index:
        return None
    held = np.full((layout.dp * layout.cp, len(step.mask)), -1, np.int32)
    for tokens, run in _spans(picture, step):
        if run.dp_rank is None or run.cp_rank is None or run.micro_batch is None:
            return None
        held[run.dp_rank * layout.cp + run.cp_rank, tokens] = run.micro_batch
    return held


def _spans(picture: Picture, step: Step) -> Iterator[tuple[slice, Run]]:
    """Yield the place of each run among all response tokens of a step."""
    for sample in picture.samples:
        start = int(step.offsets[sample.sample])
        for run in sample.runs:
            yield slice(start, start + run.tokens), run
            start += run.tokens
