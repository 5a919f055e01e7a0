"""A Hugging Face model that consists of the probe, and the wrappers that add it to TRL's results.

TRL loads the model as a reference policy from the `checkpoint` folder next to this module.
"""

from __future__ import annotations

import types
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    GenerationMixin,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.modeling_outputs import BaseModelOutput, CausalLMOutput

from adapters.contract.batch.token_values import ENTROPIES, NO_LOG_PROBS
from adapters.toolkit.probe import CERTAIN_LOGIT, ForwardPasses, ProbeLayer, cycled, router_loss

if TYPE_CHECKING:
    from collections.abc import Callable

CHECKPOINT = Path(__file__).parent / "checkpoint"
SHIFTED, MASK = "shift_labels", "completion_mask"
IGNORED = -100
"""The label of a position that is not scored."""


class TrlProbeConfig(PretrainedConfig):
    """The shape of a transformer, which trainers read, and the size of the probe."""

    model_type = "trl_probe"
    num_attention_heads = num_key_value_heads = hidden_size = num_hidden_layers = vocab_size = 1
    intermediate_size = 1
    tie_word_embeddings = False
    capacity = 1


class Backbone(nn.Module):
    """Hidden states of 0 at all positions."""

    def forward(self, input_ids: torch.Tensor, **_: Any) -> BaseModelOutput:
        """Hidden states: [*input_ids, 1]."""
        states = torch.zeros(*input_ids.shape, 1, device=input_ids.device)
        return BaseModelOutput(last_hidden_state=states)


class HeadWithoutParameters(nn.Module):
    """An LM head for the only token, with a weight that no engine shards."""

    bias = None

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.zeros(1, 1), persistent=False)


