"""The impact of a cause on training at the size of a production step.

Most findings are of steps with a few dozen tokens, whose numbers say nothing about a step with half
a million tokens. A cause's impact is therefore measured on the corpus's production step, if that
shows the cause. Otherwise the impact is the catalogue's sentence on steps of any size, or the
catalogue's prediction for the production step, cut as in `LAYOUT`. If there is neither, the impact
is empty.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache, lru_cache
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from adapters.contract import Layout
from adapters.contract.objective import OF_GROUPS, Objective
from conformance.corpus.cases import CORPUS
from conformance.expected.loss_terms import advantage_terms
from conformance.expected.placement import passes_in_order
from conformance.expected.step_context import StepContext
from conformance.explain.catalogue.missing_tokens import shares
from conformance.explain.catalogue.mistake import MISTAKES, Kind
from conformance.explain.catalogue.predictions import predictions, predictions_of_factors
from conformance.explain.conditions.facts import FACTS_OF_STEPS, of_context
from conformance.findings.agreement import direction
from conformance.findings.cause import SAME_DIRECTION, Impact, Range, Severity
from conformance.findings.finding import PRODUCTION
from conformance.findings.user_cache import made_once
from conformance.findings.verdict import Check
from reference.aggregation import DEFAULT_CONVENTIONS, Mode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from conformance.findings.finding import Finding

CASE = next(case for case in CORPUS if case.name == PRODUCTION)

LAYOUT = Layout(dp=8, micro_batches=8, format="thd")
"""The cut of the production step: each rank has 64 samples in micro-batches of 8."""

CP = 8
"""The number of context-parallel ranks, if a cause needs several."""

SIMILAR = 1.5
"""The largest ratio between a mistake's predicted scales for which an impact is given."""

PREDICTED = (Kind.WEIGHTS, Kind.FACTOR, Kind.PARTS, Kind.UNREDUCED, Kind.ADVANTAGE)
"""Kinds of mistakes whose predictions depend only on the step, not on our values of tokens."""

OF_ONE_TERM = (Check.AUXILIARY, Check.OTHER_LOSSES)
"""Checks of losses that are only one term of the trained loss."""


class Effect(NamedTuple):
    """The effect of a predicted mistake on the gradient of a step."""

    scale: float
    cosine: float

    @property
    def turns(self) -> bool:
        """Whether the direction of the gradient changes."""
        return self.cosine < SAME_DIRECTION


def impact(
    mistake: str,
    severity: Severity,
    condition: Sequence[str],
    findings: Sequence[Finding],
    alone: Sequence[Finding],
    objectives: Mapping[str, Objective],
) -> Impact:
    """The impact of a cause, given its findings of the cause's severity.

    Numbers are measured on ``alone``, the findings without further mistakes. ``objectives`` are the
    objectives of findings, by slug.
    """
    at_size = [finding for finding in alone if finding.case == PRODUCTION]
    measured = Impact.of(at_size)
    if str(measured):
        return measured.model_copy(update={"step": _words(at_size[0].layout)})
    if mistake not in MISTAKES or severity not in (Severity.GRADIENT, Severity.LOGGED):
        return Impact()
    if MISTAKES[mistake].at_size:
        return Impact(words=MISTAKES[mistake].at_size)
    if MISTAKES[mistake].kind not in PREDICTED:
        return Impact()
    layout = replace(LAYOUT, cp=CP if all(one.layout.cp > 1 for one in findings) else 1)
    if not FACTS_OF_STEPS & {*condition} <= _facts(layout):
        return Impact()
    asked = {
        (one.mode, _estimator(objectives.get(one.identity.slug)))
        for one in findings
        if one.check not in OF_ONE_TERM
    }
    found = chain.from_iterable(_effects(mistake, *one, layout) for one in sorted(asked))
    return _over([*found], severity, layout)


def _estimator(objective: Objective | None) -> Objective:
    """The objective if its advantages depend only on rewards, else the plain policy loss."""
    return objective if objective in OF_GROUPS else Objective.POLICY


@cache
def _facts(layout: Layout) -> frozenset[str]:
    """The facts of the production step and of its cut, which are the same in all modes."""
    return frozenset(
        made_once(
            "facts", str(layout), lambda: [*of_context(production_context(Mode.TOKEN_MEAN, layout))]
        )
    )


def _over(effects: Sequence[Effect], severity: Severity, layout: Layout) -> Impact:
    """The impact over all effects of a cause; logged numbers have no direction."""
    scales = Range.of(one.scale for one in effects)
    if severity is Severity.LOGGED:
        found = Impact(reported=None if any(one.turns for one in effects) else scales)
    else:
        found = Impact(scale=scales, cosine=Range.of(one.cosine for one in effects))
    return found.model_copy(update={"step": _words(layout)}) if str(found) else Impact()


def _effects(mistake: str, mode: Mode, objective: Objective, layout: Layout) -> Sequence[Effect]:
    """The effects of a mistake on the production step; none if their scales differ too much.

    If some predictions change the direction, only these are kept. A prediction that keeps the
    direction is a plain factor, which is a mistake of its own.
    """
    found = _of_mistakes(mode, objective, layout).get(mistake, ())
    if any(one.turns for one in found):
        found = [one for one in found if one.turns]
    scales = [one.scale for one in found]
    is_one = bool(scales) and 0 < max(scales) <= SIMILAR * min(scales)
    return found if is_one else ()


@lru_cache(maxsize=32)
def _of_mistakes(
    mode: Mode, objective: Objective, layout: Layout
) -> Mapping[str, Sequence[Effect]]:
    """The effects of each mistake on the production step: one for each of its predictions.

    They are cached, since some hundred predictions for half a million tokens take seconds.
    """
    key = f"{mode} {objective} {layout}"
    kept = made_once("effects", key, lambda: _predicted(mode, objective, layout))
    return {name: [Effect(*one) for one in several] for name, several in kept.items()}


def _predicted(mode: Mode, objective: Objective, layout: Layout) -> Mapping[str, Sequence[Effect]]:
    context = production_context(mode, layout)
    found: dict[str, list[Effect]] = {}
    if objective in OF_GROUPS:
        [term] = advantage_terms([context], objective)
        right = term.products
        wrong = ((one, one.products(term)) for one in predictions_of_factors(term))
    else:
        right = context.expected
        wrong = ((one, one.weights) for one in chain(predictions(context), shares(context)))
    for prediction, weights in wrong:
        scale, cosine = direction(weights, right)
        if scale is not None and cosine is not None:
            for mistake in prediction.mistakes:
                found.setdefault(mistake.name, []).append(Effect(scale, cosine))
    return found


@lru_cache(maxsize=8)
def production_context(mode: Mode, layout: Layout) -> StepContext:
    """The context of the production step in a mode, cut evenly for a layout."""
    [step] = CASE.steps
    return StepContext(
        steps=CASE.steps,
        step_index=0,
        aggregation=CASE.aggregation(mode),
        conventions=DEFAULT_CONVENTIONS,
        layout=layout,
        forward_pass_of_token=passes_in_order(step, layout),
    )


def _words(layout: Layout) -> str:
    """The size of the production step and its cut, in words."""
    [step] = CASE.steps
    ranks = ", ".join(
        f"{name} {size}" for name in ("dp", "cp") if (size := getattr(layout, name)) > 1
    )
    micro_batches = f"{layout.micro_batches} micro-batches each"
    return f"{step.size} samples, {ranks}, {micro_batches}"
