"""A Hugging Face model that consists of the probe, and a tokenizer whose words are token ids.

It is for trainers that compute log-probabilities from logits by functions that `SEAM` wraps, and
that take the old policy's log-probabilities from the model itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from transformers import GenerationConfig, GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from adapters.contract.batch.sequences import PADDING_ID
from adapters.toolkit.probe import SEAM, ForwardPasses, ProbeLayer, token_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from adapters.contract.batch.probed_batch import ProbedBatch

LONGEST = 4096
"""The model's maximum sequence length in tokens, more than any case needs."""


class ProbeConfig(PretrainedConfig):
    """The probe's capacity, and the shape of a transformer, which trainers read."""

    model_type = "probe"
    num_attention_heads = num_key_value_heads = 4  # so that ranks of Ulysses can split the heads
    hidden_size = num_hidden_layers = vocab_size = capacity = 1
    max_position_embeddings = LONGEST


class PretrainedProbe(PreTrainedModel, GenerationMixin):
    """A policy with a vocabulary of one token; `SEAM` adds the probe to its log-probabilities.

    ``given`` has the policy's log-probabilities, by token id, for forward passes without a
    gradient.
    """

    config_class = ProbeConfig
    _no_split_modules = [ProbeLayer.__name__]  # noqa: RUF012 - as in transformers

    def __init__(self, config: ProbeConfig) -> None:
        super().__init__(config)
        self.layer = ProbeLayer(config.capacity)
        self.passes = ForwardPasses()
        self.given = torch.zeros(config.capacity)
        self.generation_config = GenerationConfig(pad_token_id=PADDING_ID)
        self.post_init()

    def _init_weights(self, module: torch.nn.Module) -> None:
        """Leave the probe at 0."""

    def get_input_embeddings(self) -> None:  # Accelerate calls this method
        """None, because Accelerate would shard input embeddings separately."""

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        logits_to_keep: int = 0,
        inputs_embeds: None = None,
    ) -> CausalLMOutput:
        """Logits of the last ``logits_to_keep`` positions; of all positions if it is 0.

        A trainer that sets ``logits_to_keep`` drops the logits of the last position, which predicts
        no token of the row.
        """
        self.passes.note(input_ids)
        probe, predicted = self.layer(), input_ids[:, -logits_to_keep:] + 1
        logits = logits_of(predicted, probe, self.given)
        SEAM.predicted = predicted[:, :-1] if logits_to_keep else predicted
        return CausalLMOutput(logits=logits)


def logits_of(predicted: torch.Tensor, probe: torch.Tensor, given: torch.Tensor) -> Any:
    """The logits of the vocabulary's only token, all 0: [*predicted, 1].

    `SEAM` then adds the probe or, in a forward pass without a gradient, a copy of ``given``.
    """
    SEAM.probe = probe if torch.is_grad_enabled() else given.clone()
    SEAM.predicted = predicted
    return 0.0 * probe[predicted % len(probe)].unsqueeze(-1)


def table(batch: ProbedBatch, values: Sequence[NDArray[Any]], capacity: int) -> torch.Tensor:
    """Values of response tokens by token id, 0 for other ids: float32, [capacity]."""
    of_tokens = token_table(batch, values)
    return torch.nn.functional.pad(of_tokens, (0, capacity - len(of_tokens)))


def policy(batch: ProbedBatch, log_probs: Sequence[NDArray[Any]], capacity: int) -> PretrainedProbe:
    """A policy with the given log-probabilities in forward passes without a gradient."""
    model = PretrainedProbe(ProbeConfig(capacity=capacity))
    model.given = table(batch, log_probs, capacity)
    return model


def tokenizer(words: dict[str, int], end: str = "<pad>") -> Any:
    """A tokenizer of words with these ids; other ids are decoded to nothing."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(WordLevel({"<pad>": PADDING_ID, **words}, unk_token="<pad>"))
    made.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", eos_token=end)
