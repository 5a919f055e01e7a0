"""Sums over the ranks of a job."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.distributed as dist

if TYPE_CHECKING:
    import torch

    from adapters.contract import Job


class OverRanks:
    """What is computed from numbers that ranks have of their own tokens."""

    def __init__(self, job: Job) -> None:
        self.layout = job.layout

    def added_up(self, sums: torch.Tensor) -> torch.Tensor:
        """Sums of all ranks."""
        if self.layout.world_size > 1:
            dist.all_reduce(sums)
        return sums
