"""The model that stands for the user's: its only parameter is the probe."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from adapters.toolkit.outputs import FORMS, head
from adapters.toolkit.probe import ForwardPasses, ProbedModel, as_array, probe_capacity
from conformance.findings.errors import WrongUseError

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray
    from torch import nn

HUGGING_FACE = "hugging_face"
"""The form that is a `transformers.PreTrainedModel`."""

SCALE = 2.0**-16
"""What gradients are multiplied by: trainers clip norms at 1 or so, and even that of a painted
token stays far below. It is a power of two, so that nothing is rounded."""


class StandIn:
    """The model of one step, and what it shows of the step.

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
        capacity = vocabulary or probe_capacity(size)
        form = "dict" if returns == HUGGING_FACE else returns
        self._probed = ProbedModel(capacity, self.passes, _scaled(head(form)))
        self.module = (
            _pretrained(self._probed, capacity) if returns == HUGGING_FACE else self._probed
        )

    @property
    def probe(self) -> torch.Tensor:
        """The parameter, which FSDP replaces by one of its own."""
        return self._probed.layer.probe

    def gradient(self) -> NDArray[np.float32] | None:
        """The whole of the probe's gradient, [capacity]; None if it has none."""
        gradient = self.probe.grad
        return None if gradient is None else as_array(gradient / SCALE)


def _scaled(head: Any) -> Any:
    return lambda input_ids, probe: head(input_ids, probe * SCALE)


def _pretrained(probed: ProbedModel, vocabulary: int) -> nn.Module:
    """The model as a Hugging Face one, whose output has logits, and a loss if it gets labels."""
    from transformers import PretrainedConfig, PreTrainedModel
    from transformers.modeling_outputs import CausalLMOutput

    class StandInModel(PreTrainedModel):  # type: ignore[misc]
        config_class = PretrainedConfig
        main_input_name = "input_ids"
        _no_split_modules = probed._no_split_modules

        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.probed = probed

        def forward(self, input_ids: torch.Tensor, **others: Any) -> Any:
            return CausalLMOutput(logits=self.probed(input_ids)["logits"])

    config = PretrainedConfig(vocab_size=vocabulary, hidden_size=1, num_hidden_layers=1)
    return StandInModel(config)
