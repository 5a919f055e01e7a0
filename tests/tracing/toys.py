"""A trainer that normalises losses in many ways. A trace must follow each of them.

The text of a job's divisor names the way, such as ``clamped``.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate
from torch.testing._internal.two_tensor import TwoTensor

from tests.minimal.right import MinimalAdapter, Trainer, rank_rows

if TYPE_CHECKING:
    from collections.abc import Callable

    from adapters.contract import Job, Observation, Rank
    from reference.aggregation import Mode
    from tests.minimal.right import Rows


class ToyTrainer(Trainer):
    """Trains the tokens of all rows by their number, in the way that is chosen."""

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

    def unused(self, rows: Rows) -> None:
        count = rows["mask"].sum()
        dist.all_reduce(count.clone())
        (self.losses(rows).sum() / count).backward()
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

    def in_python(self, rows: Rows) -> None:
        batch = {"mask": rows["mask"].tolist(), "none": rows["mask"][:0].tolist()}
        batch["tokens"] = [sum(len(row) for row in batch["mask"])]
        count = torch.tensor(batch["tokens"], dtype=torch.float32)
        (self.losses(rows).sum() / count).sum().backward()

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

    def of_a_maximum(self, rows: Rows) -> None:
        larger = torch.maximum(self.losses(rows), self.losses(rows))
        right = larger.sum() / self.tokens(rows)
        wrong = right / (2 * dist.get_world_size())
        (right.detach() + wrong - wrong.detach()).backward()
        dist.all_reduce(self.gradient)

    def entries(self, mask: list[list[float]]) -> float:
        return float(sum(map(len, mask)))

    def read_one_by_one(self, rows: Rows) -> None:
        count = 0
        for row in torch.ones_like(rows["mask"]):
            count += int(row.sum())
        (self.losses(rows).sum() / count).backward()

    def times_ranks(self, rows: Rows) -> None:
        count = self.tokens(rows) / dist.get_world_size()
        (self.losses(rows).sum() / (count * dist.get_world_size())).backward()
        dist.all_reduce(self.gradient, op=dist.ReduceOp.AVG)

    def another_mask(self, rows: Rows) -> None:
        held = {"attended": torch.from_numpy(np.ones(rows["mask"].shape, np.float32))}
        count = self.in_mask(held["attended"])
        (self.losses(rows).sum() / count).backward()

    def in_mask(self, mask: torch.Tensor) -> torch.Tensor:
        return mask.sum()

    def mean_of_parts(self, rows: Rows) -> None:
        for place in range(len(rows["mask"])):
            part = {name: values[place : place + 1] for name, values in rows.items()}
            loss = self.losses(part).mean()
            accumulated = 1
            (loss / accumulated).backward()

    def logged_of_a_rank(self, rows: Rows) -> float:
        loss = self.losses(rows).sum() / self.tokens(rows)
        loss.backward()
        dist.all_reduce(self.gradient)
        mine = float(loss.detach())
        whole = self.of_ranks(mine)  # noqa: F841 (the mistake)
        return round(mine, 9)

    def of_ranks(self, number: float) -> float:
        held = torch.tensor([number])
        dist.all_reduce(held)
        return held.item()

    def counted_elsewhere(self, rows: Rows) -> None:
        (self.losses(rows).sum() / tokens_of(torch.ones_like(rows["mask"]))).backward()

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

    def in_python_on_all(self, rows: Rows) -> None:
        attended = torch.ones_like(rows["mask"])
        total = sum(row.sum().item() for row in attended)
        count = torch.tensor(total)
        dist.all_reduce(count)
        (self.losses(rows).sum() / count).backward()
        dist.all_reduce(self.gradient)

    def empty_rows(self, rows: Rows) -> None:
        means = self.losses(rows).sum(-1) / rows["mask"].sum(-1)
        means.sum().backward()
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

    def too_early(self, rows: Rows) -> None:
        count = self.tokens(rows)
        for row in range(len(rows["mask"])):
            own = {name: values[row : row + 1] for name, values in rows.items()}
            (self.losses(own).sum() / count).backward()
            if row == 0:
                dist.all_reduce(self.gradient)

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

    def rounded(self, rows: Rows) -> None:
        half = rows["mask"].sum() // 2
        dist.all_reduce(half)
        (self.losses(rows).sum() / (half * 2)).backward()
        dist.all_reduce(self.gradient)

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

    def ratio(self, rows: Rows) -> None:
        ratios = torch.exp(self.log_probs(rows) - rows["old_log_probs"]) * 0.75
        ratios = torch.where(rows["mask"] > 0, ratios, 0.0)
        (-(rows["advantages"] * ratios).sum() / self.tokens(rows)).backward()
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

    def own_mean(self, rows: Rows) -> None:
        weights = torch.arange(1.0, rows["mask"].numel() + 1).view_as(rows["mask"])
        own = rows["mask"].sum()
        weights = weights / ((weights * rows["mask"]).sum() / own)
        ((self.losses(rows) * weights).sum() / self.tokens(rows)).backward()
        dist.all_reduce(self.gradient)

    def kept(self, rows: Rows) -> None:
        share = rows["mask"].sum() / self.tokens(rows)
        kept = (rows["mask"].cumsum(-1) == 1).sum() - 1
        (self.losses(rows).sum() / kept * share).backward()
        dist.all_reduce(self.gradient)

    def halved(self, rows: Rows) -> float:
        """The gradient makes up for a loss that is half of what it should be; its log does not."""
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

    def logged_as_0(self, rows: Rows) -> float:
        loss = self.losses(rows).sum() / self.tokens(rows)
        loss.backward()
        dist.all_reduce(self.gradient)
        logged = 0.0 * loss.detach()
        return self.summed(logged)

    def logged_alone(self, rows: Rows) -> float:
        loss = self.losses(rows).sum() / self.tokens(rows)
        loss.backward()
        dist.all_reduce(self.gradient)
        return loss.item()

    def logged_behind_torch(self, rows: Rows) -> float:
        own = torch.ones_like(rows["mask"]).sum()
        loss = self.losses(rows).sum() / own
        loss.backward()
        dist.all_reduce(self.gradient)
        stored = bytes(loss.detach().untyped_storage())
        return float(np.frombuffer(stored, np.float32)[0])

    def pipeline(self, rows: Rows) -> None:
        """The first rank has the model, and the last one the loss of the first one's rows."""
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


