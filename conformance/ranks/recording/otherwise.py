"""Runs an operation of one line as another that may have been meant there.

Torch's functions are replaced above autograd, so that their derivatives are those of the others.
"""

from __future__ import annotations

import threading
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from conformance.ranks.recording.frames import Functions, is_asked_for
from conformance.ranks.recording.replacing import Replacing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from adapters.contract.job import Replacement

    Operation = Callable[..., Any]
    """Takes the operands of an operation, and returns what it makes."""

OPPOSITES = {
    "max": "min",
    "amax": "amin",
    "argmax": "argmin",
    "gt": "le",
    "ge": "lt",
    "eq": "ne",
    "bitwise_and": "bitwise_or",
    "logical_and": "logical_or",
    "any": "all",
    "floor": "ceil",
    "add": "sub",
    "mul": "div",
}
"""Pairs of operations that are easily confused."""

STRICTER = {"ge": "gt", "le": "lt"}
"""Comparisons, with those that equal numbers fail."""

LEFT_OUT = (
    *("neg", "abs", "bitwise_not", "logical_not", "detach", "clamp", "floor", "ceil", "round"),
    *("trunc", "to_copy", "exp", "log", "sqrt", "pow", "nan_to_num", "masked_fill", "mul", "div"),
)
"""Operations whose first operand may be right as it is."""

SWAPPED = ("sub", "div")
"""Operations whose two operands may have changed places."""

COMPARING = ("gt", "ge", "lt", "le")
"""Comparisons: their operands are swapped only after their opposite has been tried."""

DETACHED = ("add", "sub", "mul", "div")
"""Operations that may have to treat one operand as a constant."""

REDUCING = ("sum", "mean", "std", "var", "max", "min", "amax", "amin", "any", "all", "cumsum")
"""Operations that may be of the other one of two dimensions."""

DEVIATING = ("std", "var")
"""Operations with a number of degrees of freedom."""

SPELLINGS = {
    "maximum": "max",
    "minimum": "min",
    "greater": "gt",
    "greater_equal": "ge",
    "less": "lt",
    "less_equal": "le",
    "invert": "bitwise_not",
    "and": "bitwise_and",
    "or": "bitwise_or",
    "negative": "neg",
    "absolute": "abs",
    "clip": "clamp",
    "clamp_min": "clamp",
    "clamp_max": "clamp",
    "subtract": "sub",
    "multiply": "mul",
    "truediv": "div",
    "divide": "div",
    "true_divide": "div",
    **dict.fromkeys(
        ("to", "type", "float", "double", "half", "bfloat16", "int", "long"), "to_copy"
    ),
}
"""Other names of operations, as Python or torch's dispatcher have them."""

REFLECTED = {f"r{name}": name for name in ("add", "sub", "mul", "truediv")}
"""Reflected operators: Python calls them with the right operand first."""

IN_PLACE = {f"i{name}": name for name in ("add", "sub", "mul", "truediv", "and", "or")}
"""Operators that change their left operand."""


def others(operation: str) -> Mapping[str, Operation]:
    """The operations that may have been meant instead of one of the dispatcher, by their words."""
    name = _base(operation)
    return {} if name is None else dict(_others(name))


def partly_detached(operation: str) -> Mapping[str, Operation]:
    """The same operation with one operand that has no derivative, by what is said of it."""
    name = _base(operation)
    if name not in DETACHED:
        return {}
    own = getattr(torch.Tensor, name)
    places = enumerate(("first", "second"))
    return {
        f"with the {which} operand of {name} detached": _detached(own, n) for n, which in places
    }


def _base(operation: str) -> str | None:
    """The name of an operation of the dispatcher, as Python has it; None of another library's."""
    is_of_torch = operation.startswith("aten.")
    return _spelled(operation.split(".")[1]) if is_of_torch else None


def _others(name: str) -> Iterator[tuple[str, Operation]]:
    swapped = f"with the operands of {name} swapped"
    if name in SWAPPED:
        yield swapped, _swapped(getattr(torch.Tensor, name))
    opposite = (OPPOSITES | {other: one for one, other in OPPOSITES.items()}).get(name)
    stricter = (STRICTER | {other: one for one, other in STRICTER.items()}).get(name)
    for other in filter(None, (opposite, stricter)):
        yield f"with {other} instead of {name}", getattr(torch.Tensor, other)
    if name in COMPARING:
        yield swapped, _swapped(getattr(torch.Tensor, name))
    if name == "clamp":
        yield "without a lower bound", _unbounded_below
        yield "without an upper bound", _unbounded_above
    if name == "where":
        yield "with its two branches swapped", _other_branch
    if name in REDUCING:
        yield f"with {name} over the other dimension", _over_other(getattr(torch.Tensor, name))
    if name in DEVIATING:
        yield f"with another correction of {name}", _corrected(getattr(torch.Tensor, name))
    if name in LEFT_OUT:
        yield f"without {name}", _left_out


