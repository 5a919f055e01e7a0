"""Follows the value of one token through a framework's own operations.

One token has an advantage and every other has none, so that each tensor on the way from its loss to
its gradient has one entry that is not 0, and each change of that entry is a factor of the token's
weight. Nothing of the framework is patched: operations are seen as torch dispatches them.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from adapters.contract.probed_batch import PAINT
from conformance.findings.trace import Collective, Count, Factor, Line, RankTrace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from adapters.contract import Adapter

SMALL = 64
"""Entries of the largest tensor that may be a count."""

SHOWN = 8
"""Entries of a count that are kept."""

COLLECTIVE = "c10d."
READ = "aten._local_scalar_dense"
ALLOCATIONS = ("aten.new_empty", "aten.empty", "aten.ones_like", "aten.zeros_like")
"""Operations whose results hold old bytes, or nothing of what they are given."""

VIEWS = tuple(
    f"aten.{name}"
    for name in (
        *("view", "_unsafe_view", "alias", "as_strided", "detach", "expand", "select", "slice"),
        *("split", "squeeze", "t.", "transpose", "unsqueeze"),
    )
)
"""Operations that make nothing new."""

OURS = ("adapters", "conformance", "tests")

PASSED_BY = frozenset(
    {*sys.stdlib_module_names, "torch", "numpy", "tensordict"} - {"__main__", "__mp_main__"}
)
"""Packages whose frames are passed by: a framework or its engine asked for what they do."""

BACKWARD, ROOTS = "_engine_run_backward", "_make_grads"
"""torch's functions that a backward pass runs in, and that make the gradients of its roots."""


class _Branch(NamedTuple):
    """The token's value in a tensor, and the factors that made it."""

    value: float
    factors: tuple[Factor, ...]
    is_forward: bool


@dataclass
class _Pending:
    """A tensor that a collective may still write to."""

    tensor: torch.Tensor
    collective: Factor
    count: int | None


