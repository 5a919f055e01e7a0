"""Ways to normalise losses by counts of plain Python."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from tests.tracing.toys import ToyTrainer

if TYPE_CHECKING:
    from tests.minimal.right import Rows


@dataclass(frozen=True)
class Counted:
    """A count that is handed on."""

    tokens: float


def tokens_of(mask: torch.Tensor) -> int:
    """The number of active tokens, counted row by row."""
    total = 0
    for row in mask:
        total += int(row.sum())
    return total


class CountingTrainer(ToyTrainer):
    """Counts tokens in plain Python, most often wrongly."""

    def in_a_field(self, rows: Rows) -> None:
        held = SimpleNamespace(tokens=self.entries(rows["mask"].tolist()))
        (self.losses(rows).sum() / torch.tensor(held.tokens)).backward()

    def handed_on(self, rows: Rows) -> None:
        self.width(rows["mask"])  # as many, of something else
        held = Counted(self.entries(rows["mask"].tolist()))
        (self.losses(rows).sum() / torch.tensor(held.tokens)).backward()

    def width(self, mask: torch.Tensor) -> float:
        return float(mask.numel())

    def whole_in_a_dataclass(self, rows: Rows) -> None:
        entries = sum(map(len, rows["mask"].tolist()))
        held = Counted(tokens=entries)
        (self.losses(rows).sum() / torch.tensor(held.tokens)).backward()

    def of_whole_numbers(self, rows: Rows) -> None:
        self.width(rows["mask"])
        _ = -self.made_of(rows["mask"].numel())
        count = self.made_of(self.whole(rows["mask"].tolist()))
        (self.losses(rows).sum() / count).backward()

    def whole(self, mask: list[list[float]]) -> int:
        return sum(map(len, mask))

    def made_of(self, number: int) -> torch.Tensor:
        return torch.tensor(number)

    def by_kind(self, rows: Rows) -> None:
        self.divisors(rows["mask"].tolist(), "rows")
        count = self.divisors(rows["mask"].tolist(), "entries")
        (self.losses(rows).sum() / torch.tensor(count)).sum().backward()

    def divisors(self, mask: list[list[float]], kind: str) -> list[float]:
        if kind == "rows":
            return [float(len(mask))]
        return [float(sum(map(len, mask)))]

    def entries(self, mask: list[list[float]]) -> float:
        return float(sum(map(len, mask)))

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
