"""A model that is nothing but the probe, and the seams in RLinf's functions of logits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transformers.modeling_outputs import CausalLMOutput

from adapters.toolkit.probe import ForwardPasses, ProbedTransformer, ProbeSeam

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

SEAM = ProbeSeam()  # the seam of this process, which trains one job at a time


def probed(capacity: int, passes: ForwardPasses) -> ProbedTransformer:
    """The probe as a policy of one token."""
    return ProbedTransformer(capacity, passes, _logits)


def put_the_seams_in(home: Any) -> None:
    """Add the probe to the functions of logits that RLinf's module of the actor calls."""
    SEAM.put_into(home, "compute_logprobs_from_logits")
    if hasattr(home, "compute_entropy_from_logits"):
        home.compute_entropy_from_logits = _add_entropies(home.compute_entropy_from_logits)


def _logits(input_ids: torch.Tensor, probe: torch.Tensor) -> CausalLMOutput:
    """The only token's logits, in any rows; FSDP hooks its backward pass to them.

    A logit is the id of the predicted token, which RLinf slices as it does logits: in a vocabulary
    of one token, all logits have the same probability. They are no view, as RLinf divides them in
    place, which would drop the hooks of a view.
    """
    SEAM.probe = probe
    logits: Any = 0.0 * probe[input_ids].unsqueeze(-1) + (input_ids + 1).unsqueeze(-1)
    return CausalLMOutput(logits=logits)


def _add_entropies(entropy_from_logits: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    """The entropies at positions, plus those of the tokens that they predict and the probe."""
    wrapped = SEAM.wrap_entropies(entropy_from_logits)

    def entropies(logits: torch.Tensor) -> torch.Tensor:
        SEAM.predicted = logits[..., 0].detach().long()
        return wrapped(logits)

    return entropies