def _unbounded_below(tensor: Any, low: Any = None, high: Any = None, **bounds: Any) -> Any:
    high = bounds.get("max", high)
    return tensor if high is None else torch.clamp(tensor, max=high)


def _unbounded_above(tensor: Any, low: Any = None, high: Any = None, **bounds: Any) -> Any:
    low = bounds.get("min", low)
    return tensor if low is None else torch.clamp(tensor, min=low)


def _other_branch(condition: Any, one: Any, other: Any) -> Any:
    return torch.where(condition, other, one)


def _swapped(operation: Operation) -> Operation:
    def swapped(one: Any, other: Any) -> Any:
        return operation(torch.as_tensor(other), one)

    return swapped


def _detached(operation: Operation, place: int) -> Operation:
    def detached(*operands: Any, **named: Any) -> Any:
        given = [*operands]
        given[place] = given[place].detach()
        return operation(*given, **named)

    return detached


def _over_other(operation: Operation) -> Operation:
    def over_other(tensor: torch.Tensor, dim: int, *others: Any, **named: Any) -> Any:
        one_way, other_way = range(tensor.ndim)
        return operation(tensor, (other_way, one_way)[dim], *others, **named)

    return over_other


def _corrected(operation: Operation) -> Operation:
    """The operation with all values as its degrees of freedom, or with one less."""

    def corrected(
        *operands: Any, unbiased: bool = True, correction: int | None = None, **named: Any
    ) -> Any:
        lost = int(unbiased) if correction is None else correction
        return operation(*operands, correction=1 - lost, **named)

    return corrected


def _left_out(one: Any, *others: Any, **_: Any) -> Any:
    """The first operand, or the second where only that has the shape of the result."""
    shapes = [part.shape for part in (one, *others[:1]) if isinstance(part, torch.Tensor)]
    whole = torch.broadcast_shapes(*shapes)  # type: ignore[no-untyped-call]
    return one if isinstance(one, torch.Tensor) and one.shape == whole else others[0]


def _spelled(name: str) -> str:
    name = name.strip("_")
    name = REFLECTED.get(name, IN_PLACE.get(name, name))
    return SPELLINGS.get(name, name)


class Otherwise(TorchFunctionMode):
    """Runs an operation of one line as another, each time that the line asks for it.

    Where the other one cannot take its place, which would end the step, it is left alone.
    """

    held: ClassVar[tuple[tuple[float, ...], ...]] = ()
    """No values are replaced by others."""

    def __init__(self, replaced: Replacement, is_passed_by: Callable[[str], bool]) -> None:
        super().__init__()
        self._replaced = replaced
        name = replaced.operation
        self._name = _base(name)
        self._other = {**others(name), **partly_detached(name)}[replaced.instead]
        self._functions = Functions(is_passed_by)
        self._thread = threading.get_ident()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a function of torch, or another one with its operands."""
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        is_meant = _spelled(name) == self._name
        if not is_meant or not is_asked_for(self._replaced, self._functions, self._thread):
            return func(*args, **kwargs)
        before = args[0].clone() if _is_in_place(name) else None
        result = func(*args, **kwargs)
        if before is not None:
            args = (before, *args[1:])
        elif name.strip("_") in REFLECTED:
            args = (torch.as_tensor(args[1]), args[0])
        other = self._made(*args, **kwargs)
        if not _is_alike(other, result):
            return result
        return other if before is None else result.copy_(other)

    def _made(self, *args: Any, **kwargs: Any) -> Any:
        """The result of the other operation, if it takes such operands."""
        try:
            return self._other(*args, **kwargs)
        except (AttributeError, IndexError, RuntimeError, TypeError, ValueError):
            return None


def _is_alike(one: Any, other: Any) -> bool:
    """Whether a step can go on with one result in place of another."""
    pairs = zip_longest(tree_leaves(one), tree_leaves(other))
    return all(
        isinstance(part, torch.Tensor)
        and isinstance(each, torch.Tensor)
        and part.shape == each.shape
        and part.is_floating_point() == each.is_floating_point()
        and (part.requires_grad or not each.requires_grad)
        for part, each in pairs
    )


def _is_in_place(name: str) -> bool:
    is_operator = name.startswith("__")
    return name.strip("_") in IN_PLACE if is_operator else name.endswith("_")


def replacing_mode(
    replaced: Replacement, rank: int, is_passed_by: Callable[[str], bool]
) -> Replacing | Otherwise:
    """The mode in which a rank computes with a replacement."""
    if replaced.instead:
        return Otherwise(replaced, is_passed_by)
    return Replacing(replaced, rank, is_passed_by)
