"""The probe in torch: tables as tensors, gradients as arrays, and the record of forward passes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def cycled(values: NDArray[np.float64], ids: torch.Tensor) -> torch.Tensor:
    """Look up a cyclic table by token id: float32, in the shape of ``ids``."""
    table = torch.from_numpy(values).to(ids.device, torch.float32)
    return table[ids % len(table)]


def as_array(gradient: torch.Tensor) -> NDArray[np.float32]:
    """Copy a probe's gradient from any device and dtype."""
    return gradient.detach().float().cpu().numpy().copy()


class ForwardPasses:
    """Records the token ids of each forward pass of a rank's model."""

    def __init__(self) -> None:
        self._passes: list[NDArray[np.int64]] = []

    def note(self, ids: torch.Tensor) -> None:
        """Record a forward pass of the adapter's model, if it is for training."""
        if torch.is_grad_enabled():
            self._passes.append(ids.detach().cpu().numpy().reshape(-1))

    def drain(self) -> list[NDArray[np.int64]]:
        """Return the forward passes recorded since the last call."""
        passes = self._passes.copy()
        self._passes.clear()
        return passes


FORWARD_PASSES = ForwardPasses()
"""The record of this process, which trains one job at a time."""
