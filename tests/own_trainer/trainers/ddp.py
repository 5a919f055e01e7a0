"""REINFORCE under DistributedDataParallel; the model returns an object with logits."""

from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel


def split(items, parts):
    size = len(items) // parts
    return [items[i : i + size] for i in range(0, len(items), size)]


class Trainer:
    def __init__(self, model, micro_batches):
        self.model = DistributedDataParallel(model)
        self.micro_batches = micro_batches
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3, momentum=0.9)

    def step(self, sequences, prompt_lengths, masks, advantages):
        self.optimizer.zero_grad()
        count = self.token_count(masks)
        rows = [*zip(sequences, prompt_lengths, masks, advantages, strict=True)]
        micro_batches = split(rows, self.micro_batches)
        for number, micro_batch in enumerate(micro_batches, 1):
            is_last = number == len(micro_batches)
            with nullcontext() if is_last else self.model.no_sync():
                self.loss(micro_batch, count).backward()
        self.optimizer.step()

    def token_count(self, masks):
        count = torch.tensor(float(sum(mask.sum() for mask in masks)))
        dist.all_reduce(count)
        return count

    def loss(self, rows, count):
        width = max(len(sequence) for sequence, *_ in rows)
        padded = [functional.pad(ids, (0, width - len(ids))) for ids, *_ in rows]
        ids = torch.stack(padded)
        mask, weight = torch.zeros(ids.shape), torch.zeros(ids.shape)
        for row, (sequence, start, active, advantage) in enumerate(rows):
            mask[row, start : len(sequence)] = active.float()
            weight[row, start:] = advantage
        logits = self.model(ids).logits[:, :-1]
        nll = functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
        losses = nll.view(len(rows), -1) * weight[:, 1:]
        return self.aggregate(losses, mask[:, 1:], count)

    def aggregate(self, losses, mask, count):
        total = (losses * mask).sum()
        return total / count * dist.get_world_size()  # DDP averages


class MeanOfMeans(Trainer):
    def aggregate(self, losses, mask, count):
        mean = (losses * mask).sum() / mask.sum()  # bug
        return mean / self.micro_batches


class LocalCount(Trainer):
    def token_count(self, masks):
        return torch.tensor(float(sum(mask.sum() for mask in masks)))  # bug

    def aggregate(self, losses, mask, count):
        return (losses * mask).sum() / count


class MaskForgotten(Trainer):
    def aggregate(self, losses, mask, count):
        total = losses.sum()  # bug
        return total / count * dist.get_world_size()


class PaddedWidth(Trainer):
    def aggregate(self, losses, mask, count):
        total = (losses * mask).sum(-1) / mask.size(-1)  # bug
        return total.mean() / self.micro_batches


class DividedTwice(Trainer):
    def aggregate(self, losses, mask, count):
        return super().aggregate(losses, mask, count) / self.micro_batches  # bug


class AveragedTwice(Trainer):
    def aggregate(self, losses, mask, count):
        return (losses * mask).sum() / count  # bug


class SampleMean(Trainer):
    """Counts only in plain Python."""

    def token_count(self, masks):
        self.samples = len(masks) * dist.get_world_size()

    def aggregate(self, losses, mask, count):
        means = (losses * mask).sum(-1) / mask.sum(-1).clamp(min=1)
        return means.sum() / self.samples * dist.get_world_size()


class SampleMeanAveragedTwice(SampleMean):
    def aggregate(self, losses, mask, count):
        means = (losses * mask).sum(-1) / mask.sum(-1).clamp(min=1)
        return means.sum() / self.samples  # bug


class SampleMeanDividedTwice(SampleMean):
    def aggregate(self, losses, mask, count):
        return super().aggregate(losses, mask, count) / self.micro_batches  # bug
