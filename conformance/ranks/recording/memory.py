"""The last writers of tensors: for each part of a storage, the operation that last wrote to it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator


class Part(NamedTuple):
    """A range of bytes of a storage, from ``start`` up to but not including ``end``."""

    storage: int
    start: int
    end: int
    entries: int

    def overlaps(self, other: Part) -> bool:
        """Whether two parts have bytes in common."""
        return self.start < other.end and other.start < self.end

    def covers(self, other: Part) -> bool:
        """Whether this part contains all bytes of the other part."""
        return self.start <= other.start and other.end <= self.end


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor without the wrappers of `torch.func`."""
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor


@cache
def wraps_others(kind: type) -> bool:
    """Whether a tensor class wraps other tensors and operates on them, as DTensor does."""
    own = getattr(kind, "__torch_dispatch__", None)
    return own is not torch._C._disabled_torch_dispatch_impl and kind is not torch.Tensor


def part(tensor: torch.Tensor) -> Part | None:
    """The part of its storage that a tensor covers; None if it is empty or its storage is freed."""
    if wraps_others(type(tensor)) or tensor.device.type == "meta":
        return None
    if tensor.layout is not torch.strided or not tensor.numel():
        return None
    storage = tensor.untyped_storage()
    extent = tensor.numel()
    if not tensor.is_contiguous():
        pairs = zip(tensor.shape, tensor.stride(), strict=True)
        extent = 1 + sum((length - 1) * stride for length, stride in pairs)
    start, size = int(tensor.storage_offset()), tensor.element_size()
    if (start + extent) * size > storage.nbytes():
        return None
    return Part(storage._cdata, start * size, (start + extent) * size, tensor.numel())


@dataclass
class Memory:
    """The operations that last wrote to each part of each storage."""

    _writers: dict[int, list[tuple[Part, int]]] = field(default_factory=lambda: defaultdict(list))
    _kept: dict[int, torch.UntypedStorage] = field(default_factory=dict)
    """Known storages, kept alive so that no new storage gets the address of a known one."""

    def write(self, tensor: torch.Tensor, written: Part, writer: int) -> None:
        """Remember the writer of a part, and forget parts that are wholly overwritten."""
        self._kept[written.storage] = tensor.untyped_storage()
        before = self._writers[written.storage]
        left = [(one, earlier) for one, earlier in before if not written.covers(one)]
        self._writers[written.storage] = [*left, (written, writer)]

    def writers(self, read: Part) -> Iterator[tuple[Part, int]]:
        """Yield the written parts that make up ``read``, with their writers, the latest first."""
        for written, writer in reversed(self._writers.get(read.storage, [])):
            if written.overlaps(read):
                yield written, writer
                if written.covers(read):
                    return
