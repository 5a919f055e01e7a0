"""Autograd functions, a tensor class, a function mode, and a backward pass in another thread."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode

if TYPE_CHECKING:
    from collections.abc import Callable


class Tagged(torch.Tensor):
    """A subclass of tensors that changes nothing."""


class TakenByName(TorchFunctionMode):
    """Looks methods up by name when they are called, as modes do in torch before 2.13."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        taken = torch.Tensor.tolist if name == "tolist" else func
        return taken(*args, **(kwargs or {}))


class Within(torch.autograd.Function):
    """The identity, whose backward pass calls a function with another backward pass."""

    @staticmethod
    def forward(ctx: Any, leaf: torch.Tensor, begin: Callable[[], None]) -> torch.Tensor:
        ctx.begin = begin
        return leaf.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        ctx.begin()
        return gradients[0], None


def backward_in_another_thread(loss: torch.Tensor, passes: int = 61) -> None:
    """Begin a backward pass that torch runs in another thread, as it runs those on GPUs.

    On the CPU, torch does so for a pass within 60 other backward passes.
    """
    if not passes:
        loss.backward()
        return
    leaf = torch.zeros((), requires_grad=True)
    with torch.enable_grad():
        outer = Within.apply(leaf, lambda: backward_in_another_thread(loss, passes - 1))
    outer.backward()


class Tripled(torch.autograd.Function):
    """The identity, with a gradient that is three times as large."""

    @staticmethod
    def forward(ctx: Any, loss: torch.Tensor) -> torch.Tensor:
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0] * 3


class InChunks(torch.autograd.Function):
    """A mean of losses whose gradient is computed row by row, in the forward pass."""

    @staticmethod
    def forward(
        ctx: Any, log_probs: torch.Tensor, advantages: torch.Tensor, count: torch.Tensor
    ) -> torch.Tensor:
        total, gradients = torch.zeros(()), []
        for row, advantage in zip(log_probs.detach(), advantages, strict=True):
            with torch.enable_grad():
                given = row.clone().requires_grad_()
                loss = -(advantage * torch.exp(given - given.detach())).sum() / count
                gradients += torch.autograd.grad(loss, given)
            total += loss.detach()
        ctx.save_for_backward(torch.stack(gradients))
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        [saved] = ctx.saved_tensors
        return saved * gradients[0], None, None
