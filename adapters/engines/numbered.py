"""A model with a vocabulary of one token, whose logits are the predicted tokens' ids.

It is for frameworks that slice logits before they compute entropies: each logit in the slice still
says which token it predicts. With a vocabulary of one token, a logit's value does not change its
probability.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transformers.modeling_outputs import CausalLMOutput, TokenClassifierOutput

from adapters.toolkit.probe import ProbeSeam

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch


class NumberedSeam(ProbeSeam):
    """A `ProbeSeam` that reads the predicted tokens from the logits."""

    def wrap_entropies(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a framework's function of logits, [..., 1], adding predicted tokens' entropies."""

        def noted(logits: torch.Tensor, *rest: Any, **options: Any) -> Any:
            self.predicted = logits[..., 0].detach().long()
            return function(logits, *rest, **options)

        return super().wrap_entropies(noted)


SEAM = NumberedSeam()  # one for the whole process, which runs one job at a time


def values(input_ids: torch.Tensor, probe: torch.Tensor) -> TokenClassifierOutput:
    """A critic's values as logits of one class: the next tokens' entries, [*input_ids, 1]."""
    of_tokens: Any = probe[input_ids + 1].unsqueeze(-1)
    return TokenClassifierOutput(logits=of_tokens)


def outputs(input_ids: torch.Tensor, probe: torch.Tensor) -> CausalLMOutput:
    """The logits, [*input_ids, 1], for any number of rows, with the probe in the graph for FSDP.

    FSDP attaches backward hooks to the logits. Some frameworks divide logits in place, which would
    drop the hooks of a view, so the logits are not a view.
    """
    SEAM.probe = probe
    logits: Any = 0.0 * probe[input_ids].unsqueeze(-1) + (input_ids + 1).unsqueeze(-1)
    return CausalLMOutput(logits=logits)
