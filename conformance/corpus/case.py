"""A case: one batch of rollouts, with the mistake that it catches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from reference.aggregation import Aggregation, Mode

if TYPE_CHECKING:
    from adapters.contract import Layout
    from reference.step import Step

DIVISOR = 40.0
"""Default L of `constant`, which equals no count in the corpus."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One batch of rollouts: its optimizer steps and the mistake that it catches."""

    name: str
    catches: str
    source: str = ""
    """The pull request, review, paper or page that names the rule; empty for a generated case."""

    steps: tuple[Step, ...]
    divisor: float = DIVISOR
    layouts: tuple[Layout, ...] = ()
    """The only layouts that a large case runs on; all if empty."""

    def aggregation(self, mode: Mode) -> Aggregation:
        """The mode, with the case's divisor for `constant`."""
        return Aggregation(mode, self.divisor if mode is Mode.CONSTANT else None)

    @property
    def fewest_samples(self) -> int:
        """Number of samples of the smallest step."""
        return min(step.size for step in self.steps)

    def is_meant_for(self, layout: Layout) -> bool:
        """Whether the case is meant for a layout; most cases are meant for every layout."""
        return not self.layouts or layout in self.layouts

    def runs_on(self, layout: Layout) -> bool:
        """Whether the case is meant for a layout and has enough samples for its micro-batches."""
        has_enough = self.fewest_samples >= layout.dp * fewest_micro_batches(layout)
        return has_enough and self.is_meant_for(layout)


def fewest_micro_batches(layout: Layout) -> int:
    """The fewest micro-batches of a rank on a layout, 2 if the layout does not fix their number."""
    return layout.micro_batches if isinstance(layout.micro_batches, int) else 2
