"""What frameworks build a critic of: a class of pretrained models, and a linear value head."""

from __future__ import annotations

from typing import Any

from torch import nn

from adapters.toolkit.probe import ProbeLayer


class PretrainedBase(nn.Module):
    """Replaces the Hugging Face class of pretrained models that a framework's critic extends."""

    base_model_prefix = "model"
    _no_split_modules = (ProbeLayer.__name__,)

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config

    def post_init(self) -> None:
        """Do nothing: there is nothing to initialise."""


def freeze_identity_head(head: nn.Linear) -> None:
    """Make the value head of hidden states of width 1 the identity, which is not trained."""
    nn.init.ones_(head.weight)
    head.requires_grad_(False)