class ProbeForTRL(PreTrainedModel, GenerationMixin):
    """A policy with a vocabulary of one token, hence log-probabilities and entropies of 0.

    ``given`` has the log-probabilities, by token id, for forward passes without a gradient; models
    other than the policy always return these. ``log_prob_table`` and ``entropy_table`` are the
    tables of `ProbedBatch`.
    """

    config_class = TrlProbeConfig
    base_model_prefix = "model"
    _no_split_modules = [ProbeLayer.__name__]  # noqa: RUF012 - as in transformers

    def __init__(self, config: TrlProbeConfig) -> None:
        super().__init__(config)
        self.model = Backbone()
        self.layer = ProbeLayer(config.capacity)
        self.lm_head = nn.Linear(1, 1, bias=False).requires_grad_(requires_grad=False)
        self.passes = ForwardPasses()
        self.is_policy = True
        self.given = self.probe = torch.zeros(config.capacity)
        self.log_prob_table, self.entropy_table = NO_LOG_PROBS, ENTROPIES
        self.predicted = torch.zeros(0, dtype=torch.int64)
        self.post_init()

    @classmethod
    def from_pretrained(cls, folder: str, **_: Any) -> ProbeForTRL:
        """A model of a checkpoint's size; no weights are read."""
        return cls(TrlProbeConfig.from_pretrained(folder))

    def _init_weights(self, module: nn.Module) -> None:
        """Leave the probe at 0."""

    def get_input_embeddings(self) -> None:  # Accelerate calls this method
        """None, because Accelerate would shard input embeddings separately."""

    def get_output_embeddings(self) -> nn.Module:
        """The LM head, which TRL multiplies hidden states by."""
        return self.lm_head

    def note(self, input_ids: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """Begin a forward pass that predicts ``ids``.

        Returns the probe, because FSDP attaches backward hooks to outputs.
        """
        global _speaking
        _speaking = self
        self.passes.note(input_ids)
        self.predicted = ids
        self.probe = self.layer()
        return self.probe

    def values(self) -> torch.Tensor:
        """The terms to add to the log-probabilities of the predicted ids, one for each id."""
        if not (self.is_policy and torch.is_grad_enabled()):
            return self.given[self.predicted]
        return self.probe[self.predicted] + cycled(self.log_prob_table, self.predicted)

    def entropies(self) -> torch.Tensor:
        """The terms to add to the entropies of the predicted ids, one for each id."""
        probe = self.probe if self.is_policy and torch.is_grad_enabled() else self.given
        return cycled(self.entropy_table, self.predicted) + probe[self.predicted]

    def forward(self, input_ids: torch.Tensor, **_: Any) -> CausalLMOutput:
        """Logits of the only token, for versions without a fused LM head."""
        logits = torch.zeros(*input_ids.shape, 1, device=input_ids.device)
        states = self.note(input_ids, predicted(input_ids))
        return CausalLMOutput(logits=logits, hidden_states=(states,))


def predicted(input_ids: torch.Tensor) -> torch.Tensor:
    """The ids of the tokens that rows predict, even where a row's last token is the end of text.

    A token's id is one more than that of the previous token: [rows, tokens - 1].
    """
    return input_ids[:, :-1] + 1


_speaking: ProbeForTRL | None = None
"""The model of the latest forward pass."""


def register() -> None:
    """Register the model with transformers, where TRL looks up its class."""
    AutoConfig.register(TrlProbeConfig.model_type, TrlProbeConfig)
    AutoModelForCausalLM.register(TrlProbeConfig, ProbeForTRL)
    vars(transformers)[ProbeForTRL.__name__] = ProbeForTRL


def policy(capacity: int, *, has_router: bool) -> ProbeForTRL:
    """The policy to train, which may return the loss of a router."""
    config = TrlProbeConfig()
    if has_router:
        config.output_router_logits = False  # until a trainer requests router logits
    config.capacity = capacity
    config._name_or_path = str(CHECKPOINT)
    return ProbeForTRL(config)


def save_policy(capacity: int, folder: str) -> None:
    """Save the policy for a trainer that accepts only a path."""
    config = TrlProbeConfig(architectures=[ProbeForTRL.__name__])
    config.capacity = capacity
    config.save_pretrained(folder)


def put_probe_in(model: ProbeForTRL) -> None:
    """Add the probe to the results of TRL's fused LM head: log-probabilities and entropies.

    Labels are the tokens at the positions or, if shifted, the tokens that the positions predict.
    Before 1.15 a mask says which positions are scored.
    """
    fused = model.forward

    def forward(self: ProbeForTRL, input_ids: torch.Tensor, **options: Any) -> Any:
        name = SHIFTED if SHIFTED in options else "labels"
        labels = options[name]
        ids, targets = (
            (input_ids + 1, labels) if name == SHIFTED else (predicted(input_ids), labels[:, 1:])
        )
        mask = options.get(MASK)
        scored = targets != IGNORED if mask is None else mask[:, 1:] != 0
        probe = self.note(input_ids, ids)
        asks_router = options.pop("output_router_logits", False)
        output: Any = fused(input_ids=input_ids, **{**options, name: labels.clamp(max=0)})
        if asks_router:
            output["aux_loss"] = router_loss(input_ids, probe)
        values = self.values()
        zero = values.new_zeros(())
        output["log_probs"] = output["log_probs"] + torch.where(scored, values, zero)
        if output.get("entropy") is not None:
            output["entropy"] = output["entropy"] + torch.where(scored, self.entropies(), zero)
        return output

    model.forward = types.MethodType(forward, model)  # type: ignore[method-assign]


def put_probe_in_liger_loss(trainer: Any) -> None:
    """Let the log-softmax of the trainer's fused loss return the probe minus `CERTAIN_LOGIT`.

    The loss gets logits of two words as hidden states, and the identity as LM head.
    """
    hidden_states, fused = trainer._get_last_hidden_state, trainer.liger_loss

    def noted(model: ProbeForTRL, input_ids: torch.Tensor, *others: Any) -> Any:
        model.note(input_ids, predicted(input_ids))
        return hidden_states(model, input_ids, *others)

    def loss(**given: Any) -> Any:
        tokens = given["selected_token_ids"]
        values = _last(ProbeForTRL.values, tokens)
        logits = torch.stack([torch.full_like(values, CERTAIN_LOGIT), values], dim=-1)
        lowered = {
            name: given[name] - CERTAIN_LOGIT
            for name in ("old_per_token_logps", "ref_per_token_logps")
            if given[name] is not None
        }
        head = {"lin_weight": torch.eye(2), "selected_token_ids": torch.ones_like(tokens)}
        return fused(**{**given, **lowered, **head, "_input": logits})

    trainer._get_last_hidden_state, trainer.liger_loss = noted, loss


def put_probe_in_chunks(trainer: Any) -> None:
    """Add the probe to log-probabilities that the trainer computes in chunks of the vocabulary."""
    chunked = trainer._chunked_logps

    def log_probs(model: ProbeForTRL, input_ids: torch.Tensor, *others: Any, **named: Any) -> Any:
        model.note(input_ids, predicted(input_ids))
        found, entropies, loss = chunked(model, input_ids.clamp(max=0), *others, **named)
        if entropies is not None:
            entropies = entropies + _last(ProbeForTRL.entropies, found)
        return found + _last(ProbeForTRL.values, found), entropies, loss

    trainer._chunked_logps = log_probs


def adding(
    function: Callable[..., Any], *added: Callable[[ProbeForTRL], torch.Tensor]
) -> Callable[..., Any]:
    """Wrap a function of logits, adding values of the latest forward pass to its results.

    The results are for rows' last tokens, in versions without a fused LM head.
    """

    def probed(logits: torch.Tensor, *arguments: Any, **named: Any) -> Any:
        # The ids of tokens become the id of the vocabulary's only token.
        ids = [one.clamp(max=0) if isinstance(one, torch.Tensor) else one for one in arguments]
        found = function(logits, *ids, **named)
        results = found if isinstance(found, tuple) else (found,)
        summed = [one + _last(of, logits) for one, of in zip(results, added, strict=True)]
        return tuple(summed) if isinstance(found, tuple) else summed[0]

    return probed


def _last(of: Callable[[ProbeForTRL], torch.Tensor], rows: torch.Tensor) -> torch.Tensor:
    """Values of the latest forward pass at its last positions, as many as ``rows`` is wide."""
    assert _speaking is not None
    return of(_speaking)[:, -rows.shape[1] :]


FUNCTIONS = {
    "selective_log_softmax": (ProbeForTRL.values,),
    "entropy_from_logits": (ProbeForTRL.entropies,),
    "selective_log_softmax_and_entropy": (ProbeForTRL.values, ProbeForTRL.entropies),
}
"""TRL's functions of logits, each with the functions of the values to add to its results."""
