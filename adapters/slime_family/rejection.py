"""A user's function for truncated importance sampling, one that takes tokens out of the mask.

slime and miles find it by its name. They give it log-probabilities as a context-parallel rank holds
them and masks as they are of whole samples, and take back both kinds.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from types import ModuleType

LARGEST_RATIO = math.exp(2)
"""Of the policy to the one that made the rollouts, for a token that is kept."""


class _Helpers:
    """The framework's own for context parallelism."""

    module: ModuleType


def use(module: ModuleType) -> None:
    """Gather and slice log-probabilities with the functions of a framework's module."""
    _Helpers.module = module


def reject(
    args: Any,
    *,
    pg_loss: torch.Tensor,
    train_log_probs: list[torch.Tensor],
    rollout_log_probs: list[torch.Tensor],
    loss_masks: list[torch.Tensor],
    total_lengths: list[int],
    response_lengths: list[int],
    max_seq_lens: list[int] | None = None,
    **others: Any,
) -> tuple[torch.Tensor, list[torch.Tensor], dict[str, torch.Tensor]]:
    """Losses as they are, masks without the tokens rejected, and 1 for each of those."""
    masks, rejected = [], []
    per_sample = zip(
        train_log_probs,
        rollout_log_probs,
        loss_masks,
        total_lengths,
        response_lengths,
        max_seq_lens or [None] * len(loss_masks),
        strict=True,
    )
    for train, rollout, mask, total, response, width in per_sample:
        padding = () if width is None else (args.qkv_format, width)
        with torch.no_grad():
            whole = _Helpers.module.all_gather_with_cp(train - rollout, total, response, *padding)
        keep = (whole.exp() <= LARGEST_RATIO).to(mask.dtype)
        masks.append(mask * keep)
        taken = (mask * (1 - keep)).to(pg_loss.dtype)
        rejected.append(_Helpers.module.slice_log_prob_with_cp(taken, total, response, *padding))
    return pg_loss, masks, {"rejected": torch.cat(rejected)}


PATH = f"{__name__}.{reject.__name__}"
"""What the frameworks are told."""
