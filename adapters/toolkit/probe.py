"""The probe in torch: tables as tensors, gradients as arrays, a record of forward passes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def cycled(values: NDArray[np.float64], ids: torch.Tensor) -> torch.Tensor:
    """Each token's entry of such a table: float32, in the shape of ``ids``."""
    table = torch.from_numpy(values).to(ids.device, torch.float32)
    return table[ids % len(table)]


def as_array(gradient: torch.Tensor) -> NDArray[np.float32]:
    """A probe's gradient as it is now, of whatever device and dtype."""
    return gradient.detach().float().cpu().numpy().copy()


class ForwardPasses:
    """The token ids that a rank's model was given, forward pass by forward pass."""

    def __init__(self) -> None:
        self._passes: list[NDArray[np.int64]] = []

    def note(self, ids: torch.Tensor) -> None:
        """Called by the model that an adapter hands to its framework; only training counts."""
        if torch.is_grad_enabled():
            self._passes.append(ids.detach().cpu().numpy().reshape(-1))

    def drain(self) -> list[NDArray[np.int64]]:
        """What was noted since last asked."""
        passes = self._passes.copy()
        self._passes.clear()
        return passes


FORWARD_PASSES = ForwardPasses()
"""Of this process, which trains one job at a time."""
