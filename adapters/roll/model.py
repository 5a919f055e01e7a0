"""Models that are nothing but the probe, and the seams in ROLL's functions of logits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transformers.modeling_outputs import CausalLMOutput, TokenClassifierOutput

from adapters.toolkit.probe import ForwardPasses, ProbedTransformer, ProbeSeam

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

SEAM = ProbeSeam()  # the seam of this process, which trains one job at a time


def probed(role: str, capacity: int, passes: ForwardPasses) -> ProbedTransformer:
    """The probe as a policy of one token, or as a critic, whose values are the next tokens'."""
    return ProbedTransformer(capacity, passes, _values if role == "critic" else _logits)


# ROLL's functions for Megatron overwrite logits, if these are in float32 and not copied to it, as
# those of a model in bfloat16 are: here they are given copies.


def add_probe(log_probs_from_logits: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """The log-probabilities of labels, plus the probe."""
    return SEAM.wrap_log_probs(
        lambda logits, *rest, **options: log_probs_from_logits(logits.clone(), *rest, **options)
    )


def add_entropies(entropy_from_logits: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """The entropies at positions, plus those of the tokens that they predict and the probe."""

    def entropies(logits: torch.Tensor, **options: Any) -> torch.Tensor:
        SEAM.predicted = logits[..., 0].detach().long()
        return entropy_from_logits(logits.clone(), **options)

    return SEAM.wrap_entropies(entropies)


def _logits(input_ids: torch.Tensor, probe: torch.Tensor) -> CausalLMOutput:
    """The only token's logits, in any rows; FSDP2 hooks its backward pass to them.

    A logit is the id of the predicted token, which ROLL slices as it does logits: in a vocabulary
    of one token, all logits have the same probability.
    """
    SEAM.probe = probe
    logits: Any = 0.0 * probe[input_ids] + (input_ids + 1)
    return CausalLMOutput(logits=logits.unsqueeze(-1))


def megatron_logits(
    input_ids: torch.Tensor, probe: torch.Tensor, logit: torch.Tensor
) -> torch.Tensor:
    """The same logits of Megatron's model."""
    logits: Any = _logits(input_ids, probe).logits
    of_tokens: torch.Tensor = logits + logit
    return of_tokens


def _values(input_ids: torch.Tensor, probe: torch.Tensor) -> TokenClassifierOutput:
    """Values as logits of one class, in any rows."""
    values: Any = probe[input_ids + 1].unsqueeze(-1)
    return TokenClassifierOutput(logits=values)
