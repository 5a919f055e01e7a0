"""ROLL's critic and its Megatron model around the probe, and the seams in its functions of logits.

ROLL's functions for Megatron overwrite logits, if these are in float32 and not copied to it, as
those of a model in bfloat16 are: here they are given copies.
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
    """The probe as a policy of one token, or as a critic, whose values are the next tokens'."""
    return ProbedTransformer(capacity, passes, _values if role == "critic" else numbered.outputs)


def add_probe(log_probs_from_logits: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """The log-probabilities of labels, plus the probe."""
    return SEAM.wrap_log_probs(_copy_first(log_probs_from_logits))


def add_entropies(entropy_from_logits: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """The entropies at positions, plus those of the tokens that they predict and the probe."""
    return SEAM.wrap_entropies(_copy_first(entropy_from_logits))


def _copy_first(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    return lambda logits, *rest, **options: function(logits.clone(), *rest, **options)


def megatron_logits(
    input_ids: torch.Tensor, probe: torch.Tensor, logit: torch.Tensor
) -> torch.Tensor:
    """The same logits of Megatron's model."""
    logits: Any = numbered.outputs(input_ids, probe).logits
    of_tokens: torch.Tensor = logits + logit
    return of_tokens


def _values(input_ids: torch.Tensor, probe: torch.Tensor) -> TokenClassifierOutput:
    """Values as logits of one class, in any rows."""
    values: Any = probe[input_ids + 1].unsqueeze(-1)
    return TokenClassifierOutput(logits=values)
