"""A Hugging Face model that is nothing but the probe, and the seam in TRL's fused LM head.

TRL loads it as a reference policy by the `checkpoint` folder next to this module.
"""

from __future__ import annotations

import types
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    GenerationMixin,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.modeling_outputs import BaseModelOutput

from adapters.contract.probed_batch import ENTROPIES
from adapters.toolkit.probe import ForwardPasses, ProbeLayer, cycled

if TYPE_CHECKING:
    from collections.abc import Callable

    Added = Callable[[torch.Tensor], torch.Tensor]
    """What is added to the log-probabilities of tokens, in their shape."""

CHECKPOINT = Path(__file__).parent / "checkpoint"
IGNORED = -100
"""The label of a position that is not scored."""


class ProbeConfig(PretrainedConfig):
    """The shape of a transformer, which trainers ask for, and the size of the probe."""

    model_type = "trl_probe"
    num_attention_heads = num_key_value_heads = hidden_size = num_hidden_layers = vocab_size = 1
    capacity = 1


class Backbone(nn.Module):
    """Hidden states of 0 at all positions."""

    def forward(self, input_ids: torch.Tensor, **_: Any) -> BaseModelOutput:
        """Hidden states: [*input_ids, 1]."""
        states = torch.zeros(*input_ids.shape, 1, device=input_ids.device)
        return BaseModelOutput(last_hidden_state=states)  # type: ignore[arg-type]


class ProbeForTRL(PreTrainedModel, GenerationMixin):
    """A policy with a vocabulary of one token, hence log-probabilities and entropies of 0."""

    config_class = ProbeConfig
    base_model_prefix = "model"
    _no_split_modules = [ProbeLayer.__name__]  # noqa: RUF012 - as transformers has it

    def __init__(self, config: ProbeConfig) -> None:
        super().__init__(config)
        self.model = Backbone()
        self.layer = ProbeLayer(config.capacity)
        self.lm_head = nn.Linear(1, 1, bias=False).requires_grad_(requires_grad=False)
        self.post_init()

    @classmethod
    def from_pretrained(cls, *_: Any, **__: Any) -> ProbeForTRL:  # type: ignore[override]
        """A model whose probe has no entries, for a policy that is not trained."""
        return cls(ProbeConfig())

    def _init_weights(self, module: nn.Module) -> None:
        """Leave the probe at 0."""

    def get_output_embeddings(self) -> nn.Module:
        """The LM head, which TRL multiplies hidden states by."""
        return self.lm_head

    def forward(self, input_ids: torch.Tensor, **_: Any) -> Any:
        """Nothing: TRL calls the fused LM head in its place, and rollouts are given."""
        raise NotImplementedError


def register() -> None:
    """Let transformers' automatic classes find the model."""
    AutoConfig.register(ProbeConfig.model_type, ProbeConfig)
    AutoModelForCausalLM.register(ProbeConfig, ProbeForTRL)


def policy(capacity: int, eos_ids: list[int]) -> ProbeForTRL:
    """The policy to train, for which some token ids end a completion."""
    model = ProbeForTRL(ProbeConfig(capacity=capacity, name_or_path=str(CHECKPOINT)))
    model.generation_config.eos_token_id = eos_ids  # type: ignore[union-attr]
    return model


def put_probe_in(model: ProbeForTRL, old: Added, passes: ForwardPasses) -> None:
    """Let the policy answer with the probe where it is trained, else as the old policy."""

    def added(tokens: torch.Tensor) -> torch.Tensor:
        return model.layer()[tokens] if torch.is_grad_enabled() else old(tokens)

    _add(model, added, passes)


def put_reference_in(model: ProbeForTRL, reference: Added) -> None:
    """Let a model answer as the reference policy."""
    _add(model, reference, ForwardPasses())


def _add(model: ProbeForTRL, added: Added, passes: ForwardPasses) -> None:
    """Add to what TRL's fused LM head makes of the model: log-probabilities, and entropies."""
    fused = model.forward

    def forward(
        self: ProbeForTRL, input_ids: torch.Tensor, *, labels: torch.Tensor, **options: Any
    ) -> Any:
        passes.note(input_ids)
        output = fused(input_ids=input_ids, labels=labels.clamp(max=0), **options)
        predicted = labels[:, 1:]
        tokens = predicted.clamp(min=0)
        values = added(tokens)
        zero = values.new_zeros(())
        scored = predicted != IGNORED
        output.log_probs = output.log_probs + torch.where(scored, values, zero)
        if output.entropy is not None:
            entropies = cycled(ENTROPIES, tokens) + values
            output.entropy = output.entropy + torch.where(scored, entropies, zero)
        return output

    model.forward = types.MethodType(forward, model)  # type: ignore[method-assign]
