"""Records a framework's operations on JAX arrays, also those within compiled functions.

JAX passes each call to the current trace. A compiled function comes with its jaxpr: one list of
operations for forward pass, backward pass and optimizer, each with the lines that called it. The
recorder evaluates the operations one by one instead of compiling them.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
from jax._src import core, source_info_util

from conformance.findings.trace import (
    GIVEN,
    NOTHING,
    READ,
    SMALL,
    Contents,
    Line,
    Operation,
    RankTrace,
)
from conformance.ranks.recording.frames import DEEPEST, READS_GRADIENT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

CALLS = {
    "jit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "remat2": "jaxpr",
}
"""Operations that evaluate a jaxpr, each with the name of its jaxpr parameter."""

VIEWS = frozenset(
    f"jax.{name}"
    for name in (
        *("broadcast_in_dim", "convert_element_type", "copy", "device_put", "reshape"),
        *("sharding_constraint", "squeeze"),
    )
)
"""Operations that keep all entries, except that they may change their dtype or repeat them."""

DIFFERENTIATED, BACKWARD, RECOMPUTED = "jvp(", "transpose(", "rematted_computation"
"""Marks in names of operations that are differentiated, in a backward pass, or recomputed."""


class Caller(NamedTuple):
    """The context of a jaxpr's operations, given by the operations that evaluate the jaxpr."""

    stack: tuple[Line, ...] = ()
    names: str = ""
    reads_gradient: bool = False


