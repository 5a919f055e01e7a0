"""Finds out how a divisor was computed: by sums, products, clamps and collectives of given numbers.

An entry of a tensor is unfolded into its parts: the entries of the operands from which the tensor's
operation computes the entry's value.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

from conformance.findings.trace import READ
from conformance.tracing.graph import ALLOCATIONS, Node, is_close

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from conformance.findings.trace import Contents, Line, Operation
    from conformance.tracing.graph import Graph

DEPTHS = (24, 12, 6)
"""The depths to which a count may be unfolded; the largest that makes at most `MOST` parts is used.
"""

MOST = 300
"""The most parts of an unfolded count.

Where many operations use the same results, the number of parts grows exponentially with the depth.
"""

DIVIDING = ("div", "floor_divide")
"""Operations that divide by their second operand."""

ON_STORAGE = "aten.set_."
"""The operation that gives a tensor a storage, such as a storage sent by another process."""

SHARED = 3
"""The innermost frames of a read that are compared with the stack of the number's user."""

CLOSE = 8
"""The innermost frames of a number's user that are compared with the stack of a read."""

SMALL = 8
"""The size of the largest tensor in which Python numbers are searched."""

COMMON = 2
"""Up to this number, only reads by the function that uses the number are considered, as small
numbers are common."""


class How(StrEnum):
    """The operation by which a count was made from its parts."""

    GIVEN = "given"
    SAME = "same"
    CLAMP = "clamp"
    SUM = "sum"
    PRODUCT = "product"
    ROUNDED = "rounded"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Count:
    """A number that weights depend on, with the parts that it was made of.

    ``node`` is the operation that made the number, None for a number that only Python knows. ``at``
    is the number's place among the node's entries, None if it is the sum of all entries. ``shares``
    are, for a sum, the coefficients of its parts; for a product, rounded or not, the powers of its
    parts.
    """

    value: float
    node: Node | None
    how: How = How.GIVEN
    at: int | None = None
    parts: tuple[Count, ...] = ()
    shares: tuple[float, ...] = ()

    def needed(self, part: int, needed: float) -> float | None:
        """The value of a part that would make the count ``needed``; None if no value is known."""
        value = self.parts[part].value
        match self.how:
            case How.SAME | How.CLAMP:
                return needed
            case How.SUM:
                return value + (needed - self.value) / self.shares[part]
            case How.PRODUCT | How.ROUNDED if self.value and needed:
                return float(value * (needed / self.value) ** (1 / self.shares[part]))
        return None

    @property
    def recounted(self) -> float:
        """The count as it would be without clamps and without added constants."""
        parts = [part.recounted for part in self.parts]
        shares = [*zip(self.parts, parts, self.shares, strict=False)]
        match self.how:
            case How.SAME | How.CLAMP:
                return parts[0]
            case How.SUM:
                return sum(part * share for one, part, share in shares if one.node or one.parts)
            case How.PRODUCT | How.ROUNDED if all(parts):
                return math.prod(float(part**share) for _, part, share in shares)
        return self.value

    def walk(self) -> Iterator[Count]:
        """Yield the count and, recursively, all of its parts."""
        yield self
        for part in self.parts:
            yield from part.walk()


class Entry(NamedTuple):
    """An entry of a tensor, or the sum of all entries."""

    node: Node
    at: int | None
    value: float


class Made(NamedTuple):
    """The operation that made an entry, and its parts, which are entries or Python numbers."""

    how: How
    parts: Sequence[Entry | float]
    shares: Sequence[float] = ()


