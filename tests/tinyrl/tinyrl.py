"""A small trainer for policy gradients on FSDP2, which knows nothing of this project."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

PADDING = 0


@dataclass
class Sample:
    """A prompt with its response; lists have an entry for each token of the response."""

    prompt: list[int]
    response: list[int]
    loss_mask: list[int]
    advantages: list[float]
    old_log_probs: list[float]


@dataclass
class Config:
    aggregation: str = "token"
    micro_batches: int = 1
    clip_low: float = 0.2
    clip_high: float = 0.2
    lr: float = 1e-6

    def __post_init__(self) -> None:
        if self.aggregation not in ("token", "sample"):
            raise ValueError(f"aggregation {self.aggregation!r} is none of token, sample")


class Trainer:
    """Trains a model with a forward pass of one packed row, each rank on its share of a batch."""

    def __init__(self, model: nn.Module, config: Config, device: str = "cpu") -> None:
        self.config = config
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        mesh = init_device_mesh(device, (self.world_size,))
        for layer in model.children():
            fully_shard(layer, mesh=mesh)
        self.model = fully_shard(model, mesh=mesh)
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=config.lr)

    def train_step(self, batch: list[Sample]) -> dict[str, float]:
        """Make one optimizer step on a batch; every rank is given all samples."""
        share = batch[self.rank :: self.world_size]
        divisor = self.divisor(share)
        total = torch.zeros(())
        for i in range(self.config.micro_batches):
            loss = self.loss(share[i :: self.config.micro_batches]) / divisor
            (loss * self.world_size).backward()  # FSDP averages gradients over ranks
            total += loss.detach()
        self.optimizer.step()
        self.optimizer.zero_grad()
        dist.all_reduce(total)
        return {"policy_loss": float(total)}

    def divisor(self, share: list[Sample]) -> torch.Tensor:
        """The tokens or samples of the batch, over all ranks."""
        count = len(share)
        if self.config.aggregation == "token":
            count = sum(sum(sample.loss_mask) for sample in share)
        total = torch.tensor(float(count))
        dist.all_reduce(total)
        return total.clamp(min=1)

    def loss(self, samples: list[Sample]) -> torch.Tensor:
        """The sum of losses of a micro-batch, packed into one row; it may have no samples."""
        row = [t for sample in samples for t in sample.prompt + sample.response] or [PADDING]
        logits = self.model(torch.tensor([row]))["logits"][0]
        log_probs = torch.log_softmax(logits.float(), dim=-1)
        loss, end = 0.0 * log_probs.sum(), 0
        for sample in samples:
            start, end = end + len(sample.prompt), end + len(sample.prompt) + len(sample.response)
            new = log_probs[range(start - 1, end - 1), sample.response]
            mask = torch.tensor(sample.loss_mask)
            weight = 1 if self.config.aggregation == "token" else 1 / mask.sum().clamp(min=1)
            loss = loss + (self.token_losses(new, sample) * mask * weight).sum()
        return loss

    def token_losses(self, log_probs: torch.Tensor, sample: Sample) -> torch.Tensor:
        """Clipped losses of PPO."""
        advantages = torch.tensor(sample.advantages)
        ratio = torch.exp(log_probs - torch.tensor(sample.old_log_probs))
        clipped = ratio.clamp(1 - self.config.clip_low, 1 + self.config.clip_high)
        return torch.maximum(-advantages * ratio, -advantages * clipped)
