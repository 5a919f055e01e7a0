"""Facts on which a mistake may depend: of a finding, of its step, and of how the step was cut."""

from __future__ import annotations

from functools import cache, lru_cache
from itertools import chain, product
from typing import TYPE_CHECKING

import numpy as np

from adapters.contract import Layout, Option
from adapters.contract.objective import FROM_REWARDS, OF_GROUPS, OFF_POLICY, Metric
from conformance.expected.placement import passes_in_order, token_placement
from conformance.expected.step_context import truncated_samples
from conformance.findings.cause import EMPTY_SAMPLE
from conformance.findings.finding import Finding
from conformance.findings.verdict import Check, Verdict
from conformance.plan.checks import ALL_SPECS, CHECK_SPECS
from reference.aggregation import Mode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from conformance.expected.placement import TokenPlacement
    from conformance.expected.step_context import StepContext
    from conformance.plan.checks import CheckSpec
    from reference.arrays import Integers, Mask, Values
    from reference.step import Step


WHOLE_LOSS = f"{Check.METRIC}.{Metric.LOSS}"
"""The slug of the check of the logged total loss."""

LOGGED_LOSSES = (Check.METRIC, WHOLE_LOSS)
"""The slugs of the checks of the logged policy loss and the logged total loss.

Other logged numbers are diagnostics, which frameworks reduce separately.
"""

LOGGED_FRACTION = f"{Check.REJECTION}.{Check.METRIC}"
"""The slug of the check of the logged fraction of rejected tokens, which corrections log."""


def _slugs(of: Callable[[CheckSpec], bool]) -> frozenset[str]:
    return frozenset(spec.slug for spec in ALL_SPECS if of(spec))


def _is_logged(spec: CheckSpec) -> bool:
    """Whether a check compares logged numbers, except those of advantages after rejection."""
    is_of_advantages = spec.check is Check.REJECTION and spec.objective in FROM_REWARDS
    return spec.is_logged or (spec.metric is not None and not is_of_advantages)


LOGGED = _slugs(_is_logged)
RATIOS_OF_1 = _slugs(lambda spec: spec.objective not in OFF_POLICY)
OF_COMPARED_REWARDS = _slugs(lambda spec: spec.objective in OF_GROUPS)
OF_RETURNS = _slugs(lambda spec: spec.objective in FROM_REWARDS) - OF_COMPARED_REWARDS
"""The slugs of checks of logged numbers (`LOGGED`), of checks whose new log-probabilities equal the
old ones (`RATIOS_OF_1`), of checks whose advantages compare rewards of a prompt
(`OF_COMPARED_REWARDS`), and of checks whose advantages are returns (`OF_RETURNS`)."""

TERMS = (Metric.POLICY_LOSS, Metric.LOSS, Metric.ENTROPY, Metric.KL)
LOGGED_TERMS = _slugs(lambda spec: spec.metric in TERMS and spec.name in ("", spec.metric))
"""The slugs of the checks of the logged terms of the loss and of their sum."""

NEGATIVE = (
    "except in ",
    "without ",
    "where dp = 1",
    "where cp = 1",
    "where tp = 1",
    "where pp = 1",
    "where no token is rejected",
)
"""Prefixes of negative facts, which are chosen last."""

REJECTED_AT_1 = "where tokens are rejected and ratios are 1"
"""A fact of terms: some frameworks reject tokens in the loss, others before they count tokens."""

NARROWING = (
    "of the policy_loss term where ratios",
    "in logged numbers of the loss",
    REJECTED_AT_1,
    "where all tokens of a sample are masked",  # by the mask before rejection
)
"""Prefixes of narrow facts, which are chosen last, if findings contradict every plainer fact."""


def plainness(fact: str) -> tuple[bool, int, str]:
    """A sort key, the plainest facts first: modes and terms, checks, layouts, then steps."""
    sizes = ("where dp ", "where cp ", "where tp ", "where pp ")
    kinds = ("in ", "of the ", "of ", *sizes, "with ", "where ", "")
    kind = next(place for place, start in enumerate(kinds) if fact.startswith(start))
    return fact.startswith((*NEGATIVE, *NARROWING)), kind, fact


