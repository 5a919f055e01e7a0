"""Notes the numbers that a framework's functions return, or are given in lists.

What plain Python counts is no operation of torch. Where it got a number is told by the lines that
returned it.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from conformance.findings.trace import SMALL, Line, Returned

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from types import FrameType

    from conformance.ranks.recording.frames import Functions

DEEPEST = 3
"""The most lines of a stack that are kept."""


COMPREHENSIONS = frozenset({"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"})
"""Names of frames within a function that are not called by any line of another."""

Place = tuple[str, int]
"""A file with the number of a line."""


@dataclass
class Returns:
    """Notes numbers from `start` to `stop`."""

    functions: Functions
    operations: Callable[[], int]
    """The number of operations so far."""

    _noted: dict[tuple[str, int, tuple[float, ...]], Returned] = field(default_factory=dict)
    _callers: dict[Place, set[Place]] = field(default_factory=dict)
    """The lines that called each function which returned numbers, by its own first line."""

    _functions: dict[Place, Place] = field(default_factory=dict)
    """The first line of the function of each line that had numbers."""

    _holders: dict[int, tuple[float, Returned]] = field(default_factory=dict)
    """The first place of each float, by its identity; it is kept, so that no other gets that."""

    _before: Any = None

    def __post_init__(self) -> None:
        self._silent = self.functions.silent

    @property
    def noted(self) -> tuple[Returned, ...]:
        """Each line's numbers, in the order in which it had them first."""
        return tuple(map(self._with_callers, self._noted.values()))

    def held(self, several: Iterable[object]) -> list[float]:
        """The numbers that plain Python had before: these very floats, no equal ones."""
        return [one for one in several if type(one) is float and id(one) in self._holders]

    def first(self, held: Iterable[float]) -> tuple[Returned, ...]:
        """The first place in plain Python of each of some numbers.

        They may have been handed on in a list, in a field of something or as a parameter.
        """
        found = (self._holders[id(one)][1] for one in held)
        return tuple(dict.fromkeys(map(self._with_callers, found)))

    def start(self) -> None:
        """Note numbers from now on."""
        self._before = sys.gettrace()
        sys.settrace(self._called)

    def stop(self) -> None:
        """Note no more."""
        sys.settrace(self._before)

    def _called(self, frame: FrameType, event: str, _: object) -> Callable[..., None] | None:
        """Note what a function is given; what it returns is noted by what this returns."""
        if id(frame.f_code) in self._silent:  # most are, the recorder's own among them
            return None
        function = self.functions.of(frame)
        if function.is_passed_by:
            return None
        given = {name: frame.f_locals.get(name) for name in function.parameters}
        if not function.is_of_file:  # the constructor of one of the framework's dataclasses
            self._hold(frame.f_back, given.values())
            self._add_fields(frame.f_back, given)
            return None
        frame.f_trace_lines = False
        if frame.f_back is not None:
            self._add(
                frame.f_back, [one for one in given.values() if isinstance(one, (list, tuple))]
            )
        return self._goes_on

    def _goes_on(self, frame: FrameType, event: str, returned: object) -> None:
        if event == "return":
            self._add(frame, [returned], is_returned=True)

    def _add(self, frame: FrameType, held: Iterable[object], *, is_returned: bool = False) -> None:
        for one in () if self._is_foreign(frame) else held:
            if numbers := _numbers(one):
                line = frame.f_code.co_filename, frame.f_lineno
                if (*line, numbers) not in self._noted:
                    self._noted[*line, numbers] = self._returned(frame, numbers)
                self._hold(frame, one if isinstance(one, (list, tuple)) else [one])
                if is_returned:
                    self._note_caller(frame, line)

    def _add_fields(self, frame: FrameType | None, given: Mapping[str, object]) -> None:
        """Note the whole numbers that fields are given: other ones may be the same objects."""
        while frame is not None and self._is_foreign(frame):
            frame = frame.f_back
        if frame is None:
            return
        whole = {name: one for name, one in given.items() if type(one) is int}
        for name, one in whole.items():
            key = f"{frame.f_code.co_filename} {name}", frame.f_lineno, (one,)
            if key not in self._noted:
                self._noted[key] = replace(self._returned(frame, (one,)), name=name)
        self._note_caller(frame, (frame.f_code.co_filename, frame.f_lineno))

    def _hold(self, frame: FrameType | None, several: Iterable[object]) -> None:
        """Remember where floats were, if they have not been anywhere yet."""
        for one in several:
            if type(one) is float and id(one) not in self._holders:
                self._holders[id(one)] = one, self._returned(frame, (one,))

    def _returned(self, frame: FrameType | None, numbers: tuple[float, ...]) -> Returned:
        return Returned(
            stack=self._stack(frame),
            numbers=tuple(map(float, numbers)),
            place=self.operations(),
            is_measured=all(isinstance(number, float) for number in numbers),
        )

    def _note_caller(self, frame: FrameType, line: Place) -> None:
        function: FrameType | None = frame
        while function is not None and function.f_code.co_name in COMPREHENSIONS:
            function = function.f_back
        if function is None or function.f_back is None:
            return
        begins = function.f_code.co_filename, function.f_code.co_firstlineno
        caller = function.f_back
        self._functions[line] = begins
        self._functions[line[0], function.f_lineno] = begins  # a comprehension may begin before
        self._callers.setdefault(begins, set()).add((caller.f_code.co_filename, caller.f_lineno))

    def _with_callers(self, one: Returned) -> Returned:
        line = next(((each.file, each.number) for each in one.stack), ("", 0))
        callers = self._callers.get(self._functions.get(line, line), ())
        return replace(one, is_shared=len(callers) > 1)

    def _stack(self, frame: FrameType | None) -> tuple[Line, ...]:
        stack: list[Line] = []
        while frame is not None and len(stack) < DEEPEST:
            if not self._is_foreign(frame):
                line = Line(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
                is_within = bool(stack) and stack[-1].function in COMPREHENSIONS
                stack[-1:] = [line] if is_within else [*stack[-1:], line]
            frame = frame.f_back
        return tuple(stack)

    def _is_foreign(self, frame: FrameType) -> bool:
        function = self.functions.of(frame)
        return function.is_passed_by or not function.is_of_file


def _numbers(held: object) -> tuple[float, ...]:
    """The different numbers that something is, or has in a short list; none if it has others."""
    several = held if isinstance(held, (list, tuple)) else (held,)
    if len(several) > SMALL or not all(_is_number(one) for one in several):
        return ()
    return tuple(dict.fromkeys(several))


def _is_number(one: object) -> bool:
    return isinstance(one, (int, float)) and not isinstance(one, bool)
