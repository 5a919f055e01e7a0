"""Facts of a finding that a mistake may depend on: its mode, term, check and layout."""

from __future__ import annotations

from typing import TYPE_CHECKING

from adapters.contract import Option
from adapters.contract.objective import FROM_REWARDS, OF_GROUPS, OFF_POLICY, Metric
from conformance.findings.verdict import Check
from conformance.plan.checks import ALL_SPECS
from reference.aggregation import Mode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from adapters.contract import Layout
    from conformance.findings.finding import Finding
    from conformance.plan.checks import CheckSpec

WHOLE_LOSS = f"{Check.METRIC}.{Metric.LOSS}"
"""Slug of the check of the logged sum of all terms, whose gradient is trained."""

LOGGED_LOSSES = (Check.METRIC, WHOLE_LOSS)
"""Slugs of the checks of the logged policy loss and of the sum of all terms.

Other logged numbers are diagnostics, which frameworks reduce apart.
"""

LOGGED_FRACTION = f"{Check.REJECTION}.{Check.METRIC}"
"""Slug of the check of the logged fraction of rejected tokens, which corrections log themselves."""


def _slugs(of: Callable[[CheckSpec], bool]) -> frozenset[str]:
    return frozenset(spec.slug for spec in ALL_SPECS if of(spec))


LOGGED = _slugs(lambda spec: spec.metric is not None or spec.is_logged)
RATIOS_OF_1 = _slugs(lambda spec: spec.objective not in OFF_POLICY)
OF_COMPARED_REWARDS = _slugs(lambda spec: spec.objective in OF_GROUPS)
OF_RETURNS = _slugs(lambda spec: spec.objective in FROM_REWARDS) - OF_COMPARED_REWARDS
"""Slugs of checks of logged numbers, of those whose new log-probabilities are the old ones, and of
those whose advantages compare the rewards of a prompt, or add up those of tokens."""

TERMS = (Metric.POLICY_LOSS, Metric.LOSS, Metric.ENTROPY, Metric.KL)
LOGGED_TERMS = _slugs(lambda spec: spec.metric in TERMS and spec.name in ("", spec.metric))
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

REJECTED_AT_1 = "where tokens are rejected and ratios are 1"
"""A fact of a loss's terms: a framework may reject tokens in its loss, or before it counts them."""

NARROWING = (
    "of the policy_loss term where ratios",
    "in logged numbers of the loss",
    REJECTED_AT_1,
    "where all tokens of a sample are masked",  # and not rejected
)
"""Beginnings of facts that are chosen last too, where findings contradict every plainer one."""


def plainness(fact: str) -> tuple[bool, int, str]:
    """A sort key, the plainest facts first: modes and terms, checks, layouts, then steps."""
    sizes = ("where dp ", "where cp ", "where tp ", "where pp ")
    kinds = ("in ", "of the ", "of ", *sizes, "with ", "where ", "")
    kind = next(place for place, start in enumerate(kinds) if fact.startswith(start))
    return fact.startswith((*NEGATIVE, *NARROWING)), kind, fact


def of_finding(finding: Finding, term: str) -> Iterator[str]:
    """Yield what a finding's id and one of its terms say."""
    if finding.check not in (Check.ADVANTAGES, Check.ROLLOUTS):  # which are run in one mode alone
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
