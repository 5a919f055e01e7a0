"""ROLL's Megatron model around the probe, and wrappers of its functions of logits.

ROLL's functions for Megatron overwrite float32 logits in place (bfloat16 logits are first copied to
float32). Here the functions get copies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from adapters.engines import numbered
from adapters.engines.numbered import SEAM

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor


def add_probe(log_probs_from_logits: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Wrap a function of log-probabilities, adding the probe."""
    return SEAM.wrap_log_probs(_copy_first(log_probs_from_logits))


def add_entropies(entropy_from_logits: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Wrap a function of entropies, adding the predicted tokens' entropies and the probe."""
    return SEAM.wrap_entropies(_copy_first(entropy_from_logits))


def _copy_first(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda logits, *rest, **options: function(logits.clone(), *rest, **options)


def megatron_logits(input_ids: Tensor, probe: Tensor, logit: Tensor) -> Tensor:
    """The logits of the Megatron model: [*input_ids, 1]."""
    logits: Any = numbered.outputs(input_ids, probe).logits
    of_tokens: Tensor = logits + logit
    return of_tokens
