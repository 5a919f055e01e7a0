"""GRPO with an engine of DeepSpeed, which averages over ranks and accumulated micro-batches."""

import torch.distributed as dist

from adapters.engines.deepspeed import import_deepspeed
from tests.own_trainer.trainers import rows

import_deepspeed()
import deepspeed  # noqa: E402


class Trainer:
    def __init__(self, model, accumulated, size, config):
        self.accumulated, self.size = accumulated, size
        sizes = {
            "train_micro_batch_size_per_gpu": size,
            "gradient_accumulation_steps": accumulated,
            "gradient_clipping": 1.0,
        }
        adam = {"type": "AdamW", "params": {"lr": 1e-6, "torch_adam": True}}
        self.engine, *_ = deepspeed.initialize(
            model=model,
            model_parameters=model.parameters(),
            config={**sizes, "optimizer": adam, **config},
        )

    def train(self, dataset):
        tokens = sum((row["labels"] != -100).sum() for row in dataset)
        dist.all_reduce(tokens)
        for start in range(0, len(dataset), self.size):
            batch = rows.collate(dataset[start : start + self.size])
            ids, mask = batch["input_ids"], batch["labels"][:, 1:] != -100
            log_probs = self.engine(ids)[:, :-1].float().log_softmax(-1)
            log_probs = log_probs.gather(-1, ids[:, 1:, None]).squeeze(-1)
            ratio = (log_probs - batch["old_log_probs"][:, 1:]).exp()
            losses = -ratio * batch["advantages"][:, 1:]
            self.engine.backward(self.mean(losses, mask, tokens))
            self.engine.step()

    def mean(self, losses, mask, tokens):
        averaged = self.accumulated * dist.get_world_size()
        return (losses * mask).sum() / tokens * averaged


class MeanOfMeans(Trainer):
    def mean(self, losses, mask, tokens):
        return (losses * mask).sum() / mask.sum()  # bug


class AveragedTwice(Trainer):
    def mean(self, losses, mask, tokens):
        return (losses * mask).sum() / tokens * self.accumulated  # bug
