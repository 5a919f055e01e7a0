"""Plain facts that a mistake may depend on: of a finding, of its step, and of how that was cut.

Each is a phrase that a cause's statement can end with.
"""

from __future__ import annotations

from functools import cache
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from adapters.contract import Layout, Option
from adapters.contract.objective import Metric
from conformance.findings.finding import Finding
from conformance.findings.verdict import Check, Verdict
from conformance.plan.checks import CHECK_SPECS
from reference.aggregation import Mode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from conformance.expected.placement import TokenPlacement
    from conformance.expected.step_context import StepContext
    from reference.step import Step


EMPTY_SAMPLE = "where a sample has no active token"

METRIC_CHECKS = (Check.METRIC, "rejection.metric", Check.ROLLOUTS)
"""Slugs of checks of logged numbers, or how they begin."""

WHOLE_LOSS = f"{Check.METRIC}.{Metric.LOSS}"
"""Slug of the check of the logged sum of all terms, whose gradient is trained."""

LOGGED_LOSSES = (Check.METRIC, WHOLE_LOSS)
"""Slugs of the checks of the logged policy loss and of the sum of all terms.

Other logged numbers are diagnostics, which frameworks reduce apart.
"""

LOGGED_TERMS = (*LOGGED_LOSSES, *(f"{Check.METRIC}.{term}" for term in (Metric.ENTROPY, Metric.KL)))
"""Slugs of the checks of the logged terms of the loss and of their sum."""

NEGATIVE = (
    "except in ",
    "without ",
    "where dp = 1",
    "where cp = 1",
    "where tp = 1",
    "where pp = 1",
    "where no token is rejected",
)
"""Beginnings of negative facts, which are chosen last."""

OF_STEPS: dict[str, Callable[[Step], bool]] = {
    EMPTY_SAMPLE: lambda step: bool((step.active_tokens == 0).any()),
    "where no token is active": lambda step: not step.active_tokens.any(),
    "where a sample has masked tokens": lambda step: bool(
        (step.active_tokens < step.response_lengths).any()
    ),
    "where samples differ in length": lambda step: _several(step.active_tokens),
    "where prompt groups differ in size": lambda step: _several(_group_sizes(step)),
    "where a prompt group has several samples": lambda step: bool((_group_sizes(step) > 1).any()),
    "where there are several prompt groups": lambda step: len(_group_sizes(step)) > 1,
    "where a rollout has several samples": lambda step: len(set(step.rollouts)) < step.size,
    "where tokens are rejected": lambda step: step.original_mask is not None,
    "where no token is rejected": lambda step: step.original_mask is None,
}
"""Facts of steps, however they are cut."""

OF_BATCHES: dict[str, Callable[[StepContext], bool]] = {
    "where a batch has several optimizer steps": lambda context: len(context.steps) > 1,
    "after the first optimizer step of a batch": lambda context: context.step_index > 0,
    "where rows are repeated to fill up a batch": lambda context: context.filled_rows is not None,
}
"""Facts of the batch that a step is of."""

OF_CUTS: dict[str, Callable[[StepContext, TokenPlacement], bool]] = {
    "where data-parallel ranks differ in active tokens": lambda context, placement: _differ(
        context.step.mask, placement.dp_rank
    ),
    "where micro-batches differ in active tokens": lambda context, placement: _differ(
        context.step.mask, placement.micro_batch_number
    ),
    "where data-parallel ranks differ in micro-batches": lambda _, placement: _several(
        placement.micro_batches
    ),
    "where a prompt group is on several data-parallel ranks": lambda context, placement: _split(
        context.step.groups[context.sample], placement.dp_rank
    ),
    "where a prompt group is in several micro-batches": lambda context, placement: _split(
        context.step.groups[context.sample], placement.micro_batch_number
    ),
}
"""Facts of how steps are cut."""


def plainness(fact: str) -> tuple[bool, int, str]:
    """A sort key, the plainest facts first: modes and terms, checks, layouts, then steps."""
    sizes = ("where dp ", "where cp ", "where tp ", "where pp ")
    kinds = ("in ", "of ", *sizes, "with ", "where ", "")
    kind = next(place for place, start in enumerate(kinds) if fact.startswith(start))
    return fact.startswith(NEGATIVE), kind, fact


