"""Replaces values within a framework's own computation, to see the effect on its result."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from adapters.contract.job import MARKS, Edit, FileVersions, Operand, mark
from conformance.ranks.recording.collectives import is_collective
from conformance.ranks.recording.editing import Editing
from conformance.ranks.recording.frames import Functions, is_asked_for
from conformance.ranks.recording.memory import part, plain, wraps_others
from conformance.ranks.recording.swapping import Swapping

if TYPE_CHECKING:
    from collections.abc import Callable

    from adapters.contract.job import CodeChange, Replacement


class Replacing(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Replaces the result or an operand of an operation at one line, in forward and backward.

    ``held`` has the original entries, once for each call of the operation.
    """

    def __init__(
        self, replaced: Replacement, rank: int, is_passed_by: Callable[[str], bool]
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.held: list[tuple[float, ...]] = []
        self._replaced = replaced
        self._rank = rank
        self._functions = Functions(is_passed_by)
        self._thread = threading.get_ident()
        self._forward: set[int] = set()
        """Autograd's sequence numbers of the operations with a replaced operand."""

        self._numbers: dict[float, float] = {}
        self._tensors: dict[int, tuple[torch.UntypedStorage, torch.Tensor]] = {}
        """The replacements of operands whose originals autograd keeps, by the originals' storages.
        """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation; at the replacement's line, replace its operand or its result."""
        kwargs = kwargs or {}
        if any(map(wraps_others, types)):
            # Fake tensors, with which DTensor plans how to shard, have no values to replace.
            return func(*args, **kwargs) if FakeTensor in types else NotImplemented
        if self._is_derivative():
            args, kwargs = tree_map(self._as_before, (args, kwargs))
        elif str(func) == self._replaced.operation and is_asked_for(
            self._replaced, self._functions, self._thread
        ):
            if self._replaced.operand is Operand.RESULT:
                return self._with_result(func, func(*args, **kwargs))
            if torch.is_grad_enabled() and any(map(_requires_grad, tree_leaves(args))):
                self._forward.add(torch._C._autograd._get_sequence_nr() - 1)
            args, kwargs = self._with_operand((args, kwargs))
        return func(*args, **kwargs)

    def _is_derivative(self) -> bool:
        """Whether a backward pass differentiates an operation whose operand was replaced."""
        if not self._forward or torch._C._current_graph_task_id() == -1:
            return False
        node = torch._C._current_autograd_node()
        return node is not None and node._sequence_nr() in self._forward

    def _with_result(self, func: Any, result: Any) -> Any:
        if is_collective(str(func)):
            *written, work = result
            work.wait()
            for tensor in map(plain, tree_leaves(written)):
                tensor.copy_(self._instead_of(tensor))
            return result
        if isinstance(result, torch.Tensor):
            other = self._instead_of(result)
            return other if func.is_view else result.copy_(other)
        return type(result)(self._instead((float(result),))[0])  # a number that Python reads

    def _with_operand(self, given: Any) -> Any:
        """The operands with one replaced; the replacement is remembered for the backward pass."""
        kind = torch.Tensor if self._replaced.operand is Operand.TENSOR else (int, float)
        left = self._replaced.position

        def replace(one: Any) -> Any:
            nonlocal left
            if not isinstance(one, kind) or isinstance(one, bool):
                return one
            left -= 1
            if left != -1:
                return one
            if not isinstance(one, torch.Tensor):
                self._numbers[one] = self._instead((float(one),))[0]
                return self._numbers[one]
            storage, other = plain(one).untyped_storage(), self._instead_of(one)
            self._tensors[storage._cdata] = storage, other
            return other

        return tree_map(replace, given)

    def _as_before(self, one: Any) -> Any:
        """The operand of a derivative, replaced as it was in the forward pass."""
        if isinstance(one, torch.Tensor):
            held = part(plain(one))
            kept = None if held is None else self._tensors.get(held.storage)
            is_same = kept is not None and kept[1].numel() == one.numel()
            return kept[1].reshape(one.shape) if kept is not None and is_same else one
        is_number = isinstance(one, (int, float)) and not isinstance(one, bool)
        return self._numbers.get(one, one) if is_number else one

    def _instead_of(self, tensor: torch.Tensor) -> torch.Tensor:
        is_marked = self._replaced.entries is None
        if tensor.numel() > MARKS or (is_marked and tensor.dtype is torch.bool):
            return tensor
        entries = self._instead(tuple(tensor.detach().reshape(-1).double().tolist()))
        other = torch.tensor(entries, dtype=torch.float64, device=tensor.device)
        is_exact = tensor.is_floating_point() or not (other % 1).any()
        dtype = tensor.dtype if is_exact else torch.get_default_dtype()
        return other.to(dtype).reshape(tensor.shape)

    def _instead(self, entries: tuple[float, ...]) -> tuple[float, ...]:
        """Remember the original entries, and return their replacements."""
        start, times = sum(map(len, self.held)), len(self.held)
        self.held.append(entries)
        if self._replaced.entries is None:
            marks = (mark(self._rank, start + index) for index in range(len(entries)))
            return tuple(
                one * each if one else each for one, each in zip(entries, marks, strict=True)
            )
        of_rank = self._replaced.entries[self._rank : self._rank + 1]
        others = of_rank[0][times : times + 1] if of_rank else ()
        return others[0] if others and len(others[0]) == len(entries) else entries


def _requires_grad(one: Any) -> bool:
    return isinstance(one, torch.Tensor) and one.requires_grad


def replacing_mode(
    replaced: Replacement | CodeChange, rank: int, is_passed_by: Callable[[str], bool]
) -> Replacing | Editing | Swapping:
    """The context in which a rank computes with a replaced value or with changed code."""
    if isinstance(replaced, Edit):
        return Editing(replaced)
    if isinstance(replaced, FileVersions):
        return Swapping(replaced)
    return Replacing(replaced, rank, is_passed_by)
