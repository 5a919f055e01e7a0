"""A trainer that normalises losses in many ways, each of which a trace must follow.

The text of a job's divisor names the way, such as ``clamped``.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate
from torch.testing._internal.two_tensor import TwoTensor

from tests.minimal.right import MinimalAdapter, Trainer, rank_rows
from tests.tracing.functions import InChunks, Tagged, Tripled, backward_in_another_thread

if TYPE_CHECKING:
    from adapters.contract import Job, Observation, Rank
    from reference.aggregation import Mode
    from tests.minimal.right import Rows


class ToyTrainer(Trainer):
    """Trains a mean over the tokens of all rows, computed in the chosen way."""

    way = "reduced"
    settings = SimpleNamespace(steps=5)

    def train_step(self, rows: Rows, mode: Mode, micro_batches: int) -> float:
        mine = {name: values[rank_rows(rows)] for name, values in rows.items()}
        logged = getattr(self, self.way)(mine)
        self.optimizer.step()
        return logged or 0.0

    @property
    def gradient(self) -> torch.Tensor:
        [parameter] = self.model.parameters()
        assert parameter.grad is not None
        return parameter.grad

    def log_probs(self, rows: Rows) -> torch.Tensor:
        logits = self.model(rows["ids"])["logits"][:, :-1]
        return torch.log_softmax(logits, -1).gather(-1, rows["ids"][:, 1:, None]).squeeze(-1)

    def losses(self, rows: Rows, log_probs: torch.Tensor | None = None) -> torch.Tensor:
        if log_probs is None:
            log_probs = self.log_probs(rows)
        ratios = torch.exp((log_probs - rows["old_log_probs"]) * rows["mask"])
        return -(rows["advantages"] * ratios) * rows["mask"]

    def tokens(self, rows: Rows) -> torch.Tensor:
        count = rows["mask"].sum()
        dist.all_reduce(count)
        return count

    def reduced(self, rows: Rows) -> None:
        (self.losses(rows).sum() / self.tokens(rows)).backward()
        dist.all_reduce(self.gradient)

    def clamped(self, rows: Rows) -> None:
        count = sum(torch.clamp_min(mask.sum(), 1) for mask in rows["mask"])
        dist.all_reduce(count)
        (self.losses(rows).sum() / count).backward()
        dist.all_reduce(self.gradient)

    def gathered(self, rows: Rows) -> None:
        counts = [torch.zeros(()) for _ in range(dist.get_world_size())]
        dist.all_gather(counts, rows["mask"].sum())
        (self.losses(rows).sum() / torch.stack(counts).sum()).backward()
        dist.all_reduce(self.gradient)

    def once_more(self, rows: Rows) -> None:
        count = self.tokens(rows)
        dist.all_reduce(count)
        (self.losses(rows).sum() / count).backward()
        dist.all_reduce(self.gradient)

    def of_a_rank(self, rows: Rows) -> None:
        count = rows["mask"].sum()
        (self.losses(rows).sum() / count).backward()
        dist.all_reduce(self.gradient)

    def times_ranks(self, rows: Rows) -> None:
        count = self.tokens(rows) / dist.get_world_size()
        (self.losses(rows).sum() / (count * dist.get_world_size())).backward()
        dist.all_reduce(self.gradient, op=dist.ReduceOp.AVG)

    def meant(self, rows: Rows) -> None:
        self.losses(rows).mean().backward()

    def times_one(self, rows: Rows) -> None:
        count = self.tokens(rows) * 1
        (self.losses(rows).sum() / count).backward()
        dist.all_reduce(self.gradient)
        self.gradient.div_(dist.get_world_size())

    def lost(self, rows: Rows) -> None:
        (self.losses(rows).sum() / self.tokens(rows)).backward()
        self.gradient.zero_()

    def left_out(self, rows: Rows) -> None:
        kept = rows["mask"].clone()
        kept[:, -1] = 0
        (self.losses(rows) * kept).sum().div(self.tokens(rows)).backward()
        dist.all_reduce(self.gradient)

    def shared_by_none(self, rows: Rows) -> None:
        (self.losses(rows).sum() / self.tokens(rows)).backward()
        of_ranks = [torch.zeros_like(self.gradient) for _ in range(dist.get_world_size())]
        dist.all_gather(of_ranks, self.gradient)
        self.gradient.copy_(of_ranks[dist.get_rank()])

    def by_size(self, rows: Rows) -> None:
        losses = self.losses(rows)
        (losses.sum() / self.tokens(rows) / losses.detach().abs().max()).backward()
        dist.all_reduce(self.gradient)

    def read(self, rows: Rows) -> None:
        count = self.tokens(rows).item()
        (self.losses(rows).sum() / count).backward()
        dist.all_reduce(self.gradient)

    def behind_torch(self, rows: Rows) -> None:
        count = self.tokens(rows).clone()
        np.multiply(count.numpy(), 2, out=count.numpy())
        (self.losses(rows).sum() / count).backward()
        dist.all_reduce(self.gradient)

    def averaged(self, rows: Rows) -> None:
        ranks = 1
        (self.losses(rows).sum() / self.tokens(rows) * ranks).backward()
        dist.all_reduce(self.gradient)
        self.gradient.div_(dist.get_world_size())

    def function(self, rows: Rows) -> None:
        (Tripled.apply(self.losses(rows).sum()) / self.tokens(rows)).backward()
        dist.all_reduce(self.gradient)

    def in_another_thread(self, rows: Rows) -> None:
        loss = Tripled.apply(self.losses(rows).sum()) / self.tokens(rows)
        backward_in_another_thread(loss)
        dist.all_reduce(self.gradient)

    def chunked(self, rows: Rows) -> None:
        log_probs = self.log_probs(rows)
        loss = InChunks.apply(log_probs, rows["advantages"] * rows["mask"], self.tokens(rows))
        (loss * 2).backward()
        dist.all_reduce(self.gradient)

    def foreach(self, rows: Rows) -> None:
        self.losses(rows).sum().backward()
        torch._foreach_mul_([self.gradient], [1 / self.tokens(rows)])
        dist.all_reduce(self.gradient)

    def view(self, rows: Rows) -> None:
        self.losses(rows).sum().backward()
        size = len(self.gradient)
        buffer = torch.zeros(2 * size)
        buffer[size:].add_(self.gradient)
        buffer[:size].fill_(1)
        buffer.div_(self.tokens(rows))
        self.gradient.copy_(buffer[size:])
        dist.all_reduce(self.gradient)

    def upcast(self, rows: Rows) -> None:
        (self.losses(rows).double().sum() / self.tokens(rows).double()).float().backward()
        dist.all_reduce(self.gradient)

    def bfloat16(self, rows: Rows) -> None:
        (self.losses(rows).bfloat16().sum() / self.tokens(rows).bfloat16()).backward()
        dist.all_reduce(self.gradient)

    def dtensor(self, rows: Rows) -> None:
        (self.losses(rows).sum() / self.tokens(rows)).backward()
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        shared = DTensor.from_local(self.gradient, mesh, [Partial()])
        self.gradient.copy_(shared.redistribute(placements=[Replicate()]).to_local())

    def compiled(self, rows: Rows) -> None:
        reduce = torch.compile(lambda losses, count: losses.sum() / count, backend="eager")
        reduce(self.losses(rows), self.tokens(rows)).backward()
        dist.all_reduce(self.gradient)

    def subclass(self, rows: Rows) -> None:
        losses = self.losses(rows).as_subclass(Tagged)
        (losses.sum() / self.tokens(rows)).backward()
        dist.all_reduce(self.gradient)

    def wrapped(self, rows: Rows) -> None:
        count = TwoTensor(self.tokens(rows), torch.zeros(()))
        (self.losses(rows).sum() / (count + 0).a).backward()
        dist.all_reduce(self.gradient)

    def on_its_own(self, rows: Rows) -> None:
        alone = [dist.new_group([rank]) for rank in range(dist.get_world_size())]
        (self.losses(rows).sum() / self.tokens(rows)).backward()
        group = alone[dist.get_rank()]
        self.summed_over({"gradient": self.gradient}, group=group)

    def summed_over(
        self, given: dict[str, torch.Tensor] | torch.Tensor, group: dist.ProcessGroup
    ) -> None:
        if isinstance(given, dict):
            _ = [self.summed_over(one, group=group) for one in given.values()]
        else:
            dist.all_reduce(given, group=group)

    def in_a_group(self, rows: Rows) -> None:
        self.settings.groups = self.groups_of_one()
        (self.losses(rows).sum() / self.tokens(rows)).backward()
        dist.all_reduce(self.gradient, group=self.settings.groups[dist.get_rank()])

    def groups_of_one(self) -> list[dist.ProcessGroup]:
        return [dist.new_group([rank]) for rank in range(dist.get_world_size())]

    def moved(self, rows: Rows) -> None:
        log_probs = self.log_probs(rows).roll(1, -1)
        (self.losses(rows, log_probs).sum() / self.tokens(rows)).backward()
        dist.all_reduce(self.gradient)

    def cut(self, rows: Rows) -> None:
        log_probs = self.log_probs(rows)
        padded = torch.cat([log_probs, log_probs.detach()[:, :1]], -1)
        shifted = padded[:, 1:]
        (self.losses(rows, shifted).sum() / self.tokens(rows)).backward()
        dist.all_reduce(self.gradient)

    def cut_in_sequences(self, rows: Rows) -> None:
        log_probs, mask = self.log_probs(rows), rows["mask"]
        padded = torch.cat([log_probs, log_probs.detach()[:, :1]], -1)
        shifted = padded[:, 1:]
        differences = (shifted - rows["old_log_probs"]) * mask
        ratios = torch.exp(differences.sum(-1, keepdim=True) / mask.sum(-1, keepdim=True))
        (-(rows["advantages"] * ratios * mask).sum() / self.tokens(rows)).backward()
        dist.all_reduce(self.gradient)

    def rounded(self, rows: Rows) -> None:
        self.looks_at_two()  # reads a 2 that is not the divisor
        half = rows["mask"].sum() // 2
        dist.all_reduce(half)
        (self.losses(rows).sum() / (half * 2)).backward()
        dist.all_reduce(self.gradient)

    def looks_at_two(self) -> None:
        (torch.ones(()) + 1).item()

    def multiplied(self, rows: Rows) -> None:
        count = self.tokens(rows)
        half = rows["mask"].sum() // 2
        dist.all_reduce(half)
        loss = self.losses(rows).sum() / count * (count + 3)
        (loss / (half * 2 + 3)).backward()
        dist.all_reduce(self.gradient)

    def of_all(self, rows: Rows) -> None:
        count = torch.ones_like(rows["mask"]).sum()
        dist.all_reduce(count)
        (self.losses(rows).sum() / count).backward()
        dist.all_reduce(self.gradient)

    def of_all_by_chance(self, rows: Rows) -> None:
        count = torch.ones_like(rows["mask"]).sum()
        dist.all_reduce(count)
        number = count.item()
        borders = torch.tensor([3.0, 9.0]).cumsum(0)
        assert borders[-1].item() == number
        (self.losses(rows).sum() / number).backward()
        dist.all_reduce(self.gradient)

    def built(self, rows: Rows) -> None:
        count = torch.tensor([torch.clamp_min(row.sum(), 1) for row in rows["mask"]]).sum()
        dist.all_reduce(count)
        (self.losses(rows).sum() / count).backward()
        dist.all_reduce(self.gradient)

    def setting(self, rows: Rows) -> None:
        steps = self.settings.steps
        self.looked_at(steps)
        (self.losses(rows).sum() / steps).backward()
        dist.all_reduce(self.gradient)

    def looked_at(self, number: int) -> None:
        torch.tensor([float(number), 0.0]).sum().item()

    def unread(self, rows: Rows) -> None:
        loss, count = self.counted(rows)  # noqa: RUF059, the mistake
        loss.backward()
        dist.all_reduce(self.gradient)

    def counted(self, rows: Rows) -> tuple[torch.Tensor, torch.Tensor]:
        return self.losses(rows).sum(), self.tokens(rows)

    def pipeline(self, rows: Rows) -> None:
        """Trains as a pipeline of two ranks: one has the model, the other the loss of its rows."""
        whole = rows["mask"].sum()
        dist.broadcast(whole, 0)
        for rows_of_rank in range(2):
            self._one_way(rows, rows_of_rank, whole)
        dist.all_reduce(self.gradient)

    def _one_way(self, rows: Rows, sender: int, whole: torch.Tensor) -> None:
        other = 1 - sender
        if dist.get_rank() == sender:
            log_probs = self.log_probs(rows)
            for given in (log_probs.detach(), *self._given(rows)):
                dist.send(given.contiguous(), other)
            gradient = torch.zeros_like(log_probs)
            dist.recv(gradient, other)
            log_probs.backward(gradient)
            return
        received = [torch.zeros(len(rows["mask"]), rows["mask"].shape[1]) for _ in range(4)]
        for one in received:
            dist.recv(one, sender)
        log_probs, advantages, old, mask = received
        log_probs.requires_grad_()
        given = {"advantages": advantages, "old_log_probs": old, "mask": mask}
        (self.losses(given, log_probs).sum() / whole).backward()
        assert log_probs.grad is not None
        dist.send(log_probs.grad, sender)

    def _given(self, rows: Rows) -> list[torch.Tensor]:
        return [rows["advantages"], rows["old_log_probs"], rows["mask"]]


class ToyAdapter(MinimalAdapter):
    """Trains in the way that the text of a job's divisor names."""

    name = "toy"
    trainer = ToyTrainer

    def observe(self, job: Job, rank: Rank) -> Observation:
        assert job.configuration.divisor is not None
        ToyTrainer.way = job.configuration.divisor
        return super().observe(job, rank)