def of_finding(finding: Finding, term: str) -> Iterator[str]:
    """Yield what a finding's id and one of its terms say."""
    for mode in Mode:
        yield f"in {mode}" if mode is finding.mode else f"except in {mode}"
    yield f"of the {term} term"
    if term != Metric.POLICY_LOSS:
        yield "of auxiliary terms"
    slug = finding.identity.slug
    is_logged = slug.startswith(METRIC_CHECKS)
    if term in (Metric.POLICY_LOSS, Metric.KL) and (not is_logged or slug in LOGGED_LOSSES):
        yield "of the policy_loss and kl terms of the loss"
    yield "in logged numbers" if is_logged else "in gradients"
    if slug in LOGGED_LOSSES:
        yield "in logged losses"
    elif is_logged:
        yield "in logged diagnostics"
    if slug in LOGGED_TERMS:
        yield "in logged terms of the loss"
    if slug.startswith(Check.ROLLOUTS):
        yield "in what is logged of rollouts"
    if not is_logged or slug == WHOLE_LOSS:
        yield "in gradients and the logged loss"
    yield f"in {slug}"
    yield from _of_layout(finding.layout)


def _of_layout(layout: Layout) -> Iterator[str]:
    for name in ("dp", "cp", "tp", "pp"):
        size = getattr(layout, name)
        yield f"where {name} > 1" if size > 1 else f"where {name} = 1"
    if layout.micro_batches != 1:
        yield "with several micro-batches"
    if isinstance(layout.micro_batches, str):
        yield f"with micro-batches {'by tokens' if layout.micro_batches == 'tokens' else 'uneven'}"
    else:
        yield "with equal micro-batches"
    yield "with packed rows" if layout.format == "thd" else "with padded rows"
    for option in Option:
        yield f"with {option}" if option in layout.options else f"without {option}"


def of_context(context: StepContext) -> Iterator[str]:
    """Yield the facts of a step and of its cut."""
    yield from of_step(context.step)
    yield from (fact for fact, holds in OF_BATCHES.items() if holds(context))
    if (placement := context.placement) is not None:
        yield from (fact for fact, holds in OF_CUTS.items() if holds(context, placement))


def of_step(step: Step) -> Iterator[str]:
    """Yield the facts of a step that do not depend on its cut."""
    return (fact for fact, holds in OF_STEPS.items() if holds(step))


def _group_sizes(step: Step) -> NDArray[np.int64]:
    return np.unique(step.groups, return_counts=True)[1]


def _several(values: NDArray[np.int64]) -> bool:
    return len(np.unique(values)) > 1


def _differ(mask: NDArray[np.bool_], part: NDArray[np.int64]) -> bool:
    """Whether parts hold different numbers of active tokens."""
    return _several(np.bincount(part, weights=mask).astype(np.int64))


def _split(whole: NDArray[np.int64], part: NDArray[np.int64]) -> bool:
    """Whether something whole has tokens in several parts."""
    pairs = whole * (part.max() + 1) + part
    return len(np.unique(pairs)) > len(np.unique(whole))


LAYOUTS = (
    Layout(),
    Layout(dp=2, cp=2, tp=2, pp=2, micro_batches=2, format="thd", options=tuple(sorted(Option))),
    Layout(micro_batches="uneven"),
    Layout(micro_batches="tokens"),
)
"""Layouts that together have every fact that a layout can have."""


@cache
def facts() -> frozenset[str]:
    """Returns all facts that a condition can be made of."""
    slugs = (spec.slug for spec in CHECK_SPECS)
    findings = (
        Finding(id=f"{slug}/{Mode.TOKEN_MEAN}/any/{layout}", verdict=Verdict.CONFORMS)
        for slug, layout in product(slugs, LAYOUTS)
    )
    modes = (f"{word} {mode}" for word in ("in", "except in") for mode in Mode)
    of_findings = {
        fact for finding, term in product(findings, Metric) for fact in of_finding(finding, term)
    }
    return frozenset({*of_findings, *modes, *OF_STEPS, *OF_BATCHES, *OF_CUTS})
