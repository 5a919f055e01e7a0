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
    from collections.abc import Callable, Iterable
    from types import FrameType

DEEPEST = 3
"""How many lines of a stack are kept."""


@dataclass
class Returns:
    """Notes numbers from `start` to `stop`."""

    is_passed_by: Callable[[str], bool]
    operations: Callable[[], int]
    """How many operations there have been."""

    _noted: dict[tuple[str, int, tuple[float, ...]], Returned] = field(default_factory=dict)
    _callers: dict[tuple[str, int], set[tuple[str, int]]] = field(default_factory=dict)
    """The lines that called the function of each line that returned numbers."""

    ran: set[str] = field(default_factory=set)
    """The files of all functions that were called."""

    _before: Any = None

    @property
    def noted(self) -> tuple[Returned, ...]:
        """Each line's numbers, in the order in which it had them first."""
        return tuple(
            replace(one, is_shared=len(self._callers.get((file, number), ())) > 1)
            for (file, number, _), one in self._noted.items()
        )

    def start(self) -> None:
        """Note numbers from now on."""
        self._before = sys.getprofile()
        sys.setprofile(self._note)

    def stop(self) -> None:
        """Note no more."""
        sys.setprofile(self._before)

    def _note(self, frame: FrameType, event: str, returned: object) -> None:
        self.ran.add(frame.f_code.co_filename)
        if event == "return":
            self._add(frame, [returned], frame.f_back)
        elif event == "call" and frame.f_back is not None and not self._is_foreign(frame):
            names = frame.f_code.co_varnames[: frame.f_code.co_argcount]
            given = (frame.f_locals.get(name) for name in names)
            self._add(frame.f_back, [one for one in given if isinstance(one, (list, tuple))])

    def _add(
        self, frame: FrameType, held: Iterable[object], caller: FrameType | None = None
    ) -> None:
        for one in held:
            numbers = _numbers(one)
            if numbers and not self._is_foreign(frame):
                line = frame.f_code.co_filename, frame.f_lineno
                if (*line, numbers) not in self._noted:
                    self._noted[*line, numbers] = Returned(
                        stack=self._stack(frame),
                        numbers=tuple(map(float, numbers)),
                        place=self.operations(),
                        is_measured=all(isinstance(number, float) for number in numbers),
                    )
                if caller is not None:
                    by = (caller.f_code.co_filename, caller.f_lineno)
                    self._callers.setdefault(line, set()).add(by)

    def _stack(self, frame: FrameType | None) -> tuple[Line, ...]:
        stack: list[Line] = []
        while frame is not None and len(stack) < DEEPEST:
            if not self._is_foreign(frame):
                stack.append(Line(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
            frame = frame.f_back
        return tuple(stack)

    def _is_foreign(self, frame: FrameType) -> bool:
        name = frame.f_code.co_filename
        return name.startswith("<") or self.is_passed_by(frame.f_globals.get("__name__", ""))


def _numbers(held: object) -> tuple[float, ...]:
    """The different numbers that something is, or has in a short list; none if it has others."""
    several = held if isinstance(held, (list, tuple)) else (held,)
    if len(several) > SMALL or not all(_is_number(one) for one in several):
        return ()
    return tuple(dict.fromkeys(several))


def _is_number(one: object) -> bool:
    return isinstance(one, (int, float)) and not isinstance(one, bool)
