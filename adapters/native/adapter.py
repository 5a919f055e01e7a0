"""The adapter of `native`."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from adapters.contract import (
    Adapter,
    Depth,
    Description,
    Job,
    Layout,
    Observation,
    PendingReduction,
    Rank,
    grids,
)
from adapters.contract.objective import Metric, Objective
from adapters.contract.probed_batch import ProbedBatch
from adapters.native import logs, options
from adapters.native.trainer import SampleTensors, Trainer, linear_losses
from adapters.toolkit.probe import FORWARD_PASSES, as_array
from reference.aggregation import Mode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from adapters.contract import LogEntry


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
        return Trainer(job, rank)

    def started(self, job: Job) -> None:
        """Validate a job as the framework's startup does.

        Raises:
            Refused: the options or the data would give a wrong denominator.
        """
        given = options.merged(job)
        options.validate(given, job)
        options.validate_data(given, job)

    def aggregate(self, entries: Sequence[LogEntry], rank: Rank) -> Mapping[str, float]:
        """Sum over micro-batches and divide by each key's divisor."""
        return logs.aggregate(entries)

    def observe(self, job: Job, rank: Rank) -> Observation:
        """Train the steps of a batch and read the probe's gradient of each."""
        self.started(job)
        batch = ProbedBatch(job.steps, job.objective)
        steps = _steps(batch)
        probe = torch.zeros(
            batch.probe_size,
            requires_grad=True,
            device=rank.device,
            dtype=getattr(torch, rank.dtype),
        )
        FORWARD_PASSES.drain()
        with rank.framework():
            trainer = self.trainer(job, rank.index)
            if job.depth is not Depth.STEP:
                losses = linear_losses if job.depth is Depth.REDUCER else trainer.token_losses
                shares = [trainer.accumulate(probe, samples, losses)[0] for samples in steps]
                return _observation(batch, shares, pending_reduction=PendingReduction.SUM)
            trained = [trainer.train_step(probe, samples) for samples in steps]
        gradients, logs = zip(*trained, strict=True)
        return _observation(batch, gradients, logs=logs)


def _steps(batch: ProbedBatch) -> list[list[SampleTensors]]:
    """The samples of each step."""
    groups = np.concatenate([step.groups for step in batch.steps])
    per_token = zip(
        batch.advantages,
        batch.old_log_probs,
        batch.reference_log_probs,
        batch.masks,
        batch.original_masks,
        strict=True,
    )
    samples = (
        SampleTensors(
            torch.from_numpy(np.concatenate([prompt, response])),
            *(_on_response(prompt, values) for values in of_response),
            group=int(group),
        )
        for group, prompt, response, of_response in zip(
            groups, batch.prompts, batch.responses, per_token, strict=True
        )
    )
    return [list(islice(samples, step.size)) for step in batch.steps]


def _on_response(prompt: NDArray[Any], values: NDArray[Any]) -> torch.Tensor:
    """The values of a response, preceded by zeros for its prompt."""
    narrow = values.astype(np.float32) if values.dtype == np.float64 else values
    return torch.from_numpy(np.concatenate([np.zeros(len(prompt), narrow.dtype), narrow]))


def _observation(
    batch: ProbedBatch,
    gradients: Sequence[torch.Tensor],
    *,
    pending_reduction: PendingReduction = PendingReduction.REPLICATED,
    logs: Sequence[dict[Metric, float]] = (),
) -> Observation:
    return Observation(
        token_weights=batch.weights_of_steps([as_array(gradient) for gradient in gradients]),
        pending_reduction=pending_reduction,
        forward_passes=batch.forward_passes(FORWARD_PASSES.drain()),
        reported={
            metric: tuple(log[metric] for log in logs) for metric in (logs[0] if logs else ())
        },
    )