@dataclass(frozen=True, eq=False)
class Unfolding:
    """Unfolds the counts in one graph."""

    graph: Graph
    _known: dict[Entry, Made] = field(default_factory=dict)

    def of_value(self, node: Node, value: float) -> Count | None:
        """Unfolds the entry of a tensor that equals a value; None if there is no such entry."""
        for entry in self._entries(node):
            if is_close(entry.value, value):
                return _bounded(partial(self._unfolded, entry))
        return None

    def number(self, number: float, user: Node) -> Count:
        """A Python number in ``user``, unfolded if callers of ``user`` read it from a tensor."""
        return _bounded(partial(self._number, number, user))

    def _number(self, number: float, user: Node, depth: int, left: Iterator[int]) -> Count:
        made = self._read(Entry(user, None, number))
        entries = (one for one in made.parts if isinstance(one, Entry))
        parts = tuple(self._unfolded(one, depth - 1, left) for one in entries)
        return Count(number, None, made.how, parts=parts, shares=tuple(made.shares))

    def _read(self, entry: Entry) -> Made:
        """Unfolds a number that Python read, alone or in a tensor, into its source tensors."""
        sources = [*self._sources(entry.value, entry.node)]
        if sources:
            known = (one for one in sources if self._is_known(one))
            return Made(How.SAME, [next(known, sources[0])], [1.0])
        summed = self._summed(entry.value, entry.node)
        return Made(How.SUM, summed, [1.0] * len(summed)) if summed else Made(How.GIVEN, ())

    def _summed(self, number: float, user: Node) -> list[Entry]:
        """Entries that one line read one by one and whose sum is the number.

        The line is in a function of the user's stack, or in a function that such a function called.
        """
        users = {_function(line) for line in self.graph.operation(user).stack}
        read: dict[Line, list[Entry]] = {}
        for place, operation in enumerate(self.graph.traces[user.rank].operations[: user.place]):
            line, near = operation.line, {_function(one) for one in operation.stack[:SHARED]}
            if operation.name == READ and line is not None and near & users:
                [value] = operation.contents.values
                read.setdefault(line, []).append(Entry(Node(user.rank, place), 0, value))
        several = (one for one in reversed(read.values()) if len(one) > 1)
        sums = (one for one in several if is_close(math.fsum(each.value for each in one), number))
        return next(sums, [])

    def _is_known(self, entry: Entry) -> bool:
        """Whether it is known how an entry was made, so that its value is not a coincidence."""
        made = self._made(entry)
        while made.how is How.SAME and isinstance(made.parts[0], Entry):
            made = self._made(made.parts[0])
        return made.how is not How.UNKNOWN

    def _sources(self, number: float, user: Node) -> Iterator[Entry]:
        """Yield entries that equal a number and that callers of ``user`` read, the latest first."""
        if number in (0, 1):  # too common to find the source
            return
        stack, is_given = self.graph.operation(user).stack, self.graph.operation(user).is_given
        users = [_function(line) for line in (stack[:1] if number <= COMMON else stack)]
        for place in range(user.place - 1, -1, -1):
            operation = self.graph.operation(Node(user.rank, place))
            held, near = operation.contents, {_function(line) for line in operation.stack[:SHARED]}
            # Making a tensor of a list reads the list's tensors without an operation.
            inmost = {_function(line) for line in operation.stack[:1]}
            is_made = not operation.is_given and held.size == 1
            is_near = is_given and is_made and inmost.intersection(users)
            is_looked_at = operation.name == READ or operation.collective is not None or is_near
            # A distant caller reads many numbers for other functions, so only close callers count.
            # A called function reads small numbers for itself, so a small number must be read by
            # its user.
            is_shared = number > COMMON and near.intersection(users[:CLOSE])
            is_used = is_shared or inmost.intersection(users)
            if is_looked_at and held.size <= SMALL and number in held.values and is_used:
                yield Entry(Node(user.rank, place), held.values.index(number), number)

    def _unfolded(self, entry: Entry, depth: int, left: Iterator[int]) -> Count:
        """Unfolds an entry to a depth, or until ``left``, the allowance of parts, is used up."""
        is_left = depth > 0 and next(left, None) is not None
        made = self._made(entry) if is_left else Made(How.GIVEN, ())
        parts = tuple(
            self._unfolded(part, depth - 1, left)
            if isinstance(part, Entry)
            else self._number(part, entry.node, depth, left)
            for part in made.parts
        )
        return Count(entry.value, entry.node, made.how, entry.at, parts, tuple(made.shares))

    def _made(self, entry: Entry) -> Made:
        if entry not in self._known:
            self._known[entry] = self._made_of_operands(entry)
        return self._known[entry]

    def _made_of_operands(self, entry: Entry) -> Made:
        operation = self.graph.operation(entry.node)
        inputs = self.graph.inputs(entry.node)
        if operation.name.startswith((*ALLOCATIONS, ON_STORAGE)):
            return Made(How.GIVEN, ())
        if not inputs:
            return self._read(entry) if operation.is_given else Made(How.GIVEN, ())
        operands = [[*self._aligned(one, entry)] for one in inputs]
        rule = RULES.get(_kind(operation))
        made = rule(entry.value, operands, operation) if rule is not None else None
        same = [one for each in operands for one in each if is_close(one.value, entry.value)]
        if made is None and same:
            return Made(How.SAME, same[:1])
        return made or Made(How.UNKNOWN, [each[0] for each in operands])

    def _aligned(self, operand: Node, made: Entry) -> Iterator[Entry]:
        """Yield an operand's entries that an entry of the result may be computed from."""
        held, result = self._contents(operand), self._contents(made.node)
        if made.at is not None and held.values and held.size == result.size:
            yield Entry(operand, made.at, held.values[made.at])
        elif made.at is None:
            yield Entry(operand, 0 if held.size == 1 else None, held.total)
        else:
            yield from self._entries(operand)

    def _entries(self, node: Node) -> Iterator[Entry]:
        """Yield all known entries of a tensor and their sum.

        Of a large tensor only an entry that fills the whole tensor is known.
        """
        held = self._contents(node)
        yield from (Entry(node, at, value) for at, value in enumerate(held.values))
        if not held.values and held.size and is_close(held.total, held.size * held.largest):
            yield Entry(node, 0, held.largest)
        if held.size != 1:
            yield Entry(node, None, held.total)

    def _contents(self, node: Node) -> Contents:
        return self.graph.operation(node).contents


