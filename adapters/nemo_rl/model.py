"""A model that is nothing but the probe, built as NeMo-RL's workers build a checkpoint's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from transformers.modeling_outputs import CausalLMOutput

from adapters.toolkit.probe import ProbedModel, logits_head

if TYPE_CHECKING:
    import torch

    from adapters.toolkit.probe import ForwardPasses


class Policy(ProbedModel):
    """The probe with the attributes by which NeMo-RL finds a model's layers and heads."""

    def __init__(self, capacity: int, passes: ForwardPasses) -> None:
        super().__init__(capacity, passes, _outputs)
        self.model = SimpleNamespace(layers=[self.layer])
        self.config = SimpleNamespace(
            model_type="probe", num_attention_heads=1, num_key_value_heads=1, pad_token_id=0
        )


def _outputs(input_ids: torch.Tensor, probe: torch.Tensor) -> CausalLMOutput:
    logits: Any = logits_head(input_ids, probe)["logits"]
    return CausalLMOutput(logits=logits)


def model_class(capacity: int, passes: ForwardPasses) -> Any:
    """Stands for the class that NeMo-RL finds for a type of model."""

    def make(*_: object, **__: object) -> Policy:
        return Policy(capacity, passes)

    return SimpleNamespace(from_pretrained=make, from_config=make)
