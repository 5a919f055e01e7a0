"""How many ranks a run can have."""

from __future__ import annotations

from dataclasses import dataclass

MAX_RANKS = 8
"""Of layouts that are run where a user says nothing."""


@dataclass(frozen=True, kw_only=True)
class RankBudget:
    """At most ``ranks``, and ``here`` of them on this machine, and what says so.

    ``way_out`` holds ``{needed}`` where the number of ranks goes that somebody wants.
    """

    ranks: int
    here: int
    rule: str
    way_out: str

    @classmethod
    def of(cls, max_ranks: int) -> RankBudget:
        """As many on this machine as a user allows."""
        return cls(
            ranks=max_ranks,
            here=max_ranks,
            rule=f"--max-ranks is {max_ranks}",
            way_out="raise --max-ranks to {needed}",
        )

    def way_out_for(self, ranks: int) -> str:
        """What to do for so many ranks."""
        return self.way_out.format(needed=ranks)
