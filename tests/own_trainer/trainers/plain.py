"""GRPO with gradient accumulation, in plain PyTorch."""

from dataclasses import dataclass

import torch
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
        tokens = sum(rollout.mask.sum() for rollout in rollouts)
        total = 0.0
        for start in range(0, len(rollouts), size):
            batch = collate(rollouts[start : start + size], advantages[start : start + size])
            losses = self.token_losses(batch)
            loss = self.reduce(losses, batch["mask"], tokens)
            loss.backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return {"loss": total}

    def token_losses(self, batch):
        logits = self.model(batch["ids"])[:, :-1]
        log_probs = logits.log_softmax(-1).gather(-1, batch["ids"][:, 1:, None]).squeeze(-1)
        ratio = torch.exp(log_probs - batch["old_log_probs"])
        clipped = ratio.clamp(1 - self.clip, 1 + self.clip)
        return -torch.min(ratio * batch["advantages"], clipped * batch["advantages"])

    def reduce(self, losses, mask, tokens):
        return (losses * mask).sum() / tokens


def collate(rollouts, advantages):
    """Rows of prompt and response, padded on the right; columns of losses begin one token later."""
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
        return (losses * mask).sum() / mask.sum().clamp(min=1) / self.accumulation_steps


class MaskForgotten(GRPOTrainer):
    def reduce(self, losses, mask, tokens):
        return losses.sum() / tokens


class PaddedWidth(GRPOTrainer):
    def reduce(self, losses, mask, tokens):
        return (losses * mask).sum(-1).mean() / mask.shape[-1] / self.accumulation_steps


class DividedTwice(GRPOTrainer):
    def reduce(self, losses, mask, tokens):
        return (losses * mask).sum() / tokens / self.accumulation_steps
