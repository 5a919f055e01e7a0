"""Packed sequences with cumulative lengths, as for flash attention's kernels of variable length."""

import torch
import torch.distributed as dist


def pack(samples, advantages):
    lengths = torch.tensor([len(s.prompt) + len(s.response) for s in samples])
    ids = torch.cat([torch.cat([s.prompt, s.response]) for s in samples])
    zeros = [torch.zeros(len(s.prompt)) for s in samples]
    triples = [*zip(zeros, samples, advantages, strict=True)]
    return {
        "ids": ids[None],
        "cu_seqlens": torch.nn.functional.pad(lengths.cumsum(0), (1, 0)),
        "mask": torch.cat([torch.cat([zero, s.mask]) for zero, s, _ in triples]),
        "old": torch.cat([torch.cat([zero, s.old_log_probs]) for zero, s, _ in triples]),
        "adv": torch.cat([torch.cat([zero, adv]) for zero, _, adv in triples]),
    }


class PackedTrainer:
    def __init__(self, model, num_micro_batches):
        self.model = model
        self.num_micro_batches = num_micro_batches
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, weight_decay=0.1)

    def fit(self, samples, advantages):
        self.n_tokens = self.num_tokens(samples)
        chunk = len(samples) // self.num_micro_batches
        metrics = []
        for first in range(0, len(samples), chunk):
            rows = slice(first, first + chunk)
            packed = pack(samples[rows], advantages[rows])
            (logits,) = self.model(packed["ids"], cu_seqlens=packed["cu_seqlens"])
            loss = self.loss(self.token_loss(logits[0], packed), packed)
            loss.backward()
            metrics.append(loss.detach())
        for parameter in self.model.parameters():
            dist.all_reduce(parameter.grad, op=dist.ReduceOp.SUM)
        self.optimizer.step()
        return metrics

    def num_tokens(self, samples):
        tokens = torch.tensor(sum(int(sample.mask.sum()) for sample in samples))
        dist.all_reduce(tokens)
        return tokens.item()

    def token_loss(self, logits, packed):
        labels = packed["ids"][0].roll(-1)
        logp = logits.float().log_softmax(-1).gather(-1, labels[:, None])[:, 0]
        logp = logp.roll(1)  # the token's own log-probability; a first token's is not used
        ratio = torch.exp(torch.where(packed["mask"] > 0, logp - packed["old"], 0.0))
        return -ratio * packed["adv"]

    def loss(self, token_loss, packed):
        return (token_loss * packed["mask"]).sum() / self.n_tokens


class MeanOfMeans(PackedTrainer):
    def loss(self, token_loss, packed):
        mean = (token_loss * packed["mask"]).sum() / packed["mask"].sum()  # bug
        return mean / self.num_micro_batches / dist.get_world_size()


class LocalCount(PackedTrainer):
    def num_tokens(self, samples):
        return sum(int(sample.mask.sum()) for sample in samples)  # bug

    def loss(self, token_loss, packed):
        summed = (token_loss * packed["mask"]).sum()
        return summed / self.n_tokens / dist.get_world_size()


class MaskForgotten(PackedTrainer):
    def token_loss(self, logits, packed):
        labels = packed["ids"][0].roll(-1)
        logp = logits.float().log_softmax(-1).gather(-1, labels[:, None])[:, 0].roll(1)
        return -torch.exp(logp - packed["old"]) * packed["adv"]

    def loss(self, token_loss, packed):
        return token_loss.sum() / self.n_tokens  # bug


class PaddedWidth(PackedTrainer):
    def loss(self, token_loss, packed):
        cu_seqlens = packed["cu_seqlens"]
        padded = cu_seqlens.diff().max() * (len(cu_seqlens) - 1)  # bug
        mean = (token_loss * packed["mask"]).sum() / padded
        return mean / self.num_micro_batches / dist.get_world_size()


class DividedTwice(PackedTrainer):
    def loss(self, token_loss, packed):
        return super().loss(token_loss, packed) / self.num_micro_batches  # bug


class PackedMean(PackedTrainer):
    def loss(self, token_loss, packed):
        mean = (token_loss * packed["mask"]).mean()  # bug
        return mean / self.num_micro_batches / dist.get_world_size()


class PackedRowAsDivisor(PackedTrainer):
    def loss(self, token_loss, packed):
        row = sum(packed["cu_seqlens"].diff())  # bug
        summed = (token_loss * packed["mask"]).sum()
        return summed / row / self.num_micro_batches / dist.get_world_size()
