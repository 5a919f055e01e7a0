"""Ways to compute wrong losses by confusing a word of the code with a similar one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from tests.tracing.toys import ToyTrainer

if TYPE_CHECKING:
    from tests.minimal.right import Rows


class ConfusedTrainer(ToyTrainer):
    """Computes losses wrongly, in each of its ways, and normalises them rightly."""

    def normalised(self, losses: torch.Tensor, rows: Rows) -> None:
        """Normalise the losses of tokens rightly."""
        (losses.sum() / self.tokens(rows)).backward()
        dist.all_reduce(self.gradient)

    def of_another_tensor(self, rows: Rows) -> None:
        """Uses the policy's log-probability, plus 1.5, instead of the old policy's."""
        new = self.log_probs(rows)
        shifted = new.detach() + 1.5
        ratios = torch.exp((new - shifted) * rows["mask"])
        self.normalised(-rows["advantages"] * ratios**2 / 2 * rows["mask"], rows)

    def of_another_number(self, rows: Rows) -> None:
        """Multiplies by one number, and divides by another."""
        low, high = 0.3, 0.7
        self.normalised(self.losses(rows) * low / high, rows)

    def of_either_number(self, rows: Rows) -> None:
        """Multiplies by one number, and divides by another number in the next line."""
        low, high = 0.3, 0.7
        multiplied = self.losses(rows) * low
        self.normalised(multiplied / high, rows)

    def without_the_last_row(self, rows: Rows) -> None:
        losses = self.losses(rows)
        count = len(losses) - 1
        kept = [losses[place].sum() for place in range(count)]
        self.normalised(torch.stack(kept), rows)

    def without_a_row_between(self, rows: Rows) -> None:
        losses = self.losses(rows)
        first, second = losses[:2], losses[3:]
        self.normalised(torch.cat([first, second]), rows)

    def without_rows_at_either_end(self, rows: Rows) -> None:
        """Leaves out rows in two lines; an edit of only one of them does not correct the loss."""
        losses = self.losses(rows)
        begun = losses[1:]
        self.normalised(begun[:-1], rows)

    def mean_of_a_row(self, rows: Rows) -> None:
        """Takes means of rows over their width instead of their sums."""
        self.normalised(self.losses(rows).mean(-1), rows)

    def mean_over_padding(self, rows: Rows) -> None:
        """Multiplies means of rows by their active tokens, though the means include masked ones."""
        losses, mask = self.losses(rows), rows["mask"]
        means = losses.mean(-1)
        self.normalised(means * mask.sum(-1), rows)

    def mean_of_all(self, rows: Rows) -> None:
        """Divides a mean of losses, instead of their sum, by the tokens."""
        self.normalised(self.losses(rows).mean(), rows)
