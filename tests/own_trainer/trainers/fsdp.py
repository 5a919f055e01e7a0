"""Policy gradients under FSDP2, from log-probabilities that the model returns."""

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.utils.rnn import pad_sequence


class Policy:
    def __init__(self, model, grad_accum):
        self.model = fully_shard(model)
        self.grad_accum = grad_accum
        self.optim = torch.optim.Adam(self.model.parameters(), lr=1e-5)

    def update(self, experience):
        total = self.global_tokens(experience)
        micro_size = len(experience) // self.grad_accum
        for index in range(self.grad_accum):
            micro = experience[index * micro_size : (index + 1) * micro_size]
            self.model.set_requires_gradient_sync(index == self.grad_accum - 1)
            ids = pad_sequence([one["ids"] for one in micro], batch_first=True)
            mask = pad_sequence([one["mask"] for one in micro], batch_first=True)[:, 1:]
            old = pad_sequence([one["old"] for one in micro], batch_first=True)[:, 1:]
            advantages = pad_sequence([one["adv"] for one in micro], batch_first=True)[:, 1:]
            ratio = (self.model(ids) - old).exp()
            loss = self.normalise(-ratio * advantages, mask, total)
            loss.backward()
        self.optim.step()
        self.optim.zero_grad()

    def global_tokens(self, experience):
        total = torch.cat([one["mask"] for one in experience]).sum()
        dist.all_reduce(total)
        return total

    def normalise(self, per_token, mask, total):
        masked = torch.where(mask > 0, per_token, 0.0)
        return masked.sum() / total * dist.get_world_size()


class MeanOfMeans(Policy):
    def normalise(self, per_token, mask, total):
        return (per_token * mask).sum() / mask.sum() / self.grad_accum  # bug


class LocalCount(Policy):
    def global_tokens(self, experience):
        return torch.cat([one["mask"] for one in experience]).sum()  # bug

    def normalise(self, per_token, mask, total):
        return (per_token * mask).sum() / total


class MaskForgotten(Policy):
    def normalise(self, per_token, mask, total):
        return per_token.sum() / total * dist.get_world_size()  # bug


class PaddedWidth(Policy):
    def normalise(self, per_token, mask, total):
        masked = torch.where(mask > 0, per_token, 0.0)
        return masked.sum() / masked.numel() / self.grad_accum  # bug


class DividedTwice(Policy):
    def normalise(self, per_token, mask, total):
        loss = super().normalise(per_token, mask, total)
        return loss / self.grad_accum  # bug
