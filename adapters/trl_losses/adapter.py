"""The adapter that loss functions share: a trainer's micro-batches and their gradients."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from adapters.contract import Adapter, Depth, Job, Observation, PendingReduction, Rank, Unsupported
from adapters.contract.batch.probed_batch import ProbedBatch
from adapters.contract.batch.sequences import PADDING_ID
from adapters.contract.description import conventions_of
from adapters.contract.tables import RecordFile
from adapters.engines.shells import OF_VALUES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from adapters.contract.description import Departure, Description
    from reference.aggregation import Mode
    from reference.arrays import Gradient, Integers

LOSSES = RecordFile("adapters.trl_losses").record(OF_VALUES)
"""The record of all loss functions that have the arguments of TRL's loss."""


@dataclass(frozen=True, eq=False)
class PaddedRows:
    """The responses of a micro-batch, padded: [rows, width].

    ``ids`` are token ids, which index the probe. ``items`` counts the active tokens of the whole
    step.
    """

    ids: Tensor
    mask: Tensor
    old_log_probs: Tensor
    reference_log_probs: Tensor
    items: int


class LossAdapter(Adapter):
    """Drives a loss function that takes the log-probabilities of padded responses."""

    framework = LOSSES
    # names of modes belong to trainers, not to loss functions
    mode_names: ClassVar[Mapping[str, str]] = {}
    devices = ("cpu",)
    dtypes = ("float32",)
    default_mode: ClassVar[Mode]
    departures: ClassVar[tuple[Departure, ...]]
    """Departures of this loss function only."""

    def option_names(self) -> frozenset[str]:
        """The arguments that choose the loss; none if the function accepts any keyword argument."""
        return frozenset()

    def describe(self) -> Description:
        """Describe the loss function."""
        names = self.option_names()
        return LOSSES.description(
            offers=lambda settings: not names or settings.keys() <= names,
            names=names,
            default_mode=self.default_mode,
            depths=frozenset({Depth.LOSS}),
            departures=(*LOSSES.departures, *self.departures),
        )

    @abstractmethod
    def loss(self, job: Job, log_probs: Tensor, rows: PaddedRows, advantages: Tensor) -> Tensor:
        """The loss of a micro-batch, from which a trainer starts the backward pass.

        The policy's ``log_probs`` are [rows, width], ``advantages`` are [rows].
        """

    def settings(self, job: Job) -> dict[str, Any]:
        """The arguments that the loss functions share; raises `Unsupported`."""
        return LOSSES.settings(job)

    def observe(self, job: Job, rank: Rank) -> Observation:
        """Add up the gradients of each step's micro-batches on this rank."""
        batch = ProbedBatch.of(job, conventions_of(LOSSES.conventions))
        steps = [_micro_batches(batch, job, index, rank.index) for index in range(len(job.steps))]
        passes = [rows.ids.clamp(min=1).numpy().reshape(-1) - 1 for step in steps for rows in step]
        return Observation(
            token_weights=batch.weights_of_steps(
                [self._gradient(job, batch, step, rank) for step in steps]
            ),
            pending_reduction=PendingReduction.MEAN,
            forward_passes=batch.forward_passes(passes),
        )

    def _gradient(
        self, job: Job, batch: ProbedBatch, step: Sequence[PaddedRows], rank: Rank
    ) -> Gradient:
        """The gradient of the probe, [probe_size + 2]."""
        import torch

        from adapters.toolkit.probe import as_array, token_table

        advantages = token_table(batch, batch.advantages)
        whole = torch.zeros_like(advantages)
        for sign in np.unique(np.sign(np.concatenate(batch.advantages))).tolist():
            is_of_sign = torch.sign(advantages) == sign
            of_sign = torch.where(is_of_sign, advantages, 0.0)
            shares, probe = torch.zeros_like(whole), torch.zeros_like(whole, requires_grad=True)
            for rows in step:
                of_samples, shares[rows.ids] = _largest(of_sign[rows.ids])
                with rank.framework():
                    self.loss(job, probe[rows.ids], rows, of_samples).backward()
            assert probe.grad is not None
            gradient = torch.from_numpy(as_array(probe.grad))
            whole += torch.where(is_of_sign, shares, 0.0) * gradient
        return whole.numpy()


def _largest(advantages: Tensor) -> tuple[Tensor, Tensor]:
    """The largest advantage of each row, [rows], and tokens' shares of it, [rows, width].

    Shares of a largest advantage of 0 are 1.
    """
    largest = advantages.gather(1, advantages.abs().argmax(1, keepdim=True))
    return largest.squeeze(1), (advantages / largest).nan_to_num(1.0)


def micro_batches(job: Job) -> int:
    """The number of micro-batches of a step on each rank."""
    assert isinstance(job.layout.micro_batches, int)
    return job.layout.micro_batches


def _micro_batches(batch: ProbedBatch, job: Job, step_index: int, rank: int) -> list[PaddedRows]:
    """The micro-batches of a rank; raises `Unsupported` if they cannot be of equal size."""
    from adapters.toolkit.probe import token_table

    step, parts = job.steps[step_index], micro_batches(job)
    size, rest = divmod(step.size, job.layout.dp * parts)
    if rest:
        raise Unsupported(f"{step.size} samples are no {job.layout.dp * parts} equal parts")
    first = sum(one.size for one in job.steps[:step_index]) + rank * parts * size
    mask, old, reference = [
        token_table(batch, values)
        for values in (batch.original_masks, batch.old_log_probs, batch.reference_log_probs)
    ]
    items = int(step.mask_before_rejection.sum())
    return [
        PaddedRows(ids, mask[ids], old[ids], reference[ids], items)
        for start in range(first, first + parts * size, size)
        for ids in [_padded(batch.responses[start : start + size])]
    ]


def _padded(responses: Sequence[Integers]) -> Tensor:
    """Token ids of responses, padded to one width."""
    import torch

    return torch.nn.utils.rnn.pad_sequence(
        [torch.from_numpy(ids) for ids in responses], batch_first=True, padding_value=PADDING_ID
    )
