"""A right adapter for a trainer with a mistake."""

from __future__ import annotations

import torch

from reference.aggregation import Mode
from tests.minimal.right import MinimalAdapter, Trainer


class TrainerThatCountsASample(Trainer):
    """In one mode it divides by a sample more than there are."""

    def token_weights(self, mask: torch.Tensor, mode: Mode) -> torch.Tensor:
        weights = super().token_weights(mask, mode)
        return weights if mode is Mode.TOKEN_MEAN else weights * len(mask) / (len(mask) + 1)


class DrivingAMistake(MinimalAdapter):
    """It finds the mistake."""

    trainer = TrainerThatCountsASample
