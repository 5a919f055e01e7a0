"""What a cause does to training, measured on the findings that it explains."""

from __future__ import annotations

from typing import TYPE_CHECKING

from conformance.findings.cause import Impact, Range

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from conformance.findings.finding import Finding

SAME = 1e-6
"""Distance from 1 below which a cosine is 1."""


def impact(findings: Sequence[Finding]) -> Impact:
    """The ranges over all findings that have numbers."""
    logged = [finding.logged for finding in findings if finding.logged is not None]
    return Impact(
        scale=_range(finding.scale for finding in findings),
        cosine=_range(finding.cosine for finding in findings),
        reported=_range(
            number.reported / number.expected
            for number in logged
            if number.reported is not None and number.expected
        ),
    )


def _range(values: Iterable[float | None]) -> Range | None:
    numbers = [value for value in values if value is not None]
    return Range(min(numbers), max(numbers)) if numbers else None


def impact_words(impact: Impact) -> str:
    """What an impact means to who trains; empty if nothing was measured."""
    said = []
    if impact.scale is not None:
        said.append(f"as if the learning rate were multiplied by {_span(impact.scale)}")
    if impact.cosine is not None and impact.cosine.lowest < 1 - SAME:
        said.append(f"the gradient turns away (cosine {_span(impact.cosine)})")
    if impact.reported is not None:
        said.append(f"{_span(impact.reported)} times the right number is logged")
    return "; ".join(said)


def _span(values: Range) -> str:
    low, high = (f"{value:.4g}" for value in values)
    return low if low == high else f"{low} to {high}"
