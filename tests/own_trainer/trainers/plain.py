"""GRPO with gradient accumulation in plain PyTorch; ranks add up their gradients."""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.nn.utils.rnn import pad_sequence


@dataclass
class Rollout:
    prompt: torch.Tensor
    response: torch.Tensor
    old_log_probs: torch.Tensor
    mask: torch.Tensor


class GRPOTrainer:
    def __init__(self, model, accumulation_steps=1, clip=0.2, lr=1e-6):
        self.model = model
        self.accumulation_steps = accumulation_steps
        self.clip = clip
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=lr)

    def train_step(self, rollouts, advantages):
        size = len(rollouts) // self.accumulation_steps
        tokens = self.count(rollouts)
        total = torch.zeros(())
        for start in range(0, len(rollouts), size):
            batch = collate(rollouts[start : start + size], advantages[start : start + size])
            loss = self.reduce(self.token_losses(batch), batch["mask"], tokens)
            loss.backward()
            total += loss.detach()
        for parameter in self.model.parameters():
            dist.all_reduce(parameter.grad)
        dist.all_reduce(total)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return {"loss": total.item()}

    def count(self, rollouts):
        tokens = torch.stack([rollout.mask.sum() for rollout in rollouts]).sum()
        dist.all_reduce(tokens)
        return tokens

    def log_probs(self, ids):
        logits = self.model(ids)[:, :-1]
        return logits.log_softmax(-1).gather(-1, ids[:, 1:, None]).squeeze(-1)

    def token_losses(self, batch):
        ratio = torch.exp(self.log_probs(batch["ids"]) - batch["old_log_probs"])
        clipped = ratio.clamp(1 - self.clip, 1 + self.clip)
        return -torch.min(ratio * batch["advantages"], clipped * batch["advantages"])

    def reduce(self, losses, mask, tokens):
        return (losses * mask).sum() / tokens


def collate(rollouts, advantages):
    """Rows of prompt and response, padded on the right; losses begin with the second token."""
    ids = [torch.cat([rollout.prompt, rollout.response]) for rollout in rollouts]
    return {
        "ids": pad_sequence(ids, batch_first=True),
        "mask": _shifted(rollouts, [rollout.mask for rollout in rollouts]),
        "old_log_probs": _shifted(rollouts, [rollout.old_log_probs for rollout in rollouts]),
        "advantages": torch.stack([*advantages])[:, None],
    }


def _shifted(rollouts, values):
    pairs = zip(rollouts, values, strict=True)
    rows = [torch.cat([value.new_zeros(len(one.prompt) - 1), value]) for one, value in pairs]
    return pad_sequence(rows, batch_first=True)


class MeanOfMeans(GRPOTrainer):
    def reduce(self, losses, mask, tokens):
        mean = (losses * mask).sum() / mask.sum()  # bug
        return mean / self.accumulation_steps / dist.get_world_size()


class LocalCount(GRPOTrainer):
    def count(self, rollouts):
        return torch.stack([rollout.mask.sum() for rollout in rollouts]).sum()  # bug

    def reduce(self, losses, mask, tokens):
        return super().reduce(losses, mask, tokens) / dist.get_world_size()


class MaskForgotten(GRPOTrainer):
    def reduce(self, losses, mask, tokens):
        return losses.sum() / tokens  # bug


class PaddedWidth(GRPOTrainer):
    def reduce(self, losses, mask, tokens):
        mean = (losses * mask).mean()  # bug
        return mean / self.accumulation_steps / dist.get_world_size()


class DividedTwice(GRPOTrainer):
    def reduce(self, losses, mask, tokens):
        return super().reduce(losses, mask, tokens) / self.accumulation_steps  # bug
