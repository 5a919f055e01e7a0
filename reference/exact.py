"""Token weights in rational arithmetic, which `reference.weights` is tested against.

The code follows the definitions token by token and shares nothing with `reference.weights`.
"""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction
from typing import TYPE_CHECKING

from reference.aggregation import (
    DEFAULT_CONVENTIONS,
    Aggregation,
    Conventions,
    DenominatorMask,
    EmptyUnits,
    Mode,
    SampleUnit,
)

if TYPE_CHECKING:
    from collections.abc import Hashable

    from reference.step import Step


def token_weights(
    step: Step, aggregation: Aggregation, conventions: Conventions = DEFAULT_CONVENTIONS
) -> list[list[Fraction]]:
    """Exact weight of every response token of every sample."""
    masks = [step.mask[response].tolist() for response in step.responses]
    modified = conventions.denominator_mask is DenominatorMask.MODIFIED
    counted_mask = step.mask if modified or step.original_mask is None else step.original_mask
    counts = [sum(counted_mask[response].tolist()) for response in step.responses]
    units = [_unit(step, i, aggregation.mode, conventions) for i in range(step.size)]
    tokens: dict[Hashable, int] = defaultdict(int)
    for unit, count in zip(units, counts, strict=True):
        tokens[unit] += count
    counted = [u for u in tokens if tokens[u] or conventions.empty_units is EmptyUnits.COUNTED]

    def weight(unit: Hashable) -> Fraction:
        if aggregation.mode is Mode.CONSTANT:
            assert aggregation.divisor is not None
            return 1 / (Fraction(aggregation.divisor) * len(counted))
        return Fraction(1, len(counted) * tokens[unit])

    return [
        [weight(unit) if active else Fraction(0) for active in mask]
        for unit, mask in zip(units, masks, strict=True)
    ]


def _unit(step: Step, sample: int, mode: Mode, conventions: Conventions) -> Hashable:
    if mode is Mode.TOKEN_MEAN:
        return "step"
    if mode is Mode.PROMPT_MEAN:
        return int(step.groups[sample])
    if conventions.sample_unit is SampleUnit.ROLLOUT:
        return int(step.rollouts[sample])
    return sample
