"""The stages of DeepSpeed's ZeRO in layouts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from adapters.contract import Option

if TYPE_CHECKING:
    from adapters.contract import Layout

DEFAULT_STAGE = 2

STAGES = {Option.ZERO_0: 0, Option.ZERO_1: 1, Option.ZERO_3: 3}
"""Options that choose a stage other than the default."""


def stage_of(layout: Layout) -> int:
    """The stage of ZeRO of a layout."""
    chosen = [stage for option, stage in STAGES.items() if option in layout.options]
    return chosen[0] if chosen else DEFAULT_STAGE
