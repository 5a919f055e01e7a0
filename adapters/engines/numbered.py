"""A model with a vocabulary of one token, whose logits are the numbers of the tokens they predict.

For frameworks that slice logits themselves before they compute entropies: the slice tells which
tokens it belongs to. In a vocabulary of one token all logits have the same probability.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transformers.modeling_outputs import CausalLMOutput

from adapters.toolkit.probe import ForwardPasses, ProbedTransformer, ProbeSeam

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch


class NumberedSeam(ProbeSeam):
    """A seam that reads the tokens of entropies off the logits."""

    def wrap_entropies(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A framework's function of logits, [..., 1], with the entropies of their tokens added."""

        def noted(logits: torch.Tensor, *rest: Any, **options: Any) -> Any:
            self.predicted = logits[..., 0].detach().long()
            return function(logits, *rest, **options)

        return super().wrap_entropies(noted)


SEAM = NumberedSeam()  # the seam of this process, which trains one job at a time


def policy(capacity: int, passes: ForwardPasses) -> ProbedTransformer:
    """The probe as a policy of one token."""
    return ProbedTransformer(capacity, passes, outputs)


def outputs(input_ids: torch.Tensor, probe: torch.Tensor) -> CausalLMOutput:
    """The logits, [*input_ids, 1], in any rows; FSDP hooks its backward pass to them.

    They are no view, as some frameworks divide them in place, which would drop the hooks of a view.
    """
    SEAM.probe = probe
    logits: Any = 0.0 * probe[input_ids].unsqueeze(-1) + (input_ids + 1).unsqueeze(-1)
    return CausalLMOutput(logits=logits)
