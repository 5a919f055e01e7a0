"""A trainer from logits through log_softmax to an optimizer step, and a right adapter for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist

from adapters.contract import Adapter, Depth, Description, Job, Layout, Observation, Rank
from adapters.contract.batch.probed_batch import ProbedBatch
from adapters.contract.batch.sequences import PADDING_ID
from adapters.contract.job import Setting
from adapters.contract.objective import CONSTANTS, Metric, Objective
from adapters.toolkit.probe import (
    CERTAIN_LOGIT,
    ForwardPasses,
    GradientReader,
    ProbedModel,
    logits_head,
    probe_capacity,
)
from reference.aggregation import Mode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    Rows = Mapping[str, torch.Tensor]


class Trainer:
    """Trains a model on rows of equal width; a row has a value for each predicted token."""

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.model = model
        self.optimizer = optimizer

    def train_step(self, rows: Rows, mode: Mode, micro_batches: int) -> float:
        """Make an optimizer step on this rank's part of the rows; returns the loss of all ranks."""
        weights = self.token_weights(rows["mask"], mode)[rank_rows(rows)]
        mine = {name: values[rank_rows(rows)] for name, values in rows.items()}
        total = torch.zeros(())
        for chosen in torch.arange(len(weights)).tensor_split(micro_batches):
            batch = {name: values[chosen] for name, values in mine.items()}
            loss = (weights[chosen] * self.token_losses(batch)).sum()
            loss.backward()
            total += loss.detach()
        for parameter in self.model.parameters():
            dist.all_reduce(parameter.grad)
        dist.all_reduce(total)
        self.optimizer.step()
        return float(total)

    def token_losses(self, batch: Rows) -> torch.Tensor:
        """PPO's clipped losses: [rows, width - 1]."""
        logits = self.model(batch["ids"])["logits"][:, :-1]
        log_probs = torch.log_softmax(logits, -1).gather(-1, batch["ids"][:, 1:, None]).squeeze(-1)
        ratios = torch.exp((log_probs - batch["old_log_probs"]) * batch["mask"])
        clipped = ratios.clamp(1 - CONSTANTS.clip_low, 1 + CONSTANTS.clip_high)
        return -torch.minimum(ratios * batch["advantages"], clipped * batch["advantages"])

    def token_weights(self, mask: torch.Tensor, mode: Mode) -> torch.Tensor:
        """The weight of each token of the step."""
        if mode is Mode.TOKEN_MEAN:
            return mask / mask.sum().clamp(min=1)
        return mask / mask.sum(1, keepdim=True).clamp(min=1) / len(mask)


def rank_rows(rows: Rows) -> slice:
    """The rows of this rank."""
    return slice(dist.get_rank(), None, dist.get_world_size())


class MinimalAdapter(Adapter):
    """An adapter that is right in everything that it declares."""

    name = "minimal"
    devices = ("cpu",)
    dtypes = ("float32",)

    trainer = Trainer
    learning_rate = 0.0

    def layouts(self) -> Sequence[Layout]:
        return [Layout(), Layout(micro_batches=2), Layout(dp=2)]

    def load(self, source: Path | None) -> None:
        """Load nothing, as the trainer is in this module."""

    def describe(self) -> Description:
        return Description(
            modes=frozenset({Mode.SAMPLE_MEAN, Mode.TOKEN_MEAN}),
            depths=frozenset({Depth.STEP}),
            objectives=frozenset({Objective.POLICY}),
            metrics=frozenset({Metric.POLICY_LOSS}),
            configurations={Setting.MODE: ("mode",)},
            records_forward_passes=True,
            default_mode=Mode.TOKEN_MEAN,
        )

    def observe(self, job: Job, rank: Rank) -> Observation:
        batch = ProbedBatch.of(job)
        passes, trainer, reader = self.trained(batch, rank)
        micro_batches = job.layout.micro_batches
        assert isinstance(micro_batches, int)
        losses = []
        for rows in self.steps(batch):
            with rank.framework():
                losses.append(trainer.train_step(rows, self.mode(job), micro_batches))
        return Observation(
            token_weights=self.token_weights(batch, reader.drain()),
            forward_passes=batch.forward_passes(passes.drain()),
            reported={Metric.POLICY_LOSS: tuple(losses)},
        )

    def mode(self, job: Job) -> Mode:
        """The mode of a job; the default if the configuration does not set it."""
        return job.aggregation.mode if job.configuration.says_mode else Mode.TOKEN_MEAN

    def trained(
        self, batch: ProbedBatch, rank: Rank
    ) -> tuple[ForwardPasses, Trainer, GradientReader]:
        """The trainer with its forward passes and reader, which are kept from job to job."""
        capacity = probe_capacity(batch.probe_size)
        if capacity not in rank.cache:
            passes = ForwardPasses()
            model = ProbedModel(capacity, passes, self.head)
            optimizer = torch.optim.SGD(model.parameters(), lr=self.learning_rate)
            rank.cache[capacity] = passes, self.trainer(model, optimizer), self.reader(optimizer)
        kept: tuple[ForwardPasses, Trainer, GradientReader] = rank.cache[capacity]
        return kept

    def head(self, ids: torch.Tensor, probe: torch.Tensor) -> dict[str, Any]:
        return logits_head(ids, probe)

    def reader(self, optimizer: torch.optim.Optimizer) -> GradientReader:
        return GradientReader(optimizer)

    def steps(self, batch: ProbedBatch) -> list[Rows]:
        """The padded rows of every step."""
        ends = np.cumsum([step.size for step in batch.steps])
        return [
            self.rows(batch, int(end) - step.size, int(end))
            for step, end in zip(batch.steps, ends, strict=True)
        ]

    def rows(self, batch: ProbedBatch, start: int, end: int) -> Rows:
        """The padded rows of samples; values are at the positions that predict their tokens."""
        samples = range(start, end)
        ids = [np.concatenate([batch.prompts[i], batch.responses[i]]) for i in samples]
        width = max(map(len, ids))
        old = [values + self.old_log_prob(batch) for values in batch.old_log_probs]

        def of_responses(values: Sequence[NDArray[Any]]) -> torch.Tensor:
            padded = np.zeros((len(ids), width - 1), np.float32)
            for row, i in enumerate(samples):
                first = len(batch.prompts[i]) - 1
                padded[row, first : first + len(values[i])] = values[i]
            return torch.from_numpy(padded)

        padded_ids = np.full((len(ids), width), self.padding(batch), np.int64)
        for row, tokens in enumerate(ids):
            padded_ids[row, : len(tokens)] = tokens
        return {
            "ids": torch.from_numpy(padded_ids),
            "advantages": of_responses(batch.advantages),
            "old_log_probs": of_responses(old),
            "mask": of_responses(batch.masks),
        }

    def padding(self, batch: ProbedBatch) -> int:
        return PADDING_ID

    def old_log_prob(self, batch: ProbedBatch) -> float:
        """The log-probability of every token by the probed model."""
        return -CERTAIN_LOGIT

    def token_weights(
        self, batch: ProbedBatch, gradients: Sequence[NDArray[np.float32]]
    ) -> tuple[NDArray[np.float64], ...]:
        return batch.weights_of_steps(gradients)
