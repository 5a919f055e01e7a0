"""The adapter of `native`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from adapters.contract.adapter import Adapter, Rank
from adapters.contract.description import Description
from adapters.contract.job import Depth, Job, LogEntry, Observation, PendingReduction
from adapters.contract.layout import Layout, grids
from adapters.contract.objective import Metric, Objective
from adapters.contract.probed_batch import ProbedBatch
from adapters.native import options
from reference.aggregation import Mode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from adapters.native.trainer import Trainer
    from reference.aggregation import Aggregation


NOT_IMPLEMENTED = {Objective.GSPO, Objective.SAPO, Objective.CLIP_COV, Objective.KL_COV}


class NativeAdapter(Adapter):
    """Drives `Trainer` at all depths, in all modes and layouts."""

    name = "native"
    devices = ("cpu", "cuda")
    dtypes = ("float32", "bfloat16")

    def layouts(self) -> Sequence[Layout]:
        """Every dp × cp of powers of two on up to 8 ranks; one number of micro-batches on 8."""
        return [
            Layout(dp=dp, cp=cp, micro_batches=micro_batches, format=storage)
            for dp, cp in grids(largest=8)
            for micro_batches in (1, 2, "uneven")
            for storage in ("thd", "bshd")
            if dp * cp < 8 or micro_batches == 2
        ]

    def load(self, source: Path | None) -> None:
        """Do nothing: the framework is imported with the adapter."""

    def describe(self) -> Description:
        """Describe the framework, which lacks some policy losses."""
        return Description(
            modes=frozenset(Mode),
            depths=frozenset(Depth),
            objectives=frozenset(Objective) - NOT_IMPLEMENTED,
            metrics=frozenset(Metric),
            configurations=options.NAMES,
            records_forward_passes=True,
            rules=options.RULES,
        )

    def trainer(self, job: Job, rank: int) -> Trainer:
        """The framework's trainer for a job."""
        from adapters.native.trainer import Trainer

        return Trainer(job, rank)

    def started(self, job: Job) -> None:
        """Raise `Refused` if the options or the data would give a wrong denominator."""
        given = options.merged(job)
        options.validate(given, job)
        options.validate_data(given, job)

    def aggregation(self, job: Job) -> Aggregation:
        """The mode and divisor that a job's options choose."""
        return options.merged(job).aggregation

    def aggregate(self, entries: Sequence[LogEntry], rank: Rank) -> Mapping[str, float]:
        """Sum over micro-batches and divide by each key's divisor."""
        return aggregate(entries)

    def observe(self, job: Job, rank: Rank) -> Observation:
        """Train the steps of a batch and read the probe's gradient of each."""
        import torch

        from adapters.native.trainer import linear_losses, samples_of_steps

        self.started(job)
        job = replace(job, aggregation=self.aggregation(job))
        batch = ProbedBatch(job.steps, job.objective)
        steps = samples_of_steps(batch)
        dtype = getattr(torch, rank.dtype)
        probe = torch.zeros(batch.probe_size, requires_grad=True, device=rank.device, dtype=dtype)
        with rank.framework():
            trainer = self.trainer(job, rank.index)
            if job.depth is not Depth.STEP:
                losses = linear_losses if job.depth is Depth.REDUCER else trainer.token_losses
                shares = [trainer.accumulate(probe, samples, losses)[0] for samples in steps]
                return _observation(batch, trainer, shares, pending_reduction=PendingReduction.SUM)
            size = job.configuration.batch_size or max(map(len, steps))
            parts = [[s[i : i + size] for i in range(0, len(s), size)] for s in steps]
            trained = [[trainer.train_step(probe, one) for one in step] for step in parts]
        gradients = [sum(gradient for gradient, _ in step) for step in trained]
        return _observation(batch, trainer, gradients, logs=[step[-1][1] for step in trained])


def aggregate(entries: Sequence[LogEntry]) -> dict[str, float]:
    """Sums of values over sums of their divisors; `ValueError` if keys or their order differ."""
    keys = entries[0].keys
    for entry in entries:
        if entry.keys != keys:
            raise ValueError(f"keys {entry.keys} after {keys}; log the same in the same order")
    values = np.sum([entry.values for entry in entries], axis=0)
    divisors = [entry.normalizers or (entry.count,) * len(keys) for entry in entries]
    return dict(zip(keys, (values / np.sum(divisors, axis=0)).tolist(), strict=True))


def _observation(
    batch: ProbedBatch,
    trainer: Trainer,
    gradients: Sequence[Any],
    *,
    pending_reduction: PendingReduction = PendingReduction.REPLICATED,
    logs: Sequence[dict[Metric, float]] = (),
) -> Observation:
    from adapters.toolkit.probe import as_array

    return Observation(
        token_weights=batch.weights_of_steps([as_array(gradient) for gradient in gradients]),
        pending_reduction=pending_reduction,
        forward_passes=batch.forward_passes(trainer.passes.drain()),
        reported={metric: tuple(log[metric] for log in logs) for metric in logs[0]} if logs else {},
    )
