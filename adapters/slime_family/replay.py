"""Routing replay on Megatron-Core: each token must get the experts that its rollout chose for it.

A mixture has so many experts that the rollout can choose a different one for each token of the
batch in every layer. The entry of the token that a position predicts is read only if the framework
replays the position's own expert in every layer; otherwise the token's weight is 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from adapters.contract.batch.sequences import PADDING_ID
from adapters.slime_family.framework import EXPERTS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from adapters.contract.batch.probed_batch import ProbedBatch


def expert_of(ids: Any, layer: Any) -> Any:
    """The expert of a token id in a layer."""
    return (ids + layer) % EXPERTS


def routed_experts(batch: ProbedBatch, layers: int) -> list[NDArray[np.int32]]:
    """The experts that rollouts chose, by sample: [tokens - 1, layers, 1].

    The last token has no expert, because the rollout model never reads it.
    """
    of_layers = np.arange(layers)[:, np.newaxis]
    return [
        expert_of(ids[:-1, np.newaxis, np.newaxis], of_layers).astype(np.int32)
        for ids in batch.sequences
    ]


class ReplayingRouter(nn.Module):
    """A stub of a layer's router, with a framework's function that chooses experts by scores."""

    compute_topk: Callable[..., tuple[torch.Tensor, torch.Tensor]]

    def __init__(self, layer: int) -> None:
        super().__init__()
        self._layer = layer

    def forward(self, ids: torch.Tensor, probe: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The ids and the probe's entries of positions that got their own expert.

        All other ids are replaced by padding, and all other entries by 0. Megatron-Core's router
        gets positions in the order [tokens, rows], but ids are [rows, tokens].
        """
        scores = torch.zeros(1, 1, device=ids.device).expand(ids.numel(), EXPERTS)
        _, experts = self.compute_topk(scores, 1)
        is_own = experts.view(ids.T.shape).T.eq(expert_of(ids, self._layer))
        entries = torch.zeros_like(probe)
        entries[(ids[is_own] + 1) % len(probe)] = 1.0
        return torch.where(is_own, ids, PADDING_ID), probe * entries


def choose(scores: torch.Tensor, topk: int, **_: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Megatron-Core's choice of experts: the experts with the largest scores."""
    return torch.topk(scores, topk, dim=1)


def give_routers(chunks: Sequence[Any]) -> list[ReplayingRouter]:
    """Give each chunk of a data-parallel model a new router."""
    bare = [chunk.module for chunk in chunks]
    for chunk in bare:
        chunk.replaying = ReplayingRouter(chunk.number)
    return [chunk.replaying for chunk in bare]