@dataclass
class Recorder(TorchDispatchMode):
    """Records the factors of the painted token, and the counts that they are made of."""

    is_passed_by: Callable[[str], bool]
    _counts: list[Count] = field(default_factory=list)
    _branches: dict[int, _Branch] = field(default_factory=dict)
    """Of painted storages."""
    _producers: dict[int, int] = field(default_factory=dict)
    """The places of counts, by storage."""
    _numbers: dict[float, int] = field(default_factory=dict)
    """The places of counts that were read as Python numbers."""
    _sequences: dict[tuple[int, ...], int] = field(default_factory=dict)
    _pending: dict[int, _Pending] = field(default_factory=dict)
    _kept: list[torch.Tensor] = field(default_factory=list)
    """Tensors that stay, so that no other storage takes the place of a known one."""
    _begun: bool = False
    _root: _Branch | None = None
    _last: _Branch | None = None

    def __post_init__(self) -> None:
        super().__init__()

    @property
    def trace(self) -> RankTrace:
        """What was seen."""
        for key in [*self._pending]:
            self._settle(key)
        factors = self._last.factors if self._last is not None else ()
        return RankTrace(factors=factors, counts=tuple(self._counts), begins=self._begun)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation and take down what it does to the token's value."""
        kwargs = kwargs or {}
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # its local operations are seen
        name, given = str(func), tree_leaves((args, kwargs))
        operands = [one for one in given if isinstance(one, torch.Tensor) and _key(one) is not None]
        for tensor in operands:
            self._settle(_key(tensor))
        painted = [*self._painted(operands)]
        inputs = (*self._inputs(given, operands, painted),)
        results = func(*args, **kwargs)
        if name.startswith(READ):
            self._read(operands, results)
        elif name.startswith(COLLECTIVE):
            self._collected(name, given, operands, inputs)
        else:
            made = [one for one in tree_leaves(results) if isinstance(one, torch.Tensor)]
            self._made(name, made, operands, painted, inputs)
        return results

    def _made(
        self,
        name: str,
        made: list[torch.Tensor],
        operands: list[torch.Tensor],
        painted: list[_Branch],
        inputs: tuple[int, ...],
    ) -> None:
        if painted and self._root is None and _is_below(ROOTS):
            self._root = painted[0]
        for tensor in made:
            key = _key(tensor)
            if key is None:
                continue
            if painted and tensor.is_floating_point():
                if not name.startswith(ALLOCATIONS):
                    self._follow(name, key, tensor, painted, inputs)
            elif self._begins(tensor, operands):
                self._begun = True
                self._paint(key, tensor, _Branch(PAINT, (), not _is_below(BACKWARD)))
            elif tensor.numel() <= SMALL and not name.startswith(VIEWS):
                self._add_count(name, key, tensor, inputs)

    @staticmethod
    def _begins(tensor: torch.Tensor, operands: list[torch.Tensor]) -> bool:
        """Whether the advantage met another tensor, such as the ratio, in an operation."""
        if len(operands) < 2 or not tensor.is_floating_point():
            return False
        return _largest(tensor) == (PAINT, 1)

    def _follow(
        self,
        name: str,
        key: int,
        tensor: torch.Tensor,
        painted: list[_Branch],
        inputs: tuple[int, ...],
    ) -> None:
        """Paint the result of an operation on painted tensors.

        The first gradient with the token's value has the factors of the root of the backward pass:
        what is between them repeats those.
        """
        value, entries = _largest(tensor)
        if not entries:
            return
        branch = max(painted, key=lambda one: one.value)
        is_forward = branch.is_forward and not _is_below(BACKWARD)
        if branch.is_forward and not is_forward:
            root = self._root or branch
            branch = root._replace(is_forward=False)
        if not math.isclose(value, branch.value, rel_tol=1e-7):
            factor = Factor(
                before=branch.value,
                after=value,
                operation=name,
                line=self._line(),
                counts=inputs,
                is_backward=_is_below(BACKWARD),
            )
            branch = branch._replace(value=value, factors=(*branch.factors, factor))
        self._paint(key, tensor, branch)

    def _painted(self, operands: list[torch.Tensor]) -> Iterator[_Branch]:
        """Yield the branches of painted operands that still hold the token's value."""
        for tensor in operands:
            key = _key(tensor)
            branch = self._branches.get(key) if key is not None else None
            if branch is None or not tensor.is_floating_point():
                continue
            value, entries = _largest(tensor)
            if not entries:
                continue
            if not math.isclose(value, branch.value, rel_tol=1e-7) and entries == 1:
                factor = Factor(
                    before=branch.value, after=value, operation="outside", line=self._line()
                )
                branch = branch._replace(value=value, factors=(*branch.factors, factor))
                self._paint(key, tensor, branch)
            yield branch

    def _paint(self, key: int | None, tensor: torch.Tensor, branch: _Branch) -> None:
        assert key is not None
        self._branches[key] = branch
        self._kept.append(tensor)
        if not branch.is_forward:
            self._last = branch

    def _collected(
        self, name: str, given: list[Any], operands: list[torch.Tensor], inputs: tuple[int, ...]
    ) -> None:
        """Take down a collective, whose result may come later."""
        group = _ranks(given)
        sequence = self._sequences[group] = self._sequences.get(group, 0) + 1
        collective = Collective(group=group, sequence=sequence)
        for tensor in operands:
            key = _key(tensor)
            assert key is not None
            count = None
            if tensor.numel() <= SMALL and key not in self._branches:
                count = self._add_count(name, key, tensor, inputs, collective)
            branch = self._branches.get(key)
            before = branch.value if branch is not None else 0.0
            factor = Factor(
                before=before,
                after=before,
                operation=name,
                line=self._line(),
                collective=collective,
            )
            self._pending[key] = _Pending(tensor, factor, count)
            self._kept.append(tensor)

    def _settle(self, key: int | None) -> None:
        """Take down what a collective left in a tensor, when it is next looked at."""
        pending = None if key is None else self._pending.pop(key, None)
        if pending is None:
            return
        if pending.count is not None:
            count = self._counts[pending.count]
            self._counts[pending.count] = replace(count, values=_values(pending.tensor))
            return
        if not pending.tensor.is_floating_point():
            return
        value, entries = _largest(pending.tensor)
        branch = self._branches.get(key)
        if branch is None and entries == 1:
            branch = _Branch(value, (), is_forward=False)  # it comes from another rank
        elif branch is None or not entries:
            return
        if not math.isclose(value, branch.value, rel_tol=1e-7) or not branch.factors:
            factor = replace(pending.collective, before=branch.value, after=value)
            branch = branch._replace(value=value, factors=(*branch.factors, factor))
        self._paint(key, pending.tensor, branch)

    def _read(self, operands: list[torch.Tensor], number: object) -> None:
        place = self._producers.get(_key(operands[0]) or 0) if operands else None
        if place is not None and isinstance(number, (int, float)):
            self._numbers[float(number)] = place

    def _add_count(
        self,
        name: str,
        key: int,
        tensor: torch.Tensor,
        inputs: tuple[int, ...],
        collective: Collective | None = None,
    ) -> int:
        place = self._producers[key] = len(self._counts)
        self._counts.append(
            Count(
                values=_values(tensor),
                operation=name,
                line=self._line(),
                inputs=inputs,
                collective=collective,
            )
        )
        self._kept.append(tensor)
        return place

    def _inputs(
        self, given: list[Any], operands: list[torch.Tensor], painted: list[_Branch]
    ) -> Iterator[int]:
        """Yield the places of the counts among operands, tensors or numbers."""
        for tensor in operands:
            key = _key(tensor)
            if key in self._producers and key not in self._branches:
                yield self._producers[key]
        numbers = (one for one in given if isinstance(one, (int, float)))
        for number in numbers:
            if isinstance(number, bool) or not number:
                continue
            for value, place in self._numbers.items():
                if value and (number == value or math.isclose(number * value, 1, rel_tol=1e-6)):
                    yield place

    def _line(self) -> Line | None:
        """The line of the framework, or of its engine, that asked for an operation."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if not self.is_passed_by(frame.f_globals.get("__name__", "")):
                code = frame.f_code
                return Line(code.co_filename, frame.f_lineno, code.co_name)
            frame = frame.f_back
        return None


def passes_by(adapter: Adapter) -> Callable[[str], bool]:
    """Whether frames of a module are ours, or of a library that others ask to do something.

    An adapter without a package is its own framework, with the modules next to it.
    """
    own = "" if adapter.package else type(adapter).__module__.rpartition(".")[0]

    def is_passed_by(module: str) -> bool:
        if own and module.startswith(own):
            return False
        return module.partition(".")[0] in PASSED_BY or module.partition(".")[0] in OURS

    return is_passed_by


def _key(tensor: torch.Tensor) -> int | None:
    if tensor.device.type == "meta" or isinstance(tensor, (DTensor, FakeTensor)):
        return None
    try:
        return int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):  # a subclass without storage
        return None


def _largest(tensor: torch.Tensor) -> tuple[float, int]:
    """The largest size of an entry, and how many are not 0."""
    if not tensor.numel():
        return 0.0, 0
    sizes = tensor.detach().abs()
    return float(sizes.max()), int((sizes != 0).sum())


def _values(tensor: torch.Tensor) -> tuple[float, ...]:
    return tuple(map(float, tensor.detach().reshape(-1)[:SHOWN].to(torch.float64).tolist()))


def _is_below(function: str) -> bool:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == function:
            return True
        frame = frame.f_back
    return False


def _ranks(given: list[Any]) -> tuple[int, ...]:
    """The ranks of a collective's group."""
    for one in given:
        if isinstance(one, torch.ScriptObject):
            try:
                return tuple(dist.get_process_group_ranks(dist.ProcessGroup.unbox(one)))
            except (RuntimeError, ValueError, TypeError):
                continue
    return ()
