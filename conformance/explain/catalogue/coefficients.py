"""Known mistakes of a coefficient that follows a measured number from step to step.

Each is said by what it multiplies the right coefficient by, within the bounds of its change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from conformance.explain.catalogue.mistake import Kind, known

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    from numpy.typing import NDArray

    from conformance.expected.term import LossTerm
    from reference.controllers import AdaptiveCoefficient

known(
    {
        "coefficient_fixed": "the coefficient does not follow its target",
        "coefficient_adapted_the_wrong_way": (
            "the coefficient falls where it is to rise, and rises where it is to fall"
        ),
        "coefficient_adapted_twice": "the coefficient is adapted twice after one step",
    },
    rank=14,
    kind=Kind.LOGGED,
)


def wrong_coefficients(
    adaptive: AdaptiveCoefficient, term: LossTerm
) -> Iterator[tuple[str, NDArray[np.float64]]]:
    """Yield names and factors, [tokens], whose sum is the coefficient with each mistake."""
    if not term.expected:
        return
    right = adaptive.after(term.expected / adaptive.coefficient * adaptive.target)
    change = right / adaptive.coefficient
    for name, wrong in (
        ("coefficient_fixed", adaptive.coefficient),
        ("coefficient_adapted_the_wrong_way", adaptive.coefficient * (2 - change)),
        ("coefficient_adapted_twice", right * change),
    ):
        yield name, term.factors * (wrong / term.expected)
