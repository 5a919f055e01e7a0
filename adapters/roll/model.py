"""Models that are nothing but the probe, and the seams in ROLL's functions of logits."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from transformers.modeling_outputs import CausalLMOutput, TokenClassifierOutput

from adapters.toolkit.probe import ForwardPasses, ProbedModel, ProbeSeam

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

SEAM = ProbeSeam()  # the seam of this process, which trains one job at a time

CONFIG = SimpleNamespace(
    model_type="probe", num_attention_heads=4, num_key_value_heads=4, tie_word_embeddings=True
)
"""What ROLL asks of a model's configuration: heads that ranks of Ulysses can share."""


class Model(ProbedModel):
    """The probe with a configuration, and with its layer where ROLL looks for layers."""

    config = CONFIG

    @property
    def model(self) -> Any:
        """The part with the transformer's layers."""
        return SimpleNamespace(layers=[self.layer])


def policy(capacity: int, passes: ForwardPasses) -> Model:
    """The probe as a policy of one token."""
    return Model(capacity, passes, _logits)


def critic(capacity: int, passes: ForwardPasses) -> Model:
    """The probe as a critic, whose values are those of the next tokens."""
    return Model(capacity, passes, _values)


def with_probe(log_probs_from_logits: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """The log-probabilities of labels, plus the probe."""

    def log_probs(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        real = log_probs_from_logits(logits, labels % SEAM.VOCABULARY)
        return real + SEAM.log_probs(labels)

    return log_probs


def with_entropies(entropy_from_logits: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """The entropies at positions, plus those of the tokens that they predict and the probe."""

    def entropies(logits: torch.Tensor) -> torch.Tensor:
        assert SEAM.predicted is not None
        return entropy_from_logits(logits) + SEAM.entropies(SEAM.predicted, trained=True)

    return entropies


def _logits(input_ids: torch.Tensor, probe: torch.Tensor) -> CausalLMOutput:
    """The only token's logits of 0, in any rows; FSDP2 hooks its backward pass to them."""
    SEAM.probe, SEAM.predicted = probe, input_ids + 1
    logits: Any = 0.0 * probe[SEAM.predicted].unsqueeze(-1)
    return CausalLMOutput(logits=logits)


def _values(input_ids: torch.Tensor, probe: torch.Tensor) -> TokenClassifierOutput:
    """Values as logits of one class, in any rows."""
    values: Any = probe[input_ids + 1].unsqueeze(-1)
    return TokenClassifierOutput(logits=values)
