"""Ways to normalise losses by counts of plain Python."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from tests.tracing.toys import ToyTrainer

if TYPE_CHECKING:
    from tests.minimal.right import Rows


def tokens_of(mask: torch.Tensor) -> int:
    """The number of active tokens, counted row by row."""
    total = 0
    for row in mask:
        total += int(row.sum())
    return total


class CountingTrainer(ToyTrainer):
    """Counts tokens in plain Python, most often wrongly."""

    def read_one_by_one(self, rows: Rows) -> None:
        count = 0
        for row in torch.ones_like(rows["mask"]):
            count += int(row.sum())
        (self.losses(rows).sum() / count).backward()

    def counted_elsewhere(self, rows: Rows) -> None:
        (self.losses(rows).sum() / tokens_of(torch.ones_like(rows["mask"]))).backward()

    def in_python_on_all(self, rows: Rows) -> None:
        attended = torch.ones_like(rows["mask"])
        total = sum(row.sum().item() for row in attended)
        count = torch.tensor(total)
        dist.all_reduce(count)
        (self.losses(rows).sum() / count).backward()
        dist.all_reduce(self.gradient)

    def of_positions(self, rows: Rows) -> None:
        count = torch.tensor(
            float(sum(row.numel() for row in rows["mask"])),
        )
        dist.all_reduce(count)
        (self.losses(rows).sum() / count).backward()
        dist.all_reduce(self.gradient)

    def of_handed_positions(self, rows: Rows) -> None:
        positions = float(sum(row.numel() for row in rows["mask"]))
        count = torch.tensor(positions)
        dist.all_reduce(count)
        (self.losses(rows).sum() / count).backward()
        dist.all_reduce(self.gradient)
