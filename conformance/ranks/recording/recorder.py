"""Records the operations of a traced job on one rank, with the contents of their results.

Only one token has an advantage, so each tensor on the way from its loss to its gradient has one
non-zero entry. The factors on this entry are computed later from the recorded operations.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from conformance.findings.trace import (
    BUILT,
    GIVEN,
    LIFTED,
    LISTED,
    MULTIPLYING,
    NOTHING,
    OUTSIDE,
    READ,
    SMALL,
    Contents,
    Operation,
    RankTrace,
)
from conformance.ranks.recording.collectives import Collectives, is_collective
from conformance.ranks.recording.frames import Functions, asked
from conformance.ranks.recording.memory import Memory, Part, part, plain, wraps_others
from conformance.ranks.recording.variables import look_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from conformance.findings.trace import KindsOfLines, Line
    from conformance.ranks.recording.frames import Asked

COPY = "aten.copy_.default"

TAKING = ("aten.slice", "aten.select", "aten.narrow", "aten.split")
"""Name prefixes of operations that view a part of a tensor."""

EMPTY = ("aten.empty", "aten.new_empty", "aten.zeros", "aten.new_zeros")
"""Name prefixes of operations whose results hold nothing yet."""

LARGE = 1 << 22
"""The size above which an empty tensor, such as a gradient bucket, is not read before its use."""

LISTING = ("tolist", "numpy")
"""Methods that return a tensor's entries to Python without a dispatched operation."""

build = torch.tensor
"""Torch's own ``torch.tensor``, which the recorder replaces while it records."""

listed = torch.Tensor.tolist
"""Torch's own ``Tensor.tolist``, with which the recorder itself reads entries."""