def tokens_of(mask: torch.Tensor) -> int:
    """The number of active tokens, counted row by row."""
    total = 0
    for row in mask:
        total += int(row.sum())
    return total


@dataclass(frozen=True)
class Counted:
    """What hands a count on."""

    tokens: float


class Tagged(torch.Tensor):
    """A class of tensors that does nothing of its own."""


class Within(torch.autograd.Function):
    """Its backward pass has another in it."""

    @staticmethod
    def forward(ctx: Any, leaf: torch.Tensor, begin: Callable[[], None]) -> torch.Tensor:
        ctx.begin = begin
        return leaf.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        ctx.begin()
        return gradients[0], None


def backward_in_another_thread(loss: torch.Tensor, passes: int = 61) -> None:
    """Begin a backward pass that torch does in a thread of its own, as it does those on GPUs.

    On the CPU it does so for one within 60 others.
    """
    if not passes:
        loss.backward()
        return
    leaf = torch.zeros((), requires_grad=True)
    with torch.enable_grad():
        outer = Within.apply(leaf, lambda: backward_in_another_thread(loss, passes - 1))
    outer.backward()


class Tripled(torch.autograd.Function):
    """The identity, with a gradient that is three times as large."""

    @staticmethod
    def forward(ctx: Any, loss: torch.Tensor) -> torch.Tensor:
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0] * 3


class InChunks(torch.autograd.Function):
    """A mean of losses whose gradient is computed row by row, in the forward pass."""

    @staticmethod
    def forward(
        ctx: Any, log_probs: torch.Tensor, advantages: torch.Tensor, count: torch.Tensor
    ) -> torch.Tensor:
        total, gradients = torch.zeros(()), []
        for row, advantage in zip(log_probs.detach(), advantages, strict=True):
            with torch.enable_grad():
                given = row.clone().requires_grad_()
                loss = -(advantage * torch.exp(given - given.detach())).sum() / count
                gradients += torch.autograd.grad(loss, given)
            total += loss.detach()
        ctx.save_for_backward(torch.stack(gradients))
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        [saved] = ctx.saved_tensors
        return saved * gradients[0], None, None


class ToyAdapter(MinimalAdapter):
    """Chooses the way by the text of a job's divisor."""

    name = "toy"
    trainer = ToyTrainer

    def observe(self, job: Job, rank: Rank) -> Observation:
        assert job.configuration.divisor is not None
        ToyTrainer.way = job.configuration.divisor
        return super().observe(job, rank)
