"""The output types in which models return logits, so that a probed model can replace any model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from adapters.toolkit.probe import logits_head

if TYPE_CHECKING:
    from collections.abc import Callable


class Output(NamedTuple):
    """An output with attribute ``logits``: a named tuple, in which FSDP2 finds tensors to hook."""

    logits: torch.Tensor


def log_probs_of(logits: torch.Tensor, input_ids: torch.Tensor) -> torch.Tensor:
    """The log-probability of each token except a row's first one, which no position predicts.

    From [*, T, vocabulary] and [*, T]; returns [*, T - 1].
    """
    log_probs = torch.log_softmax(logits[..., :-1, :], -1)
    return log_probs.gather(-1, input_ids[..., 1:].unsqueeze(-1)).squeeze(-1)


FORMS: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "logits": lambda logits, _: logits,
    "output": lambda logits, _: Output(logits),
    "tuple": lambda logits, _: (logits,),
    "dict": lambda logits, _: {"logits": logits},
    "log_probs": log_probs_of,
}
"""Functions that make each type of output from logits, [*, T, vocabulary], and input, [*, T]."""


def head(form: str) -> Callable[[torch.Tensor, torch.Tensor], Any]:
    """`logits_head` for a trainer whose model returns this output type of `FORMS`."""
    formed = FORMS[form]
    return lambda ids, probe: formed(logits_head(ids, probe)["logits"], ids)