@dataclass
class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A context in which the operations that torch dispatches are recorded."""

    is_passed_by: Callable[[str], bool]
    _operations: list[Operation] = field(default_factory=list)
    _memory: Memory = field(default_factory=Memory)
    _collectives: Collectives = field(default_factory=Collectives)
    _pending: dict[int, torch.Tensor] = field(default_factory=dict)
    """The tensors that collectives may still write to, by the places of their operations."""

    _differentiated: dict[int, tuple[Line, ...]] = field(default_factory=dict)
    """The stacks of forward operations, by autograd's sequence numbers of their derivatives."""

    _views: dict[Part, tuple[Line, ...]] = field(default_factory=dict)
    """The lines that viewed parts of tensors, by part."""

    _cuts: dict[int, tuple[Line, ...]] = field(default_factory=dict)
    _roots: dict[int, int] = field(default_factory=dict)
    _gradients: list[int] = field(default_factory=list)
    _kinds: dict[tuple[str, int], KindsOfLines] = field(default_factory=lambda: defaultdict(dict))
    _looked_at: set[Line] = field(default_factory=set)
    """The lines at which the variables of their function have been noted."""

    def __post_init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._functions = Functions(self.is_passed_by)
        self._thread = threading.get_ident()

    def __enter__(self) -> Recorder:
        """Begin to record operations."""
        for name in LISTING:
            setattr(torch.Tensor, name, self._noting(getattr(torch.Tensor, name)))
        torch.tensor = self._building(build)
        return super().__enter__()  # type: ignore[no-any-return, no-untyped-call]

    def __exit__(self, *error: object) -> None:
        """Stop recording operations."""
        for name in LISTING:
            delattr(torch.Tensor, name)  # uncovers the method of the base class
        torch.tensor = build
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def _noting(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """A method of tensors that also records that Python reads the entries."""

        def noting(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            who = self._asked()
            if who.stack and not who.reads_gradient and not wraps_others(type(tensor)):
                with _unseen():
                    inputs = self._inputs([tensor], who)
                    draft = Operation(name=LISTED, stack=who.stack, contents=NOTHING, inputs=inputs)
                    self._operations.append(replace(draft, contents=_contents(tensor)))
            return method(tensor, *args, **kwargs)

        return noting

    def _building(self, method: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        """``torch.tensor``, which also records the tensors that it reads from a list."""

        def building(data: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
            made, parts = method(data, *args, **kwargs), _tensors(data)
            who = self._asked()
            if parts and data is not parts[0] and who.stack:
                with _unseen():
                    inputs = self._inputs(parts, who)
                    draft = Operation(name=BUILT, stack=who.stack, contents=NOTHING, inputs=inputs)
                    self._add(draft, made)
            return made

        return building

    def _asked(self) -> Asked:
        return asked(self._functions, self._thread)

    @property
    def trace(self) -> RankTrace:
        """Everything that was recorded."""
        for place in [*self._pending]:
            self._settle(place)
        return RankTrace(
            operations=tuple(self._operations),
            cuts=dict(self._cuts),
            roots=dict(self._roots),
            gradients=tuple(self._gradients),
            kinds=dict(self._kinds),
        )

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation and record its inputs and results."""
        kwargs = kwargs or {}
        if any(map(wraps_others, types)):
            return NotImplemented  # operations on the wrapped tensors are dispatched next
        who = self._asked()
        if str(func) == LIFTED:
            return self._lifted(func(*args, **kwargs), who)
        if func.is_view and not who.reads_gradient:
            return self._viewed(func, func(*args, **kwargs), self._stack(who))
        if self._completes_collective(func, args):
            return func(*args, **kwargs)
        self._look_at(who)
        operands = _tensors((args, kwargs))
        inputs = self._inputs(operands, who)
        self._note_ends(who, inputs)
        draft = Operation(
            name=str(func),
            stack=self._stack(who),
            contents=NOTHING,
            inputs=inputs,
            numbers=_numbers((args, kwargs)),
            variables=who.variables if str(func).startswith(MULTIPLYING) else (),
            backward_pass=_backward_pass(),
            requires_grad=torch.is_grad_enabled() and any(one.requires_grad for one in operands),
        )
        apart = [self._inputs(_tensors(one), who) for one in _each_of_several(func, args)]
        moved = self._collectives.moved(func, args) if is_collective(draft.name) else None
        read = () if moved is None else self._inputs(moved.read, who)
        result = func(*args, **kwargs)
        if moved is not None:
            draft = replace(draft, inputs=read, collective=moved.collective)
            self._add_later(draft, moved.written or _tensors(result) or moved.read)
            return result
        if draft.name == READ:
            self._operations.append(replace(draft, contents=_contents(torch.tensor(result))))
        if taken := [cut for one in map(part, operands) if one and (cut := self._views.get(one))]:
            self._cuts[len(self._operations)] = taken[0]
        for index, tensor in enumerate(_made(func, args, kwargs, result)):
            self._add(replace(draft, inputs=apart[index]) if apart else draft, tensor)
        return result

    def _lifted(self, made: torch.Tensor, who: Asked) -> torch.Tensor:
        """Record a tensor that was made of numbers, and return it."""
        draft = Operation(name=LIFTED, stack=who.stack, contents=NOTHING, variables=who.variables)
        self._add(draft, made)
        return made

    def _viewed(self, func: Any, result: Any, stack: tuple[Line, ...]) -> Any:
        """Note the lines that made a view, and return it; its contents are recorded when read."""
        taken = (part(plain(one)) for one in _tensors(result) if str(func).startswith(TAKING))
        self._views.update((one, stack) for one in taken if one is not None)
        return result

    def _look_at(self, who: Asked) -> None:
        """Note the variables of the functions on a stack, once for each line."""
        for line, frame in zip(who.stack, who.frames, strict=True):
            if line not in self._looked_at:
                self._looked_at.add(line)
                with _unseen():
                    look_at(frame, self._kinds[line.file, frame.f_code.co_firstlineno])

    def _completes_collective(self, func: Any, args: Any) -> bool:
        """Whether an operation is gloo's own copy of a collective's result to its destination."""
        if str(func) != COPY or not self._pending:
            return False
        target, source = map(part, args[:2])
        waiting = map(part, self._pending.values())
        return target in waiting and source is not None and not [*self._memory.writers(source)]

    def _add_later(self, draft: Operation, written: Iterable[torch.Tensor]) -> None:
        """Record a collective; its results may arrive later, and are recorded when first read."""
        for tensor in written:
            place = self._add(draft, tensor)
            if place is not None:
                self._pending[place] = tensor

    def _stack(self, who: Asked) -> tuple[Line, ...]:
        """The lines that called an operation, or called the operation that it differentiates."""
        if _backward_pass() is None:
            number = torch._C._autograd._get_sequence_nr()
            self._differentiated.setdefault(number - 1, who.stack)
            return who.stack
        node = torch._C._current_autograd_node()
        forward = () if node is None else self._differentiated.get(node._sequence_nr(), ())
        return who.inside or forward or who.stack

    def _note_ends(self, who: Asked, inputs: tuple[int, ...]) -> None:
        """Note the root of a backward pass, and the operations whose gradient the adapter reads."""
        backward_pass = _backward_pass()
        if backward_pass is not None and backward_pass not in self._roots:
            self._roots.update((backward_pass, one) for one in self._inputs(who.roots, who)[:1])
        if who.reads_gradient:
            self._gradients += inputs

    def _inputs(self, tensors: Iterable[torch.Tensor], who: Asked) -> tuple[int, ...]:
        found = [place for tensor in tensors for place in self._writers(plain(tensor), who)]
        return tuple(dict.fromkeys(found))

    def _writers(self, tensor: torch.Tensor, who: Asked) -> Iterator[int]:
        """Yield the places of the operations that wrote the contents of a tensor."""
        read = part(tensor)
        if read is None:
            return
        writers = [*self._memory.writers(read)]
        places = tuple(place for _, place in writers)
        for place in places:
            self._settle(place)
        whole = writers[:1] if writers and writers[0][0] == read else []
        left = [self._operations[place].contents for _, place in whole]
        if places and all(_is_same(one, _contents(tensor)) for one in left):
            yield from places
            return
        name = OUTSIDE if places else GIVEN
        draft = Operation(name=name, stack=who.stack, contents=NOTHING, inputs=places)
        added = self._add(draft, tensor)
        assert added is not None
        yield added

    def _settle(self, place: int) -> None:
        """Record the result of a pending collective, which is now read."""
        tensor = self._pending.pop(place, None)
        if tensor is not None and part(tensor) is not None:
            operation = self._operations[place]
            self._operations[place] = replace(operation, contents=_contents(tensor))

    def _add(self, draft: Operation, tensor: torch.Tensor) -> int | None:
        tensor = plain(tensor)
        written = part(tensor)
        if written is None:
            return None
        place = len(self._operations)
        is_empty = draft.name.startswith(EMPTY) and tensor.numel() > LARGE
        contents = replace(NOTHING, size=tensor.numel()) if is_empty else _contents(tensor)
        self._operations.append(replace(draft, contents=contents))
        self._memory.write(tensor, written, place)
        return place


@contextmanager
def _unseen() -> Iterator[None]:
    """A context for reading tensors without calling modes of torch, such as this recorder."""
    with _disable_current_modes(), torch._C.DisableTorchFunction():
        yield


def _backward_pass() -> int | None:
    """The number of the backward pass that is under way; None outside a backward pass."""
    number: int = torch._C._current_graph_task_id()
    return None if number == -1 else number


def _numbers(given: Any) -> tuple[float, ...]:
    return tuple(float(one) for one in tree_leaves(given) if type(one) in (int, float))


def _each_of_several(func: Any, args: Any) -> list[Any]:
    """The operands of each single operation of a ``_foreach_`` operation; empty for any other."""
    if not str(func).startswith("aten._foreach_"):
        return []
    lists = [one for one in args if isinstance(one, (list, tuple))]
    others = [one for one in args if not isinstance(one, (list, tuple))]
    return [[*each, *others] for each in zip(*lists, strict=True)]


def _made(func: Any, args: Any, kwargs: Any, result: Any) -> list[torch.Tensor]:
    """The tensors that an operation made or changed; a view is neither."""
    positional = zip(func._schema.arguments, args, strict=False)
    named = ((one, kwargs[one.name]) for one in func._schema.arguments if one.name in kwargs)
    changed = [
        tensor
        for argument, given in (*positional, *named)
        if argument.alias_info is not None and argument.alias_info.is_write
        for tensor in _tensors(given)
    ]
    if changed:
        return changed
    viewed = {held.storage for one in _tensors((args, kwargs)) if (held := part(one)) is not None}
    return [one for one in _tensors(result) if (held := part(one)) and held.storage not in viewed]


def _tensors(given: Any) -> list[torch.Tensor]:
    """The tensors among an operation's arguments, also within tuples, lists and dicts."""
    if isinstance(given, torch.Tensor):
        return [plain(given)]
    held = given.values() if isinstance(given, dict) else given
    is_container = isinstance(given, (tuple, list, dict))
    return [tensor for one in held for tensor in _tensors(one)] if is_container else []


def _contents(tensor: torch.Tensor) -> Contents:
    """The contents of a tensor; a large tensor is not copied, as buffers may fill half the memory.

    Modes of torch functions are disabled: they would see these calls, and before torch 2.13 they
    would confuse ``listed`` with the recorder's replacement of ``Tensor.tolist``.
    """
    if not tensor.numel():
        return NOTHING
    with torch._C.DisableTorchFunction():
        held = tensor.detach()
        if held.dtype is torch.bool or held.numel() <= SMALL:
            held = held.to("cpu", torch.float64)
        low, high = torch.aminmax(held)
        return Contents(
            size=held.numel(),
            values=tuple(listed(held.reshape(-1))) if held.numel() <= SMALL else (),
            largest=max(abs(float(low)), abs(float(high))),
            total=float(held.sum(dtype=torch.float64)),
            nonzero=int(torch.count_nonzero(held)),
            is_measured=tensor.is_floating_point() or tensor.dtype is torch.bool,
        )


def _is_same(one: Contents, other: Contents) -> bool:
    """Whether two contents are equal; NaN counts as equal to NaN."""
    return repr(one) == repr(other)
