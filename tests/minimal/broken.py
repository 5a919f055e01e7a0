"""Adapters that differ from `MinimalAdapter` in one defect each, after which they are named."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from adapters.contract import Description, Job, Layout, Observation, Rank, Refused, Unsupported
from adapters.contract.batch.probed_batch import ProbedBatch
from adapters.contract.objective import Metric, Objective
from adapters.toolkit.probe import GradientReader, as_array, probe_capacity
from reference.aggregation import Mode
from tests.minimal.right import MinimalAdapter


class ReturningGradients(MinimalAdapter):
    """Returns the gradients of the probe instead of the token weights."""

    def token_weights(
        self, batch: ProbedBatch, gradients: Sequence[NDArray[np.float32]]
    ) -> tuple[NDArray[np.float64], ...]:
        ids = np.concatenate(batch.responses)
        return tuple(batch.split(each[ids].astype(float))[i] for i, each in enumerate(gradients))


class NegatingWeights(MinimalAdapter):
    """Divides by the advantages instead of the derivatives of the losses, their negatives."""

    def token_weights(
        self, batch: ProbedBatch, gradients: Sequence[NDArray[np.float32]]
    ) -> tuple[NDArray[np.float64], ...]:
        return tuple(-weights for weights in batch.weights_of_steps(gradients))


class TakingOneAdvantagePerSample(MinimalAdapter):
    """Its trainer uses one advantage for each sample, which the adapter does not declare."""

    def rows(self, batch: ProbedBatch, start: int, end: int) -> dict[str, torch.Tensor]:
        first = np.array([one[0] for one in batch.advantages[start:end]], np.float32)
        rows = super().rows(batch, start, end)
        advantages = torch.from_numpy(first)[:, None].expand_as(rows["advantages"])
        return {**rows, "advantages": advantages}


class _AddingUp(GradientReader):
    def _read(self, optimizer: torch.optim.Optimizer, *arguments: object) -> None:
        [probe] = optimizer.param_groups[0]["params"]
        self._gradients.append(as_array(probe.grad))


class NotZeroingTheGradient(MinimalAdapter):
    """Keeps its model from job to job, without setting the gradient to zero."""

    def reader(self, optimizer: torch.optim.Optimizer) -> GradientReader:
        return _AddingUp(optimizer)


class NotZeroingTheGradientOnOneRank(NotZeroingTheGradient):
    """Has only layouts of one rank, so that the model is never made anew."""

    def layouts(self) -> Sequence[Layout]:
        return super().layouts()[:2]


class MovingTheProbe(NotZeroingTheGradient):
    """Makes optimizer steps with a learning rate and a gradient, so the probe moves."""

    learning_rate = 1.0

    def observe(self, job: Job, rank: Rank) -> Observation:
        seen = super().observe(job, rank)
        for _, trainer, _ in rank.cache.values():
            trainer.optimizer.zero_grad(set_to_none=False)
        return seen


class MovingTheProbeOnOneRank(MovingTheProbe):
    """Has only layouts of one rank, so that the model is never made anew."""

    def layouts(self) -> Sequence[Layout]:
        return super().layouts()[:2]


class RecordingNoForwardPasses(MinimalAdapter):
    """Declares that it records forward passes, and returns none."""

    def observe(self, job: Job, rank: Rank) -> Observation:
        return replace(super().observe(job, rank), forward_passes=())


class RecordingNoPrompts(MinimalAdapter):
    """Misses the first token of each response in the record of forward passes."""

    def observe(self, job: Job, rank: Rank) -> Observation:
        seen = super().observe(job, rank)
        for step, passes in zip(job.steps, seen.forward_passes, strict=True):
            passes[step.offsets[:-1]] = -1
        return seen


class PaddingWithTheIdOfAToken(MinimalAdapter):
    """Pads rows with the id of the last token but one."""

    def padding(self, batch: ProbedBatch) -> int:
        return batch.probe_size - 2


class RunningIntoTheNextSample(MinimalAdapter):
    """Pads rows with the tokens that follow in the batch, and trains on these."""

    def rows(self, batch: ProbedBatch, start: int, end: int) -> Any:
        rows = super().rows(batch, start, end)
        width = rows["ids"].shape[1]
        ids = (rows["ids"][:, :1] + torch.arange(width)).clamp(max=batch.probe_size - 1)
        further = (ids != rows["ids"])[:, 1:]
        values = {name: rows[name] + further for name in ("advantages", "mask")}
        old = rows["old_log_probs"] + further * self.old_log_prob(batch)
        return rows | values | {"ids": ids, "old_log_probs": old}


class TakingOldLogProbsOfZero(MinimalAdapter):
    """Takes 0 for the log-probability that `logits_head` gives every token."""

    def old_log_prob(self, batch: ProbedBatch) -> float:
        return 0.0


class TrainingAPlainSoftmax(MinimalAdapter):
    """Takes a softmax in which tokens other than the predicted one also have probability."""

    def head(self, ids: torch.Tensor, probe: torch.Tensor) -> dict[str, torch.Tensor]:
        predicted = ((ids + 1) % len(probe)).unsqueeze(-1)
        logits = torch.zeros(*ids.shape, len(probe))
        return {"logits": logits.scatter(-1, predicted, probe[predicted])}

    def old_log_prob(self, batch: ProbedBatch) -> float:
        return -math.log(probe_capacity(batch.probe_size))


class TrainingAPlainSoftmaxOffPolicy(TrainingAPlainSoftmax):
    """Also takes 0 for old log-probabilities."""

    def old_log_prob(self, batch: ProbedBatch) -> float:
        return 0.0


class TakingTheProbeForLogits(TrainingAPlainSoftmax):
    """Takes the probe's entries for the logits of all tokens."""

    def head(self, ids: torch.Tensor, probe: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"logits": probe.expand(*ids.shape, -1)}


