"""More ways to normalise losses wrongly, each like a mistake that was put into real code."""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from adapters.contract.objective import KL_COEFFICIENT, Metric
from reference.aggregation import Mode
from tests.tracing.confused import ConfusedTrainer
from tests.tracing.counting import CountingTrainer
from tests.tracing.logging_losses import LoggingTrainer
from tests.tracing.toys import ToyAdapter

if TYPE_CHECKING:
    from adapters.contract import Description, Job, Observation, Rank
    from adapters.contract.batch.probed_batch import ProbedBatch
    from tests.minimal.right import Rows


class Reduction(Enum):
    """A way to reduce the ranks' numbers to one number."""

    MEAN = "mean"
    SUM = "sum"


class MistakenTrainer(ConfusedTrainer, CountingTrainer, LoggingTrainer):
    """Makes the mistakes of its base classes and more."""

    ranks = 1

    def train_step(self, rows: Rows, mode: Mode, micro_batches: int) -> float:
        self.mode = mode
        return super().train_step(rows, mode, micro_batches)

    def tokens_in_every_mode(self, rows: Rows) -> None:
        """Divides by the tokens of the step, also where means of samples need no count."""
        masks = [torch.zeros_like(rows["mask"]) for _ in range(dist.get_world_size())]
        dist.all_gather(masks, rows["mask"])
        count = sum([mask.sum() for mask in torch.cat(masks)])
        losses = self.losses(rows)
        if self.mode is Mode.SAMPLE_MEAN:
            losses = (
                losses / rows["mask"].sum(-1, keepdim=True).clamp(min=1) / len(torch.cat(masks))
            )
        (losses.sum() / count).backward()
        dist.all_reduce(self.gradient)

    def of_pieces(self, rows: Rows) -> None:
        mask = rows["mask"][0]
        pieces = torch.cat([mask[:1], mask[1:]])
        own = pieces.sum()
        (self.losses(rows).sum() / own).backward()
        dist.all_reduce(self.gradient)

    def logged_unread(self, rows: Rows) -> float:
        loss = self.losses(rows).sum() / self.tokens(rows)
        loss.backward()
        dist.all_reduce(self.gradient)
        logged = loss.detach().clone()
        dist.all_reduce(logged.clone())
        return logged.item()

    def ranks_alike(self, rows: Rows) -> None:
        """Weights a rank's right mean by a wrong share; a wrong mean could compensate for that."""
        own = rows["mask"].sum()
        mean = self.losses(rows).sum() / own
        share = self.tokens(rows) / dist.get_world_size()
        (mean * share / self.tokens(rows)).backward()
        dist.all_reduce(self.gradient)

    def rows_alike(self, rows: Rows) -> None:
        """Weights right means of rows by wrong shares; the reference has no count of a row."""
        own = rows["mask"].sum(-1).clamp(min=1)
        means = self.losses(rows).sum(-1) / own
        count = self.tokens(rows)
        shares = count / len(own) / dist.get_world_size()
        ((means * shares).sum() / count).backward()
        dist.all_reduce(self.gradient)

    def weighed_by_all(self, rows: Rows) -> None:
        """Multiplies each row by a wrong count, and divides by the sum of these counts."""
        whole = torch.stack([self.counted_all(row) for row in rows["mask"]]).sum()
        dist.all_reduce(whole)
        means = self.losses(rows).sum(-1) / rows["mask"].sum(-1).clamp(min=1)
        shares = torch.stack([self.counted_all(row) for row in rows["mask"]])
        ((means * shares).sum() / whole).backward()
        dist.all_reduce(self.gradient)

    def counted_all(self, mask: torch.Tensor) -> torch.Tensor:
        return torch.ones_like(mask).sum()

    def one_more(self, rows: Rows) -> None:
        """Makes a wrong count of right numbers, in a function that another line calls, too."""
        self.counted_with_one(rows["mask"] * 0)
        count = self.counted_with_one(rows["mask"])
        dist.all_reduce(count)
        (self.losses(rows).sum() / count).backward()
        dist.all_reduce(self.gradient)

    def counted_with_one(self, mask: torch.Tensor) -> torch.Tensor:
        return mask.sum() + 1 / dist.get_world_size()

    def last_left_out(self, rows: Rows) -> None:
        """Counts the tokens of all rows but the last."""
        count = 0.0
        for row in rows["mask"][:-1]:
            count += row.sum().item()
        total = torch.tensor(count)
        dist.all_reduce(total)
        (self.losses(rows).sum() / total).backward()
        dist.all_reduce(self.gradient)

    def last_kept(self, rows: Rows) -> None:
        """Keeps the count of the last row instead of adding up the counts of all rows."""
        for row in rows["mask"]:
            count = row.sum().item()
        total = torch.tensor(count)
        dist.all_reduce(total)
        (self.losses(rows).sum() / total.clamp(min=1)).backward()
        dist.all_reduce(self.gradient)

    def half_of_a_mask(self, rows: Rows) -> None:
        """Applies to each token the mask of the token before it."""
        padded = torch.nn.functional.pad(rows["mask"], (1, 0))
        kept = padded[:, :-1]
        self.normalised(self.losses(rows) * kept, rows)

    def half_as_large(self, rows: Rows) -> None:
        """Halves all losses, as if one of two ranks were left out."""
        self.normalised(0.5 * self.losses(rows), rows)

    def of_further_rows(self, rows: Rows) -> None:
        """Counts the tokens of all rows but the first, which an earlier line leaves out."""
        mask = rows["mask"]
        kept = mask[1:] > 0
        count = kept.sum().float()
        dist.all_reduce(count)
        (self.losses(rows).sum() / count).backward()
        dist.all_reduce(self.gradient)

    def largest(self, rows: Rows) -> None:
        """Takes the largest of the ranks' right counts instead of their sum."""
        count = rows["mask"].sum()
        dist.all_reduce(count, op=dist.ReduceOp.MAX)
        (self.losses(rows).sum() / count).backward()
        dist.all_reduce(self.gradient)

    def of_a_copy(self, rows: Rows) -> None:
        """Sums a copy of the count over ranks, but divides by the count itself."""
        count = rows["mask"].sum()
        dist.all_reduce(count.clone())
        (self.losses(rows).sum() / count).backward()
        dist.all_reduce(self.gradient)

    def logged_afterwards(self, rows: Rows) -> None:
        """Divides by the rank's tokens, and counts the step's tokens only after that."""
        count = rows["mask"].sum()
        (self.losses(rows).sum() / count).backward()
        dist.all_reduce(self.gradient)
        dist.all_reduce(count.clone())

    def of_another_variable(self, rows: Rows) -> None:
        """Divides by the rank's tokens, although another variable has the step's tokens."""
        own = rows["mask"].sum()
        whole = own + self.tokens(rows) - own
        assert whole is not own
        (self.losses(rows).sum() / own).backward()
        dist.all_reduce(self.gradient)

    def of_an_unscaled_loss(self, rows: Rows) -> None:
        """Scales the loss by the ranks that average gradients, but uses the unscaled loss."""
        loss = self.losses(rows).sum() / self.tokens(rows)
        scaled = loss * dist.get_world_size()
        assert scaled is not loss
        loss.backward()
        dist.all_reduce(self.gradient)
        self.gradient.div_(dist.get_world_size())

    def smaller(self, rows: Rows) -> None:
        """Takes the smaller of two losses instead of the larger."""
        losses = self.losses(rows)
        self.normalised(torch.min(losses, torch.full_like(losses, -1e9)), rows)

    def other_sign(self, rows: Rows) -> None:
        losses = -self.losses(rows)
        self.normalised(losses, rows)

    def other_tokens(self, rows: Rows) -> None:
        kept = rows["mask"] <= 0
        self.normalised(self.losses(rows) * kept, rows)

    def other_branch(self, rows: Rows) -> None:
        losses = self.losses(rows)
        self.normalised(torch.where(rows["mask"] > 0, torch.zeros(()), losses), rows)

    def bounded_above(self, rows: Rows) -> None:
        losses = self.losses(rows)
        self.normalised(losses.clamp(max=-1e9), rows)

    def detached(self, rows: Rows) -> None:
        losses = self.losses(rows).detach() + 0 * self.log_probs(rows)
        self.normalised(losses, rows)

    def multiplied_in_place(self, rows: Rows) -> None:
        """Multiplies the losses by their tokens' probabilities."""
        losses = self.losses(rows)
        losses *= torch.exp(self.log_probs(rows).detach())
        self.normalised(losses, rows)

    def without_weight(self, rows: Rows) -> None:
        for place in range(len(rows["mask"])):
            part = {name: values[place : place + 1] for name, values in rows.items()}
            mean = self.losses(part).sum() / part["mask"].sum()
            (mean * 1).backward()

    def by_width(self, rows: Rows) -> None:
        """Divides by the width of rows, which is also in a list of lengths in plain Python."""
        assert max(self.widths_of(rows))
        (self.losses(rows).sum() / rows["mask"].size(-1)).backward()

    def widths_of(self, rows: Rows) -> list[int]:
        return [len(row) for row in rows["mask"].tolist()]

    def handed_setting(self, rows: Rows) -> None:
        self.divided_by(rows, steps=self.settings.steps)

    def divided_by(self, rows: Rows, steps: int) -> None:
        (self.losses(rows).sum() / steps).backward()
        dist.all_reduce(self.gradient)

    def named_average(self, rows: Rows) -> float:
        loss = self.losses(rows).sum() / self.tokens(rows)
        loss.backward()
        dist.all_reduce(self.gradient)
        number, how = self.summed(loss), Reduction.MEAN
        return reduced(number, how)

    def less(self, rows: Rows) -> None:
        count = torch.zeros(())
        for row in rows["mask"]:
            own = row.sum() - 1
            count += own
        (self.losses(rows).sum() / count).backward()

    def divided_too_often(self, rows: Rows) -> None:
        ranks = dist.get_world_size()
        loss = self.losses(rows).sum() / self.tokens(rows) * torch.ones(())
        loss = loss * ranks
        loss = loss / torch.full((), ranks)
        loss.backward()
        dist.all_reduce(self.gradient)
        self.gradient.div_(ranks)

    def scaled_term(self, rows: Rows) -> float:
        """Logs a term multiplied by its coefficient, as the term is in the loss."""
        log_probs, count = self.log_probs(rows), self.tokens(rows)
        ratios = log_probs - rows["old_log_probs"] - rows["reference"]
        term = (ratios * rows["mask"]).sum() / count
        loss = self.losses(rows, log_probs).sum() / count
        loss += term * KL_COEFFICIENT
        logged = term * KL_COEFFICIENT
        loss.backward()
        dist.all_reduce(self.gradient)
        self.looked_at(round(loss.item() * 2))
        return self.summed(logged)

    def doubled(self, rows: Rows) -> None:
        (self.losses(rows).sum() * 2 / self.tokens(rows)).backward()
        dist.all_reduce(self.gradient)

    def bounded(self, rows: Rows) -> None:
        count = self.tokens(rows).clamp(min=1.0) / self.ranks
        count = count * len(rows["mask"])
        (self.losses(rows).sum() / count).backward()


def reduced(number: float, how: Reduction) -> float:
    """A sum over ranks, or the mean over ranks that the sum gives."""
    return number / dist.get_world_size() if how is Reduction.MEAN else number


class MistakenAdapter(ToyAdapter):
    """Chooses among the ways of all trainers."""

    trainer = MistakenTrainer

    def describe(self) -> Description:
        metrics = frozenset({Metric.POLICY_LOSS, Metric.KL})
        return replace(super().describe(), metrics=metrics)

    def observe(self, job: Job, rank: Rank) -> Observation:
        seen = super().observe(job, rank)
        return replace(seen, reported=dict.fromkeys(Metric, seen.reported[Metric.POLICY_LOSS]))

    def rows(self, batch: ProbedBatch, start: int, end: int) -> Rows:
        rows = dict(super().rows(batch, start, end))
        reference = torch.zeros_like(rows["mask"])
        for row, sample in enumerate(range(start, end)):
            first, values = len(batch.prompts[sample]) - 1, batch.reference_log_probs[sample]
            reference[row, first : first + len(values)] = torch.from_numpy(values)
        return {**rows, "reference": reference}
