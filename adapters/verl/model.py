"""A Hugging Face model that consists of the probe, and wrappers of verl's functions of logits.

verl loads the model from the `checkpoint` folder next to this module; the configuration there names
the model's class.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForTokenClassification,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.modeling_outputs import CausalLMOutput, TokenClassifierOutput

from adapters.engines import fsdp1
from adapters.toolkit.imports import name_classes_as_before
from adapters.toolkit.probe import SEAM, ForwardPasses, ProbeLayer
from adapters.verl import cpu, importing
from adapters.verl.importing import module
from adapters.verl.trainers.default import register_given_advantages

if TYPE_CHECKING:
    from collections.abc import Callable

PASSES = {"actor": ForwardPasses(), "critic": ForwardPasses()}
ENGINE = "workers.engine.fsdp.transformer_impl"


class VerlProbeConfig(PretrainedConfig):
    """The shape of a transformer, which verl reads, and the size of the probe."""

    model_type = "probe"
    num_attention_heads = num_key_value_heads = hidden_size = intermediate_size = 4
    num_hidden_layers = vocab_size = 1
    rope_theta = 1.0  # read on Megatron, in versions before 0.9.1
    capacity = 1


class _ProbeModel(PreTrainedModel):
    """The probe in a model of transformers."""

    config_class = VerlProbeConfig
    _no_split_modules = [ProbeLayer.__name__]  # noqa: RUF012 - as in transformers
    _supports_flash_attn = _supports_sdpa = supports_gradient_checkpointing = True

    def __init__(self, config: VerlProbeConfig) -> None:
        super().__init__(config)
        self.layer = ProbeLayer(config.capacity)
        # Embeddings outside of any layer, as in a real model: verl's engine reshards embeddings by
        # name.
        self.embeddings = nn.Parameter(torch.zeros(config.hidden_size), requires_grad=False)
        self.post_init()

    @classmethod
    def from_pretrained(cls, *_: Any, config: VerlProbeConfig, **__: Any) -> _ProbeModel:
        """The model for a configuration, with a probe of 0."""
        return cls(config)

    def _init_weights(self, module: nn.Module) -> None:
        """Leave the probe at 0."""


class ProbeForCausalLM(_ProbeModel):
    """The probe, with logits of the only token."""

    def forward(self, input_ids: torch.Tensor, **_: Any) -> CausalLMOutput:
        """Logits of 0 for any number of rows, and the probe: FSDP hooks all outputs."""
        PASSES["actor"].note(input_ids)
        SEAM.probe, SEAM.predicted = self.layer(), input_ids + 1
        logits = SEAM.probe.new_zeros(*input_ids.shape, SEAM.VOCABULARY)
        return CausalLMOutput(logits=logits, hidden_states=(SEAM.probe,))


class ProbeForTokenClassification(_ProbeModel):
    """A critic that holds the probe: its values are the next tokens' entries."""

    def forward(self, input_ids: torch.Tensor, **_: Any) -> TokenClassifierOutput:
        """Values as logits of one class, for any number of rows."""
        PASSES["critic"].note(input_ids)
        values = self.layer()[input_ids + 1].unsqueeze(-1)
        return TokenClassifierOutput(logits=values)


def add_probe(log_probs_from_logits: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """The log-probabilities of tokens, plus the probe.

    They are returned as one row, because without flash-attn verl loops over rows, and each token of
    packed sequences would be a row.
    """

    def row_log_probs(logits: torch.Tensor, labels: torch.Tensor, **options: Any) -> torch.Tensor:
        return log_probs_from_logits(logits.unsqueeze(0), labels.unsqueeze(0), **options).squeeze(0)

    return SEAM.wrap_log_probs(row_log_probs)


@cache
def put_the_probe_in() -> None:
    """Prepare verl for all engines, once in a process."""
    on_cpu = not torch.cuda.is_available()
    if on_cpu:
        cpu.choose()
    name_classes_as_before()  # required by versions before 0.7.1
    AutoConfig.register("probe", VerlProbeConfig)
    AutoModelForCausalLM.register(VerlProbeConfig, ProbeForCausalLM)
    AutoModelForTokenClassification.register(VerlProbeConfig, ProbeForTokenClassification)
    engine, functional = module(ENGINE), module("utils.torch_functional")
    engine.logprobs_from_logits = add_probe(engine.logprobs_from_logits)
    functional.entropy_from_logits = SEAM.wrap_entropies(functional.entropy_from_logits)
    if on_cpu:
        cpu.register_engines(engine, "FSDP", "fsdp", "fsdp2")
        fsdp1.initialise_on_cpu()
    importing.pack_without_flash_attention()
    workers = module("workers.engine_workers")
    if hasattr(workers, "CheckpointEngineRegistry"):  # versions before 2026 lack this registry
        workers.CheckpointEngineRegistry.new = lambda *_, **__: None
    register_given_advantages()
