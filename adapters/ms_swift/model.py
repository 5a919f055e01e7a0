"""A Hugging Face model that consists of the probe, and a template of ms-swift's own class for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from transformers import GenerationConfig, GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from adapters.contract.batch.sequences import PADDING_ID
from adapters.contract.batch.token_values import ENTROPIES
from adapters.ms_swift.framework import LONGEST
from adapters.toolkit.imports import found
from adapters.toolkit.probe import ForwardPasses, ProbeLayer, by_token_id, cycled, logits_head

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from adapters.contract.batch.probed_batch import ProbedBatch

TYPE = "probe"
"""The type of model and template."""


class ProbeConfig(PretrainedConfig):
    """The shape of a transformer, which trainers read, and the size of the probe."""

    model_type = TYPE
    num_attention_heads = num_key_value_heads = 4  # which ranks of Ulysses share
    hidden_size = num_hidden_layers = vocab_size = 1
    max_position_embeddings = LONGEST


class ProbeForSwift(PreTrainedModel, GenerationMixin):
    """A policy whose logits are those of `logits_head`.

    ``given`` are the log-probabilities, by token id, that it returns when it is not trained.
    """

    config_class = ProbeConfig
    _no_split_modules = [ProbeLayer.__name__]  # noqa: RUF012 - as in transformers

    def __init__(self, config: ProbeConfig) -> None:
        super().__init__(config)
        self.layer = ProbeLayer(config.vocab_size)
        self.passes = ForwardPasses()
        self.given = torch.zeros(config.vocab_size)
        self.post_init()

    def _init_weights(self, module: torch.nn.Module) -> None:
        """Leave the probe at 0."""

    def get_input_embeddings(self) -> None:  # Accelerate calls it
        """None, because Accelerate would shard them separately."""

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        logits_to_keep: int = 0,
        inputs_embeds: None = None,
    ) -> CausalLMOutput:
        """Logits of the last ``logits_to_keep`` positions, of all if it is 0."""
        global _predicted
        self.passes.note(input_ids)
        _predicted = input_ids[:, -logits_to_keep:] + 1
        probe = self.layer()
        values = probe if torch.is_grad_enabled() else self.given
        logits = cast("torch.FloatTensor", logits_head(input_ids, values)["logits"])
        return CausalLMOutput(logits=logits[:, -logits_to_keep:])


_predicted = torch.zeros(0)
"""The ids that the latest forward pass predicts."""


def with_entropies(entropy: Callable[..., Any]) -> Callable[..., Any]:
    """The entropies of logits of the first positions, by the ids that they predict."""

    def entropies(logits: torch.Tensor) -> Any:
        real = entropy(logits)
        predicted = _predicted[:, : real.shape[-1]]
        return real + cycled(ENTROPIES, predicted).reshape(real.shape)

    return entropies


def tokenizer(capacity: int) -> Any:
    """A tokenizer whose words are the token ids."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import PreTrainedTokenizerFast

    words = {"<pad>": PADDING_ID, **{str(number): number for number in range(1, capacity)}}
    made = Tokenizer(WordLevel(words, unk_token="<pad>"))
    made.pre_tokenizer = WhitespaceSplit()  # type: ignore[assignment]
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", eos_token="<pad>")


def template(capacity: int, folder: str, **options: Any) -> Any:
    """ms-swift's own template, of a type that adds nothing to the text."""
    registered = found("swift.template:TemplateMeta")(
        TYPE, prefix=[], prompt=["{{QUERY}} "], chat_sep=[], suffix=[]
    )
    found("swift.template:register_template")(registered, exist_ok=True)
    processor = tokenizer(capacity)
    processor.model_meta = found("swift.model:ModelMeta")(TYPE, [], template=TYPE)
    processor.model_info = found("swift.model.model_meta:ModelInfo")(
        TYPE,
        folder,
        torch.float32,
        LONGEST,
        None,
        None,
        task_type="causal_lm",
        config=ProbeConfig(),
    )
    made = found("swift.template:get_template")(processor, template_type=TYPE, **options)
    made.set_mode("train")
    return made


def policy(
    batch: ProbedBatch, log_probs: list[NDArray[Any]], capacity: int, of_template: Any
) -> ProbeForSwift:
    """A policy that returns log-probabilities where it is not trained."""
    model = ProbeForSwift(ProbeConfig(vocab_size=capacity))
    given = by_token_id(batch, log_probs)
    model.given[: len(given)] = given
    processor = of_template.processor
    model.model_meta, model.model_info = processor.model_meta, processor.model_info
    model.model_dir = processor.model_info.model_dir
    model.generation_config = GenerationConfig(pad_token_id=PADDING_ID)
    return model