def of_finding(finding: Finding, term: str) -> Iterator[str]:
    """Yield the facts in a finding's id, and the facts of one of its terms."""
    if finding.check not in (Check.ADVANTAGES, Check.ROLLOUTS):  # these run in a single mode
        for mode in Mode:
            yield f"in {mode}" if mode is finding.mode else f"except in {mode}"
    yield f"of the {term} term"
    slug = finding.identity.slug
    if term != Metric.POLICY_LOSS:
        yield "of auxiliary terms"
    elif slug in RATIOS_OF_1:
        yield "of the policy_loss term where ratios are 1"
    else:
        yield "of the policy_loss term where ratios are not 1"
    if finding.check is Check.REJECTION and slug in RATIOS_OF_1 and slug != LOGGED_FRACTION:
        yield REJECTED_AT_1
    is_logged = slug in LOGGED
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
    elif is_logged and slug != LOGGED_FRACTION:
        yield "in logged numbers of the loss"
    if not is_logged or slug in LOGGED_TERMS:
        yield "except in logged diagnostics"
    if not is_logged or slug == WHOLE_LOSS:
        yield "in gradients and the logged loss"
    yield f"in {slug}"
    if slug in OF_COMPARED_REWARDS:
        yield "in advantages that compare the rewards of a prompt"
    elif slug in OF_RETURNS:
        yield "in advantages that add up the rewards of tokens"
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


LARGE = 1000.0
"""The least size of a reward whose square has no reliable decimals in float32."""

SAME = 5e-3
"""The largest relative difference of rewards that hardly differ: in float32, the square of the
difference keeps two digits beside the square of a reward."""

OF_STEPS: dict[str, Callable[[Step], bool]] = {
    EMPTY_SAMPLE: lambda step: bool((step.active_tokens == 0).any()),
    "where all tokens of a sample are masked": lambda step: bool((step.original_tokens == 0).any()),
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
    "where some samples of a prompt are rejected": lambda step: _some_are_rejected(step),
    "where a reward is compared with no other": lambda step: _has_prompt(
        step, lambda rewards: np.isfinite(rewards).sum() == 1
    ),
    "where a sample has no reward": lambda step: _has_prompt(
        step, lambda rewards: bool(np.isnan(rewards).any())
    ),
    "where all rewards of a prompt are equal": lambda step: _has_prompt(
        step, lambda rewards: len(rewards) > 1 and not np.ptp(rewards)
    ),
    "where rewards of a prompt hardly differ": lambda step: _has_prompt(step, _hardly_differ),
    "where a rewarded response ends with a masked token": lambda step: (
        step.rewards is not None and ends_masked(step)
    ),
    "where rewards are large": lambda step: _has_prompt(
        step, lambda rewards: bool(np.abs(rewards).max() >= LARGE)
    ),
}
"""Facts of a step that do not depend on how it is cut, each with its test."""

OF_JOBS: dict[str, Callable[[Step, Sequence[Step], Layout], bool]] = {
    "where a batch is no multiple of the data-parallel ranks": lambda step, _, layout: bool(
        step.size % layout.dp
    ),
    "where micro-batches differ in their number of samples": lambda step, _, layout: bool(
        isinstance(layout.micro_batches, int) and step.size % (layout.dp * layout.micro_batches)
    ),
    "where all tokens of a row are masked": lambda step, _, layout: _has_masked_row(step, layout),
    "where there are fewer active tokens than data-parallel ranks": lambda step, _, layout: bool(
        0 < step.active_tokens.sum() + _truncated_tokens(step, layout).sum() < layout.dp
    ),
    "where a batch has several optimizer steps": lambda _, steps, __: len(steps) > 1,
}
"""Facts of a step, given the steps of its batch and the layout, each with its test. A step without
active tokens has a fact of its own in `OF_STEPS`."""

OF_BATCHES: dict[str, Callable[[StepContext], bool]] = {
    "after the first optimizer step of a batch": lambda context: context.step_index > 0,
    "where rows are repeated to fill up a batch": lambda context: context.filled_rows is not None,
}
"""Facts of a step within its batch, each with its test."""

OF_CUTS: dict[str, Callable[[Step, TokenPlacement], bool]] = {
    "where data-parallel ranks differ in active tokens": lambda step, placement: _differ(
        step.mask, placement.dp_rank
    ),
    "where micro-batches differ in active tokens": lambda step, placement: _differ(
        step.mask, placement.micro_batch_number
    ),
    "where data-parallel ranks differ in micro-batches": lambda _, placement: _several(
        placement.micro_batches
    ),
    "where a prompt group is on several data-parallel ranks": lambda step, placement: _split(
        np.repeat(step.groups, step.response_lengths), placement.dp_rank
    ),
    "where a prompt group is in several micro-batches": lambda step, placement: _split(
        np.repeat(step.groups, step.response_lengths), placement.micro_batch_number
    ),
}
"""Facts of how a step is cut, each with its test."""

FACTS_OF_STEPS = frozenset({*OF_STEPS, *OF_JOBS, *OF_BATCHES, *OF_CUTS})