class AddingTheProbeOfTheInput(MinimalAdapter):
    """Adds the probe's entry for the token before it to the log-probability of a token."""

    def head(self, ids: torch.Tensor, probe: torch.Tensor) -> dict[str, Any]:
        return super().head(ids, torch.cat([probe[:1], probe[:-1]]))


class DetachingTheProbe(MinimalAdapter):
    """Detaches the probe, so that the loss does not depend on it."""

    def head(self, ids: torch.Tensor, probe: torch.Tensor) -> dict[str, Any]:
        return super().head(ids, probe.detach() + 0 * probe)


class DeclaringAModeItLacks(MinimalAdapter):
    """Raises `Unsupported` in a mode that it declares."""

    def describe(self) -> Description:
        return replace(super().describe(), modes=super().describe().modes | {Mode.PROMPT_MEAN})

    def observe(self, job: Job, rank: Rank) -> Observation:
        if job.aggregation.mode is Mode.PROMPT_MEAN:
            raise Unsupported("no prompt_mean")
        return super().observe(job, rank)


class DeclaringAMetricItDoesNotLog(MinimalAdapter):
    """Logs nothing, though it declares a metric."""

    def observe(self, job: Job, rank: Rank) -> Observation:
        return replace(super().observe(job, rank), reported={Metric.POLICY_LOSS: (None,) * 2})


class IgnoringTheConfiguration(MinimalAdapter):
    """Declares that a configuration may leave the mode to its default, but always sets the mode."""

    def mode(self, job: Job) -> Mode:
        return job.aggregation.mode


class RefusingTwoRanks(MinimalAdapter):
    """Refuses an ordinary step on two ranks."""

    def observe(self, job: Job, rank: Rank) -> Observation:
        if rank.world_size > 1:
            raise Refused("batch size 8 is not divisible by 3")
        return super().observe(job, rank)


class ReturningOneArray(MinimalAdapter):
    """Returns the weights of all steps in one array."""

    def observe(self, job: Job, rank: Rank) -> Observation:
        seen = super().observe(job, rank)
        return replace(seen, token_weights=(np.concatenate(seen.token_weights),))


class NotDrainingTheReader(MinimalAdapter):
    """Returns the gradients of earlier jobs as well."""

    def reader(self, optimizer: torch.optim.Optimizer) -> GradientReader:
        reader = GradientReader(optimizer)
        reader.drain = lambda: list(reader._gradients)  # type: ignore[method-assign]
        return reader


class LosingGradientsOffPolicy(MinimalAdapter):
    """Declares a loss with ratios, but returns no gradient for it."""

    def describe(self) -> Description:
        both = frozenset({Objective.POLICY, Objective.OFF_POLICY})
        return replace(super().describe(), objectives=both)

    def token_weights(
        self, batch: ProbedBatch, gradients: Sequence[NDArray[np.float32]]
    ) -> tuple[NDArray[np.float64], ...]:
        kept = [] if batch.objective is Objective.OFF_POLICY else gradients
        return batch.weights_of_steps(kept)


class DeclaringNoObjective(MinimalAdapter):
    """Does not declare that it has the policy loss."""

    def describe(self) -> Description:
        return replace(super().describe(), objectives=frozenset())


class DeclaringNoDevice(MinimalAdapter):
    """Does not declare any device."""

    devices = ()

    def layouts(self) -> Sequence[Layout]:
        return []
