"""Ways to log a loss, most of them wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from tests.tracing.toys import ToyTrainer

if TYPE_CHECKING:
    from tests.minimal.right import Rows


class LoggingTrainer(ToyTrainer):
    """Logs its loss, most often wrongly."""

    def halved(self, rows: Rows) -> float:
        """Halves the loss and doubles the gradient to compensate, but logs the halved loss."""
        loss = self.losses(rows).sum() / (self.tokens(rows) * 2)
        loss.backward()
        dist.all_reduce(self.gradient)
        self.gradient.mul_(2)
        return self.summed(loss)

    def summed(self, loss: torch.Tensor) -> float:
        logged = loss.detach().clone()
        dist.all_reduce(logged)
        return logged.item()

    def divided_in_python(self, rows: Rows) -> float:
        loss = self.losses(rows).sum()
        (loss / self.tokens(rows)).backward()
        dist.all_reduce(self.gradient)
        count = sum(torch.clamp_min(mask.sum(), 1) for mask in rows["mask"])
        values = torch.tensor([count, loss.detach()])
        dist.all_reduce(values)
        counted, total = values.tolist()
        return total / counted

    def logged_without(self, rows: Rows) -> float:
        loss = self.losses(rows).sum() / self.tokens(rows)
        loss.backward()
        dist.all_reduce(self.gradient)
        rest = loss.detach() - loss.detach() * 1
        return self.summed(rest)

    def logged_of_a_part(self, rows: Rows) -> float:
        self.reduced(rows)
        part = self.losses(rows).detach()[:, 1:]
        return self.summed(part.sum() / self.tokens(rows))

    def logged_alone(self, rows: Rows) -> float:
        loss = self.losses(rows).sum() / self.tokens(rows)
        loss.backward()
        dist.all_reduce(self.gradient)
        return loss.item()