def of_context(context: StepContext) -> Iterator[str]:
    """Yield the facts of a step and of its cut."""
    yield from of_step(context.step, context.steps, context.layout)
    yield from (fact for fact, holds in OF_BATCHES.items() if holds(context))
    if (placement := context.placement) is not None:
        yield from (fact for fact, holds in OF_CUTS.items() if holds(context.step, placement))


@lru_cache(maxsize=4096)
def of_cut_in_order(step: Step, layout: Layout) -> frozenset[str]:
    """The facts of a step's cut if samples are cut in order into ranks and micro-batches."""
    placement = token_placement(passes_in_order(step, layout), layout)
    return frozenset(fact for fact, holds in OF_CUTS.items() if holds(step, placement))


@lru_cache(maxsize=4096)
def of_steps(steps: tuple[Step, ...], layout: Layout) -> tuple[str, ...]:
    """The facts of all steps of a batch, before it is known how a framework cuts them."""
    facts = (of_step(step, steps, layout) for step in steps)
    return tuple(dict.fromkeys(chain.from_iterable(facts)))


def of_step(step: Step, steps: Sequence[Step], layout: Layout) -> Iterator[str]:
    """Yield the facts of a step of a batch that do not depend on its cut."""
    yield from (fact for fact, holds in OF_STEPS.items() if holds(step))
    yield from (fact for fact, holds in OF_JOBS.items() if holds(step, steps, layout))


def ends_masked(step: Step) -> bool:
    """Whether the last token of a sample with active tokens is masked."""
    return bool((step.active_tokens > 0)[~step.mask[step.offsets[1:] - 1]].any())


def _has_prompt(step: Step, holds: Callable[[Values], bool]) -> bool:
    """Whether a test holds for the rewards of at least one prompt; False without given rewards."""
    rewards = step.rewards
    if rewards is None:
        return False
    return any(holds(rewards[step.groups == group]) for group in np.unique(step.groups))


def _hardly_differ(rewards: Values) -> bool:
    """Whether all rewards except possibly the smallest and the largest are nearly equal."""
    without_ends = np.sort(rewards)[1:-1]
    return bool(len(without_ends) > 1 and np.ptp(without_ends) <= SAME * np.abs(rewards).max())


def _some_are_rejected(step: Step) -> bool:
    """Whether a prompt has a sample whose tokens are all rejected, and one that is kept."""
    kept = step.active_tokens > 0
    rejected = (step.original_tokens > 0) & ~kept
    return bool(np.intersect1d(step.groups[kept], step.groups[rejected]).size)


def _truncated_tokens(step: Step, layout: Layout) -> Integers:
    """The number of tokens of each sample that the truncation filter masks: [N]."""
    return np.where(truncated_samples(step, layout), step.response_lengths, 0)


def _has_masked_row(step: Step, layout: Layout) -> bool:
    """Whether a row has no active token before tokens are rejected or samples are filtered.

    A padded row has one sample; a packed row has all samples of its micro-batch.
    """
    tokens = step.original_tokens + _truncated_tokens(step, layout)
    row = np.arange(step.size)
    if layout.format == "thd":
        placement = token_placement(passes_in_order(step, layout), layout)
        row = placement.micro_batch_number[step.offsets[:-1]]
    return not np.bincount(row, weights=tokens).all()


def _group_sizes(step: Step) -> Integers:
    return np.unique(step.groups, return_counts=True)[1]


def _several(values: Integers) -> bool:
    return len(np.unique(values)) > 1


def _differ(mask: Mask, part: Integers) -> bool:
    """Whether parts hold different numbers of active tokens."""
    return _several(np.bincount(part, weights=mask).astype(np.int64))


def _split(whole: Integers, part: Integers) -> bool:
    """Whether a unit, such as a prompt group, has tokens in several parts."""
    pairs = whole * (part.max() + 1) + part
    return len(np.unique(pairs)) > len(np.unique(whole))


LAYOUTS = (
    Layout(),
    Layout(dp=2, cp=2, tp=2, pp=2, micro_batches=2, format="thd", options=tuple(sorted(Option))),
    Layout(micro_batches="uneven"),
    Layout(micro_batches="tokens"),
)
"""Layouts that together have every possible fact of a layout."""


@cache
def facts() -> frozenset[str]:
    """Returns all facts that may be in a condition."""
    slugs = (spec.slug for spec in CHECK_SPECS)
    findings = (
        Finding(id=f"{slug}/{Mode.TOKEN_MEAN}/any/{layout}", verdict=Verdict.CONFORMS)
        for slug, layout in product(slugs, LAYOUTS)
    )
    modes = (f"{word} {mode}" for word in ("in", "except in") for mode in Mode)
    of_findings = {
        fact for finding, term in product(findings, Metric) for fact in of_finding(finding, term)
    }
    return frozenset({*of_findings, *modes, *FACTS_OF_STEPS})
