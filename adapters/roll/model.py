"""ROLL's critic and Megatron model around the probe, and wrappers of its functions of logits.

ROLL's functions for Megatron overwrite float32 logits in place (bfloat16 logits are first copied to
float32). Here the functions get copies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transformers.modeling_outputs import TokenClassifierOutput

from adapters.engines import numbered
from adapters.engines.numbered import SEAM
from adapters.toolkit.probe import ForwardPasses, ProbedTransformer

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch


def probed(role: str, capacity: int, passes: ForwardPasses) -> ProbedTransformer:
    """A policy with a vocabulary of one token, or a critic: its values are next tokens' entries."""
    return ProbedTransformer(capacity, passes, _values if role == "critic" else numbered.outputs)


def add_probe(log_probs_from_logits: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Wrap a function of log-probabilities, adding the probe."""
    return SEAM.wrap_log_probs(_copy_first(log_probs_from_logits))


def add_entropies(entropy_from_logits: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Wrap a function of entropies, adding the predicted tokens' entropies and the probe."""
    return SEAM.wrap_entropies(_copy_first(entropy_from_logits))


def _copy_first(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    return lambda logits, *rest, **options: function(logits.clone(), *rest, **options)


def megatron_logits(
    input_ids: torch.Tensor, probe: torch.Tensor, logit: torch.Tensor
) -> torch.Tensor:
    """The logits of the Megatron model: [*input_ids, 1]."""
    logits: Any = numbered.outputs(input_ids, probe).logits
    of_tokens: torch.Tensor = logits + logit
    return of_tokens


def _values(input_ids: torch.Tensor, probe: torch.Tensor) -> TokenClassifierOutput:
    """Values as logits of one class, for any number of rows."""
    values: Any = probe[input_ids + 1].unsqueeze(-1)
    return TokenClassifierOutput(logits=values)