def _bounded(unfolded: Callable[[int, Iterator[int]], Count]) -> Count:
    """Unfolds a count as deep as possible: once, if even the least depth has too many parts."""
    for depth in DEPTHS:
        left = iter(range(MOST))
        found = unfolded(depth, left)
        if next(left, None) is not None:
            return found
    return unfolded(1, iter(range(1)))


Operands = list[list[Entry]]


def _of_product(value: float, operands: Operands, operation: Operation) -> Made | None:
    """Explains a value as a product or quotient of one entry of each operand and of numbers.

    A quotient may be rounded down.
    """
    rounded: Made | None = None
    factors: list[Sequence[Entry | float]] = [*operands, *([one] for one in operation.numbers)]
    first, *others = [1.0] * len(factors)
    power = -1.0 if _kind(operation) in DIVIDING else 1.0
    shares = [first, *(power * one for one in others)]
    for chosen in product(*factors):
        values = [one.value if isinstance(one, Entry) else one for one in chosen]
        if power < 0 and not all(values[1:]):
            continue
        terms = [one**share for one, share in zip(values, shares, strict=True)]
        if is_close(math.prod(terms), value):
            return Made(How.PRODUCT, chosen, shares)
        if math.floor(math.prod(terms)) == value and power < 0:
            rounded = rounded or Made(How.ROUNDED, chosen, shares)
    return rounded


def _of_rounding(value: float, operands: Operands, operation: Operation) -> Made | None:
    """Explains a value as another value, rounded or converted to an integer."""
    rounded = (one for one in operands[0] if value.is_integer() and abs(one.value - value) < 1)
    return next((Made(How.ROUNDED, [one], [1.0]) for one in rounded if one.value != value), None)


def _of_reciprocal(value: float, operands: Operands, operation: Operation) -> Made | None:
    found = (one for one in operands[0] if one.value and is_close(1 / one.value, value))
    return next((Made(How.PRODUCT, [one], [-1.0]) for one in found), None)


def _of_clamp(value: float, operands: Operands, operation: Operation) -> Made | None:
    """Explains a value as an entry that was clamped, perhaps from another value."""
    kept = [one for one in operands[0] if is_close(one.value, value)]
    return Made(How.CLAMP, (kept or operands[0])[:1])


def _of_whole(value: float, operands: Operands, operation: Operation) -> Made | None:
    """Explains a value as the sum or mean of all entries of an operand."""
    whole = operands[0][-1]
    if is_close(whole.value, value):
        return Made(How.SUM, [whole], [1.0])
    size = whole.value / value if value else 0.0
    return Made(How.SUM, [whole], [1 / size]) if _kind(operation) == "mean" and size else None


def _of_sum(value: float, operands: Operands, operation: Operation) -> Made | None:
    """Explains a value as a sum or difference of operands, or of an operand and a number."""
    sign = -1.0 if _kind(operation) == "sub" else 1.0
    parts: list[Entry | float] = [one[0] for one in operands]
    parts += [one for one in operation.numbers[:1] if len(operands) == 1]
    values = [one.value if isinstance(one, Entry) else one for one in parts]
    for share in (1.0, 1 / len(values)):
        shares = [share, *(sign * share for _ in values[1:])]
        terms = (one * share for one, share in zip(values, shares, strict=True))
        if is_close(math.fsum(terms), value):
            return Made(How.SUM, parts, shares)
    return None


RULES = {
    **dict.fromkeys(("mul", *DIVIDING), _of_product),
    "reciprocal": _of_reciprocal,
    **dict.fromkeys(("floor", "ceil", "round", "trunc", "to_copy"), _of_rounding),
    **dict.fromkeys(("clamp", "clamp_min", "clamp_max", "maximum", "minimum"), _of_clamp),
    **dict.fromkeys(("max", "min"), _of_clamp),
    **dict.fromkeys(("sum", "mean", "reduce_sum", "count_nonzero"), _of_whole),
    **dict.fromkeys(("add", "sub", "cat", "stack", "allreduce", "allreduce_coalesced"), _of_sum),
    **dict.fromkeys(("add_any", "concatenate"), _of_sum),
    **dict.fromkeys(("all_reduce", "reduce_scatter_base", "reduce_scatter"), _of_sum),
}
"""The rule by which each operation makes an entry; other operations only copy an equal entry."""


def _kind(operation: Operation) -> str:
    """The name of an operation without namespace, overload, prefix and underscores."""
    return operation.name.partition(".")[2].partition(".")[0].removeprefix("_foreach_").strip("_")


def _function(line: Line) -> tuple[str, str]:
    return line.file, line.function
