"""A model that consists of the probe, and a wrapper of AReaL's function of logits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transformers.modeling_outputs import CausalLMOutput

from adapters.engines import megatron_core
from adapters.toolkit.probe import SEAM

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor


def outputs(input_ids: Tensor, probe: Tensor) -> CausalLMOutput:
    """Logits of 0, [*input_ids, 1]; the probe is in their graph for FSDP2's backward hooks."""
    SEAM.probe = probe
    logits: Any = 0.0 * probe[input_ids].unsqueeze(-1)
    return CausalLMOutput(logits=logits)


def megatron_logits(input_ids: Tensor, probe: Tensor, logit: Tensor) -> Tensor:
    """Logits for a tensor-parallel rank's part of the vocabulary, which may lack the only token."""
    logits: Any = outputs(input_ids, probe).logits
    of_part: Tensor = logits + logit + megatron_core.vocabulary_offset()
    return of_part


def add_probe(gather: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap AReaL's function of logits, adding the probe to log-probabilities, not to entropies."""

    def gathered(logits: Tensor, labels: Tensor, **options: Any) -> Any:
        log_probs, entropies = gather(logits, labels % SEAM.VOCABULARY, **options)
        return log_probs + SEAM.log_probs(labels), entropies

    return gathered
