"""The samples of a batch as `Trainer` takes them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from adapters.contract.probed_batch import ProbedBatch


@dataclass(frozen=True, eq=False)
class SampleTensors:
    """One sample: token ids and per-token values, [prompt + response], and its denominators.

    Values are 0 on the prompt. The sample's masked sums are divided by ``denominator`` for the
    policy loss, by ``auxiliary_denominator`` for auxiliary losses and metrics, and by
    ``original_denominator`` for metrics of the mask before rejection sampling.
    """

    ids: torch.Tensor
    advantages: torch.Tensor
    old_log_probs: torch.Tensor
    reference_log_probs: torch.Tensor
    mask: torch.Tensor
    original_mask: torch.Tensor
    group: int
    denominator: float = float("nan")
    auxiliary_denominator: float = float("nan")
    original_denominator: float = float("nan")

    @property
    def tokens(self) -> int:
        """The number of active tokens."""
        return int(self.mask.sum())


def samples_of_steps(batch: ProbedBatch) -> list[list[SampleTensors]]:
    """The samples of each step."""
    groups = np.concatenate([step.groups for step in batch.steps])
    of_batch = batch.advantages, batch.old_log_probs, batch.reference_log_probs
    of_samples: Iterator[Any] = zip(*of_batch, batch.masks, batch.original_masks, strict=True)
    samples = (
        SampleTensors(
            torch.from_numpy(np.concatenate([prompt, response])),
            *(_on_response(prompt, values) for values in per_token),  # type: ignore[arg-type]
            group=int(group),  # type: ignore[misc]
        )
        for group, prompt, response, per_token in zip(
            groups, batch.prompts, batch.responses, of_samples, strict=True
        )
    )
    return [list(islice(samples, step.size)) for step in batch.steps]


def _on_response(prompt: NDArray[Any], values: NDArray[Any]) -> torch.Tensor:
    """The values of a response, preceded by zeros for its prompt."""
    narrow = values.astype(np.float32) if values.dtype == np.float64 else values
    return torch.from_numpy(np.concatenate([np.zeros(len(prompt), narrow.dtype), narrow]))
