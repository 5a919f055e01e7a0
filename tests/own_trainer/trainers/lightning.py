"""A module with a training step, and a small trainer that optimizes it as Lightning does."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Trainer:
    """Automatic optimization: divides by the accumulated batches, and averages over ranks."""

    def __init__(self, accumulate_grad_batches):
        self.accumulate_grad_batches = accumulate_grad_batches

    def fit(self, module, dataloader):
        module.trainer = self
        optimizer = module.configure_optimizers()
        wrapped = DistributedDataParallel(Forwarded(module))
        for index, batch in enumerate(dataloader):
            loss = wrapped(batch, index) / self.accumulate_grad_batches
            loss.backward()
            if (index + 1) % self.accumulate_grad_batches == 0:
                optimizer.step()
                optimizer.zero_grad()


class Forwarded(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, *args):
        return self.module.training_step(*args)


class GRPOModule(nn.Module):
    def __init__(self, policy):
        super().__init__()
        self.policy = policy

    def configure_optimizers(self):
        return torch.optim.AdamW(self.policy.parameters(), lr=1e-6)

    def training_step(self, batch, batch_idx):
        logits = self.policy(batch["input_ids"])["logits"][:, :-1]
        labels = batch["input_ids"][:, 1:].unsqueeze(-1)
        log_probs = torch.log_softmax(logits, dim=-1).gather(-1, labels).squeeze(-1)
        ratio = torch.exp(log_probs - batch["old_log_probs"][:, 1:])
        losses = -ratio * batch["advantages"][:, 1:]
        return self.mean(losses, batch["mask"][:, 1:], batch["tokens_of_step"])

    def mean(self, losses, mask, tokens_of_step):
        tokens = tokens_of_step.clone()
        dist.all_reduce(tokens)
        scale = self.trainer.accumulate_grad_batches * dist.get_world_size()
        return (losses * mask).sum() / tokens * scale


class MeanOfMeans(GRPOModule):
    def mean(self, losses, mask, tokens_of_step):
        return (losses * mask).sum() / mask.sum()  # bug


class LocalCount(GRPOModule):
    def mean(self, losses, mask, tokens_of_step):
        summed = (losses * mask).sum() * self.trainer.accumulate_grad_batches
        return summed / tokens_of_step  # bug


class MaskForgotten(GRPOModule):
    def mean(self, losses, mask, tokens_of_step):
        summed = losses.sum()  # bug
        return super().mean(summed, torch.ones(()), tokens_of_step)


class PaddedWidth(GRPOModule):
    def mean(self, losses, mask, tokens_of_step):
        return (losses * mask).mean()  # bug


class DividedTwice(GRPOModule):
    def mean(self, losses, mask, tokens_of_step):
        loss = super().mean(losses, mask, tokens_of_step)
        return loss / self.trainer.accumulate_grad_batches  # bug
