"""The effect on a step of moving from one framework's reduction to another's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from conformance.findings.agreement import direction
from conformance.views.formatting import text_table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conformance.comparing.reductions import Reduction
    from conformance.corpus.cases import Case
    from reference.step import Step


WORDS = {
    "sample_unit": "N counts",
    "empty_units": "samples without active tokens",
    "denominator_mask": "mask of denominators after rejection sampling",
}
"""The fields of `Declared` in which reductions may differ, in words."""


@dataclass(frozen=True, kw_only=True)
class StepChange:
    """The gradient of a step under another reduction, compared with the gradient before.

    Gradients of different tokens count as orthogonal and equally long, as in all reports.
    """

    step: Step

    scale: float | None
    """The least-squares factor on the learning rate; None if the gradient before is 0."""

    cosine: float | None
    """The cosine of the angle between both gradients; None if one of them is 0."""

    @property
    def norm(self) -> float | None:
        """The factor on the gradient's norm; None if either gradient is 0."""
        return self.scale / self.cosine if self.scale and self.cosine else None


def differences(case: Case, before: Reduction, after: Reduction) -> list[StepChange]:
    """Returns the change of each step of a batch that moves from one reduction to another."""
    found = []
    for step in case.steps:
        old, new = (one.weights(step, case.divisor) for one in (before, after))
        scale, cosine = direction(new, old)
        found.append(StepChange(step=step, scale=scale, cosine=cosine))
    return found


def as_text(case: Case, before: Reduction, after: Reduction) -> Iterator[str]:
    """Yields lines on both reductions, and the factor and the cosine in each step of a batch."""
    yield from text_table(
        ["from" if one is before else "to", str(one), one.declared.version, one.mode]
        for one in (before, after)
    )
    for field, words in WORDS.items():
        old, new = (str(getattr(one.declared, field)) for one in (before, after))
        if old != new:
            yield f"{words}: {old}, then {new}"
    yield ""
    header = ["step", "samples", "active tokens", "learning rate", "norm", "cosine"]
    found = differences(case, before, after)
    yield from text_table([header, *(_row(number, one) for number, one in enumerate(found, 1))])
    yield ""
    yield (
        "In effect, the learning rate is multiplied by that factor in the direction of the gradient"
        " before; divide it by the factor to keep that part of the step. A cosine below 1 is a"
        " change of direction, which no learning rate makes up for; the norm includes it."
    )


def _row(number: int, one: StepChange) -> list[str]:
    return [
        str(number),
        str(one.step.size),
        str(one.step.active_tokens.sum()),
        "no gradient" if one.scale is None else _times(one.scale),
        _times(one.norm),
        "\N{EN DASH}" if one.cosine is None else f"{one.cosine:.6f}",
    ]


def _times(factor: float | None) -> str:
    return "\N{EN DASH}" if factor is None else f"\N{MULTIPLICATION SIGN} {factor:.6g}"