class JaxRecorder(core.Trace):  # type: ignore[misc] # JAX has no types here
    """A context in which the operations of JAX are recorded."""

    def __init__(self, is_passed_by: Callable[[str], bool]) -> None:
        super().__init__()
        self._is_passed_by = is_passed_by
        self._current = core.set_current_trace(self)
        self._operations: list[Operation] = []
        self._places: dict[int, tuple[int, Any]] = {}
        """The place of the operation that made each array, by the `id` of the array, which is kept
        alive."""

        self._numbers: dict[int, tuple[float, Any]] = {}
        """The value of each array with one entry that was made only of numbers, by its `id`."""

        self._passes = 0
        self._differentiated: list[int] = []
        """The places of forward operations whose backward pass has not begun yet."""

        self._roots: dict[int, int] = {}
        self._gradients: list[int] = []

    def __enter__(self) -> JaxRecorder:
        self._current.__enter__()
        return self

    def __exit__(self, *raised: object) -> None:
        self._current.__exit__(*raised)

    @property
    def trace(self) -> RankTrace:
        """Everything that was recorded."""
        return RankTrace(
            operations=tuple(self._operations),
            roots=dict(self._roots),
            gradients=tuple(self._gradients),
        )

    def stage_value(self, value: Any) -> Any:
        """Convert a value to an array."""
        return core.eval_trace.stage_value(value)

    def process_primitive(self, primitive: Any, given: Sequence[Any], params: Any, /) -> Any:
        """Do an operation called from Python; a result with one entry counts as read by Python."""
        made = self._done(primitive, given, params, source_info_util.current(), Caller())
        for one in made:
            if np.size(one) == 1 and (place := self._place(one)) is not None:
                last = self._operations[place]
                read = Operation(
                    name=READ, stack=last.stack, contents=last.contents, inputs=(place,)
                )
                self._operations.append(read)
        return made if primitive.multiple_results else made[0]

    def process_custom_jvp_call(self, _: Any, fun: Any, *given: Any, **__: Any) -> Any:
        """Call a function with a custom derivative."""
        with core.set_current_trace(self):
            return fun.call_wrapped(*given[-1])

    process_custom_vjp_call = process_custom_jvp_call

    def _done(
        self, primitive: Any, given: Sequence[Any], params: Any, source: Any, caller: Caller
    ) -> list[Any]:
        """Do and record an operation, and return its results."""
        within = self._within(source, caller)
        if primitive.name == "cond":
            return self._evaluated(params["branches"][int(given[0])], given[1:], within)
        if primitive.name in CALLS:
            return self._evaluated(params[CALLS[primitive.name]], given, within)
        inputs = self._inputs(given, within)
        backward_pass = self._backward_pass(within)
        if within.reads_gradient:
            self._gradients += inputs
        draft = Operation(
            name=f"jax.{primitive.name}",
            stack=within.stack,
            contents=NOTHING,
            inputs=inputs,
            numbers=tuple(one for one in map(self._number, given) if one is not None),
            backward_pass=backward_pass,
        )
        result = primitive.bind(*given, **primitive.get_bind_params(params))
        made = [*result] if primitive.multiple_results else [result]
        first = len(self._operations)
        for one in made:
            self._take_down(draft, one, is_of_numbers=bool(given) and not inputs)
        if DIFFERENTIATED in within.names and BACKWARD not in within.names:
            self._differentiated += range(first, len(self._operations))
        return made

    def _take_down(self, draft: Operation, array: Any, *, is_of_numbers: bool) -> None:
        """Record how an array was made: from numbers only, as a view, or by an operation."""
        contents = _contents(array)
        before = [self._operations[place].contents for place in draft.inputs]
        if contents is not None and is_of_numbers and contents.size == 1:
            self._numbers[id(array)] = contents.total, array
        elif draft.name in VIEWS and before == [contents]:
            self._places[id(array)] = draft.inputs[0], array
        else:
            self._add(draft, array)

    def _evaluated(self, closed: Any, given: Sequence[Any], caller: Caller) -> list[Any]:
        """Evaluate a jaxpr, and return its results."""
        jaxpr = getattr(closed, "jaxpr", closed)
        held = dict(zip(jaxpr.constvars, getattr(closed, "consts", ()), strict=True))
        held |= zip(jaxpr.invars, given, strict=True)

        def read(one: Any) -> Any:
            return one.val if isinstance(one, core.Literal) else held[one]

        for each in jaxpr.eqns:
            with each.ctx.manager:
                made = self._done(
                    each.primitive, [*map(read, each.invars)], each.params, each.source_info, caller
                )
            held |= zip(each.outvars, made, strict=True)
        return [*map(read, jaxpr.outvars)]

    def _within(self, source: Any, caller: Caller) -> Caller:
        """The context for the operations of a jaxpr, given that of the operation evaluating it."""
        code, instructions = source.traceback.raw_frames() if source.traceback else ((), ())
        frames = [*map(source_info_util.raw_frame_to_frame, code, instructions)]
        lines = [_line(one) for one in frames if not self._is_passed_by(_module_of(one.file_name))]
        return Caller(
            stack=(*lines, *caller.stack)[:DEEPEST],
            names=f"{caller.names}/{source.name_stack}",
            reads_gradient=caller.reads_gradient or any(map(_reads_gradient, frames)),
        )

    def _backward_pass(self, within: Caller) -> int | None:
        """The number of the backward pass that an operation is in; notes the pass's root."""
        if BACKWARD not in within.names or RECOMPUTED in within.names:
            return None
        if self._differentiated:
            self._passes += 1
            self._roots.update((self._passes, one) for one in self._root(within.stack))
            self._differentiated.clear()
        return self._passes

    def _root(self, stack: tuple[Line, ...]) -> list[int]:
        """The place of the last scalar that a line or its callees made in the forward pass."""
        made = [(place, self._operations[place]) for place in self._differentiated]
        return [
            place
            for place, operation in made
            if operation.contents.size == 1 and operation.contents.is_measured
            if operation.stack[-len(stack) :] == stack
        ][-1:]

    def _inputs(self, given: Iterable[Any], within: Caller) -> tuple[int, ...]:
        """The places of the operations that made the given arrays."""
        draft = Operation(name=GIVEN, stack=within.stack, contents=NOTHING)
        places = [
            self._add(draft, one) if (known := self._place(one)) is None else known
            for one in given
            if self._number(one) is None
        ]
        return tuple(dict.fromkeys(place for place in places if place is not None))

    def _add(self, draft: Operation, array: Any) -> int | None:
        if (contents := _contents(array)) is None:
            return None
        place = len(self._operations)
        self._operations.append(replace(draft, contents=contents))
        self._places[id(array)] = place, array
        return place

    def _place(self, array: Any) -> int | None:
        place, _ = self._places.get(id(array), (None, None))
        return place

    def _number(self, given: Any) -> float | None:
        """An operand as a number, given as such or in an array; None for any other array."""
        if isinstance(given, jax.Array) or np.ndim(given):
            number, _ = self._numbers.get(id(given), (None, None))
            return number
        return float(given)


def _line(frame: Any) -> Line:
    is_of_a_line = frame.start_line == frame.end_line
    columns = (frame.start_column, frame.end_column) if is_of_a_line else None
    function = frame.function_name.rpartition(".")[2]
    return Line(frame.file_name, frame.start_line, function, columns)


def _reads_gradient(frame: Any) -> bool:
    is_reader = frame.function_name == READS_GRADIENT
    return is_reader and _module_of(frame.file_name).startswith("adapters.")


def _contents(array: Any) -> Contents | None:
    """The contents of an array of numbers; None for an empty array or a key of random numbers."""
    if jax.dtypes.issubdtype(array.dtype, jax.dtypes.extended) or not array.size:
        return None
    held = np.asarray(array, np.float64)
    return Contents(
        size=held.size,
        values=tuple(held.reshape(-1).tolist()) if held.size <= SMALL else (),
        largest=float(np.abs(held).max()),
        total=float(held.sum()),
        nonzero=int(np.count_nonzero(held)),
        is_measured=jax.dtypes.issubdtype(array.dtype, np.floating),
    )


@cache
def _module_of(file: str) -> str:
    """The name of the imported module of a file; empty if there is none."""
    named = sys.modules.copy().items()
    return next((name for name, one in named if getattr(one, "__file__", None) == file), "")
