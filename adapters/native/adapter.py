"""The adapter of `native`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from adapters.contract import Adapter, Description, Framework, Metric, Objective, Rank
from adapters.contract.batch.probed_batch import ProbedBatch
from adapters.contract.job import Depth, Job, LogEntry, Observation, PendingReduction
from adapters.contract.tables import RecordFile
from adapters.native import options
from adapters.toolkit.worlds import observation
from reference.aggregation import Aggregation, Mode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from adapters.native.trainer import Trainer

NATIVE = replace(
    RecordFile("adapters.native").record(),
    objectives={objective: {} for objective in Objective},
    metrics={metric: metric.value for metric in Metric},
)
"""The record of the framework, which supports every objective."""


class NativeAdapter(Adapter):
    """Drives `Trainer` at all depths, in all modes and layouts."""

    name = "native"
    devices = ("cpu", "cuda")
    dtypes = ("float32", "bfloat16")
    framework: ClassVar[Framework] = NATIVE

    def load(self, source: Path | None) -> None:
        """Do nothing: the framework is imported with the adapter."""

    def describe(self) -> Description:
        """Describe the framework, which supports everything."""
        return self.framework.description(
            offers=lambda _: True,
            names=(),
            chosen_by={},  # the framework has no command line
            depths=frozenset(Depth),
            promised=dict.fromkeys(Mode, "adapters/native/trainer.py"),
        )

    def trainer(self, job: Job, rank: int) -> Trainer:
        """The framework's trainer for a job."""
        from adapters.native.trainer import Trainer

        return Trainer(job, rank)

    def started(self, job: Job) -> None:
        """Raise `Refused` if options or data would give a wrong denominator."""
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

        from adapters.native.packing import samples_of_steps
        from adapters.toolkit.probe import as_array

        self.started(job)
        job = replace(job, aggregation=self.aggregation(job))
        batch = ProbedBatch.of(job)
        steps = samples_of_steps(batch)
        dtype = getattr(torch, rank.dtype)
        size = batch.probe_size + (job.objective is Objective.ROUTER)
        probe = torch.zeros(size, requires_grad=True, device=rank.device, dtype=dtype)
        with rank.framework():
            trainer = self.trainer(job, rank.index)
            estimated = trainer.assign_advantages(steps)
            of_rollouts = trainer.log_of_rollouts(estimated)
            trained = [_train(trainer, probe, samples) for samples in estimated]
        reported = {metric: tuple(log[metric] for _, log in trained) for metric in trained[0][1]}
        reported |= {metric: (value,) for metric, value in of_rollouts.items()}
        if not job.layout.is_on_last_stage(rank.index):
            return Observation(token_weights=(), reported=reported)
        gradients = [as_array(gradient) for gradient, _ in trained]
        whole = job.depth is Depth.STEP
        pending = PendingReduction.REPLICATED if whole else PendingReduction.SUM
        passes = trainer.passes.drain()
        return observation(batch, gradients, passes, reported, pending_reduction=pending)


def _train(trainer: Trainer, probe: Any, samples: list[Any]) -> tuple[Any, dict[Metric, float]]:
    """The gradient and the last log of a step, trained in parts if the job sets a batch size."""
    from adapters.native.losses import linear

    job = trainer.job
    if job.depth is not Depth.STEP:
        losses = linear if job.depth is Depth.REDUCER else trainer.token_losses
        return trainer.accumulate(probe, samples, losses)[0], {}
    size = job.configuration.batch_size or len(samples)
    parts = [samples[i : i + size] for i in range(0, len(samples), size)]
    trained = [trainer.train_step(probe, part) for part in parts]
    return sum(gradient for gradient, _ in trained), trained[-1][1]


def aggregate(entries: Sequence[LogEntry]) -> dict[str, float]:
    """Sums of values over sums of their divisors; `ValueError` if keys or their order differ."""
    keys = entries[0].keys
    for entry in entries:
        if entry.keys != keys:
            raise ValueError(f"keys {entry.keys} after {keys}; log the same in the same order")
    values = np.sum([entry.values for entry in entries], axis=0)
    divisors = [entry.normalizers or (entry.count,) * len(keys) for entry in entries]
    return dict(zip(keys, (values / np.sum(divisors, axis=0)).tolist(), strict=True))
