"""A model that is nothing but the probe, built as NeMo-RL's workers build a checkpoint's."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from transformers.modeling_outputs import CausalLMOutput

from adapters.toolkit.probe import ProbedTransformer, logits_head

if TYPE_CHECKING:
    import torch

    from adapters.toolkit.probe import ForwardPasses


CONFIG: dict[str, object] = {
    "model_type": "probe",
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "pad_token_id": 0,
}
"""What NeMo-RL asks of a model's configuration."""


def _outputs(input_ids: torch.Tensor, probe: torch.Tensor) -> CausalLMOutput:
    logits: Any = logits_head(input_ids, probe)["logits"]
    return CausalLMOutput(logits=logits)


def model_class(capacity: int, passes: ForwardPasses) -> Any:
    """Stands for the class that NeMo-RL finds for a type of model.

    The second worker has its model sharded while it is loaded, by Automodel.
    """

    def from_config(*_: object, **__: object) -> ProbedTransformer:
        return ProbedTransformer(capacity, passes, _outputs, SimpleNamespace(**CONFIG))

    def from_pretrained(
        *_: object, device_mesh: Any = None, distributed_config: Any = None, **__: object
    ) -> ProbedTransformer:
        policy = from_config()
        if device_mesh is None:
            return policy
        fsdp2 = importlib.import_module("nemo_automodel.components.distributed.fsdp2")
        return fsdp2.FSDP2Manager(distributed_config, device_mesh).parallelize(policy)

    return SimpleNamespace(from_pretrained=from_pretrained, from_config=from_config)
