"""What a cause does to training, measured on the findings that it explains."""

from __future__ import annotations

import math
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
    """Returns what an impact means for training; empty if nothing was measured."""
    said = []
    if impact.scale is not None:
        said.append(f"updates {_span(impact.scale)} times the right size")
    if impact.cosine is not None and impact.cosine.lowest < 1 - SAME:
        said.append(f"gradient direction off by up to {_angle(impact.cosine.lowest)}")
    if impact.reported is not None:
        said.append(f"logs {_span(impact.reported)} times the right number")
    return "; ".join(said)


def _angle(cosine: float) -> str:
    return f"{math.degrees(math.acos(max(cosine, -1.0))):.3g}°"


def _span(values: Range) -> str:
    low, high = (f"{value:.4g}" for value in values)
    return low if low == high else f"{low} to {high}"
