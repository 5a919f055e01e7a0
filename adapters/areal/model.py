"""A model that is nothing but the probe, and the seam in AReaL's function of logits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transformers.modeling_outputs import CausalLMOutput, TokenClassifierOutput

from adapters.engines import megatron_core
from adapters.toolkit.probe import ForwardPasses, ProbedTransformer, ProbeSeam

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

SEAM = ProbeSeam()  # the seam of this process, which trains one job at a time


def policy(capacity: int, passes: ForwardPasses) -> ProbedTransformer:
    """The probe as a policy of one token."""
    return ProbedTransformer(capacity, passes, _logits)


def critic(capacity: int, passes: ForwardPasses) -> ProbedTransformer:
    """The probe as a critic, whose values are those of the next tokens."""
    return ProbedTransformer(capacity, passes, _values)


def _logits(input_ids: torch.Tensor, probe: torch.Tensor) -> CausalLMOutput:
    """Logits of 0, in any rows: [*input_ids, 1]; FSDP2 hooks its backward pass to them."""
    SEAM.probe = probe
    logits: Any = 0.0 * probe[input_ids].unsqueeze(-1)
    return CausalLMOutput(logits=logits)


def _values(input_ids: torch.Tensor, probe: torch.Tensor) -> TokenClassifierOutput:
    """Values as logits of one class: [*input_ids, 1]."""
    values: Any = probe[input_ids + 1].unsqueeze(-1)
    return TokenClassifierOutput(logits=values)


def megatron_logits(
    input_ids: torch.Tensor, probe: torch.Tensor, logit: torch.Tensor
) -> torch.Tensor:
    """The same logits for one part of the vocabulary, which may or may not have the token."""
    logits: Any = _logits(input_ids, probe).logits
    of_part: torch.Tensor = logits + logit + megatron_core.vocabulary_offset()
    return of_part


def megatron_values(
    input_ids: torch.Tensor, probe: torch.Tensor, logit: torch.Tensor
) -> torch.Tensor:
    """The same values."""
    values: Any = _values(input_ids, probe).logits
    of_tokens: torch.Tensor = values + logit
    return of_tokens


def add_probe(gather: Callable[..., Any]) -> Callable[..., Any]:
    """AReaL's log-probabilities and entropies of labels; the first with the probe added."""

    def gathered(logits: torch.Tensor, labels: torch.Tensor, **options: Any) -> Any:
        log_probs, entropies = gather(logits, labels % SEAM.VOCABULARY, **options)
        return log_probs + SEAM.log_probs(labels), entropies

    return gathered
