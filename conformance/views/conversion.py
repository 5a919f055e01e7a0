"""What changes for a step that moves from one framework's reduction to another's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from conformance.comparing.conversion import differences
from conformance.views.tables import text_table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conformance.comparing.conversion import Reduction, StepChange
    from conformance.corpus.cases import Case

WORDS = {
    "sample_unit": "N counts",
    "empty_units": "samples without active tokens",
    "denominator_mask": "mask of denominators after rejection sampling",
}
"""Fields of `conformance.comparing.conversion.Declared` that reductions may differ in."""


def as_text(case: Case, before: Reduction, after: Reduction) -> Iterator[str]:
    """Yields what both reductions are, and the factor and the angle in each step of a batch."""
    yield from text_table(
        ["from" if one is before else "to", str(one), one.declared.version, one.mode]
        for one in (before, after)
    )
    for field, words in WORDS.items():
        old, new = (str(getattr(one.declared, field)) for one in (before, after))
        if old != new:
            yield f"{words}: {old}, then {new}"
    yield ""
    header = ["step", "samples", "active tokens", "learning rate", "cosine"]
    found = differences(case, before, after)
    yield from text_table([header, *(_row(number, one) for number, one in enumerate(found, 1))])
    yield ""
    yield (
        "In effect, the learning rate is multiplied by that factor; divide it by the factor to keep"
        " the step. A cosine below 1 is a change of direction, which no learning rate makes up for."
    )


def _row(number: int, one: StepChange) -> list[str]:
    return [
        str(number),
        str(one.step.size),
        str(one.step.active_tokens.sum()),
        "no gradient" if one.scale is None else f"\N{MULTIPLICATION SIGN} {one.scale:.6g}",
        "\N{EN DASH}" if one.cosine is None else f"{one.cosine:.6f}",
    ]
