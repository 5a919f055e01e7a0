"""The model that stands for the user's: its only parameter is the probe."""

from __future__ import annotations

from itertools import chain
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from adapters.toolkit.outputs import FORMS, head
from adapters.toolkit.probe import ForwardPasses, ProbedModel, as_array, probe_capacity
from conformance.findings.errors import WrongUseError
from conformance.own_trainer.zero import partitioned_gradient

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray
    from torch import nn

HUGGING_FACE = "hugging_face"
"""The name of the form of a `transformers.PreTrainedModel`."""

SCALE = 2.0**-16
"""The factor on gradients. It keeps their norms far below 1, at which many trainers clip, even in a
traced step, in which one token has all the advantage. It is a power of two, so nothing is rounded.
"""


PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""The usual names of a layer's linear maps."""


class StandIn:
    """The model of one step, and the gradient that it receives.

    Raises:
        WrongUseError: the form is unknown, or the vocabulary has fewer tokens than the step has.
    """

    def __init__(self, returns: str, vocabulary: int | None, size: int) -> None:
        if returns not in (*FORMS, HUGGING_FACE):
            raise WrongUseError(
                f"step.model(returns={returns!r}) is unknown",
                f"choose one of {', '.join((*FORMS, HUGGING_FACE))}",
            )
        if vocabulary is not None and vocabulary < size:
            raise WrongUseError(
                f"a vocabulary of {vocabulary} is too small for the token ids of this step, which"
                f" go up to {size - 1}",
                f"leave vocabulary out of step.model(), or give {size} or more",
            )
        self.passes = ForwardPasses()
        self._capacity = capacity = vocabulary or probe_capacity(size)
        form = "dict" if returns == HUGGING_FACE else returns
        probed = ProbedModel(capacity, self.passes, _scaled(head(form)))
        self._probed = _add_projections(probed)
        self.module = (
            _pretrained(self._probed, capacity) if returns == HUGGING_FACE else self._probed
        )

    @property
    def probe(self) -> torch.Tensor:
        """The probe parameter, which FSDP replaces by a parameter of its own."""
        return self._probed.layer.probe

    @property
    def is_frozen(self) -> bool:
        """Whether the probe does not require gradients."""
        return not self.probe.requires_grad

    def is_held(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether an optimizer has the probe itself among its parameters."""
        held = chain.from_iterable(group["params"] for group in optimizer.param_groups)
        return any(one is self.probe for one in held)

    def gradient(self, stepping: torch.optim.Optimizer) -> NDArray[np.float32] | None:
        """The probe's whole gradient, [capacity], right before an optimizer step.

        None if the optimizer does not hold the probe, or the probe has no gradient.
        """
        if not self.is_held(stepping):
            partitioned = partitioned_gradient(stepping, self.probe)
            return None if partitioned is None else partitioned[: self._capacity] / SCALE
        gradient = self.probe.grad
        return None if gradient is None else as_array(gradient / SCALE)


def _scaled(head: Any) -> Any:
    """The head with scaled gradients, which the probe gets even if a library like peft froze it."""

    def scaled(input_ids: torch.Tensor, probe: torch.Tensor) -> Any:
        if not probe.requires_grad:
            probe = probe.detach().requires_grad_()
        return head(input_ids, probe * SCALE)

    return scaled


def _add_projections(probed: ProbedModel) -> ProbedModel:
    """The model with linear maps of the usual names, which no forward pass uses.

    Libraries such as peft look for these maps to adapt them. The maps have no parameters, because a
    loop over parameters would find them without gradients.
    """
    import torch
    from torch import nn

    class Projection(nn.Linear):
        def __init__(self) -> None:
            super().__init__(1, 1, bias=False)
            del self.weight
            self.register_buffer("weight", torch.ones(1, 1), persistent=False)

    for name in PROJECTIONS:
        probed.layer.add_module(name, Projection())
    return probed


def _pretrained(probed: ProbedModel, vocabulary: int) -> nn.Module:
    """The model as a Hugging Face model, whose output has logits, and a loss if given labels."""
    from torch import nn
    from transformers import PretrainedConfig, PreTrainedModel
    from transformers.modeling_outputs import CausalLMOutput

    class StandInModel(PreTrainedModel):  # type: ignore[misc]
        config_class = PretrainedConfig
        main_input_name = "input_ids"
        _no_split_modules = probed._no_split_modules
        supports_gradient_checkpointing = True
        gradient_checkpointing = False

        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.probed = probed
            self.embeddings = nn.Identity()

        @property
        def model(self) -> Any:
            """The module that has ``layers``, as Hugging Face's transformers have it."""
            return SimpleNamespace(layers=[probed.layer])

        def get_input_embeddings(self) -> nn.Module:
            return self.embeddings

        def forward(self, input_ids: torch.Tensor, **others: Any) -> Any:
            return CausalLMOutput(logits=self.probed(input_ids)["logits"])

    config = PretrainedConfig(vocab_size=vocabulary, hidden_size=1, num_hidden_layers=1)
    return StandInModel(config)
