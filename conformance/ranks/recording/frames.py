"""The lines of a framework that ask for an operation, read off the stack of Python."""

from __future__ import annotations

import sys
import threading
from functools import cache
from itertools import chain, islice
from typing import TYPE_CHECKING, NamedTuple

import torch

from conformance.findings.trace import Line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import CodeType, FrameType

BEGIN_BACKWARD = {"_engine_run_backward": "t_outputs", "custom_backward": "output"}
"""Functions of torch and Megatron that begin a backward pass, and their variable of its roots."""

DEEPEST = 16
"""How many lines of a stack are kept."""

READS_GRADIENT = "as_array"
"""The name of the functions of `adapters` by which the probe's gradient is read."""


class Asked(NamedTuple):
    """Who asked for an operation.

    ``inside`` are the lines within the backward pass that is under way, such as those of a hook.
    """

    stack: tuple[Line, ...]
    inside: tuple[Line, ...]
    roots: tuple[torch.Tensor, ...]
    reads_gradient: bool
    frame: FrameType | None

    @property
    def variables(self) -> tuple[tuple[str, float], ...]:
        """The numbers that the innermost function has in variables, by name."""
        if self.frame is None:
            return ()
        named = self.frame.f_locals.items()
        return tuple((name, float(held)) for name, held in named if type(held) in (int, float))

    @property
    def held(self) -> list[object]:
        """What the innermost function has in variables."""
        return [] if self.frame is None else [*self.frame.f_locals.values()]


def asked(is_passed_by: Callable[[str], bool], thread: int) -> Asked:
    """Who asked, in a thread that is traced, for the operation that is being dispatched.

    Gradients of CUDA tensors are computed in threads of autograd's own, while that thread waits.
    """
    stack: list[Line] = []
    inside: tuple[Line, ...] = ()
    roots: tuple[torch.Tensor, ...] = ()
    reads_gradient, innermost = False, None
    own = threading.get_ident() == thread
    frames = [sys._getframe(1)] if own else [sys._getframe(1), sys._current_frames()[thread]]
    for frame in chain.from_iterable(map(_upwards, frames)):
        module, code = frame.f_globals.get("__name__", ""), frame.f_code
        if code.co_name in BEGIN_BACKWARD and not roots:
            inside, roots = tuple(stack), _tensors(frame.f_locals[BEGIN_BACKWARD[code.co_name]])
        is_reader = code.co_name == READS_GRADIENT and module.startswith("adapters.")
        reads_gradient = reads_gradient or is_reader
        is_of_file = not code.co_filename.startswith("<")
        if len(stack) < DEEPEST and is_of_file and not is_passed_by(module):
            columns = _columns(_ById(code), frame.f_lasti)
            stack.append(Line(code.co_filename, frame.f_lineno, code.co_name, columns))
            innermost = innermost or frame
    return Asked(tuple(stack), inside, roots, reads_gradient, innermost)


def imported(is_passed_by: Callable[[str], bool]) -> frozenset[str]:
    """The files of all modules that have been imported and whose frames are not passed by."""
    modules = [one for name, one in [*sys.modules.items()] if not is_passed_by(name)]
    return frozenset(file for one in modules if (file := getattr(one, "__file__", None)))


class _ById:
    """A function's code, which is compared by identity: to compare what it holds takes long."""

    def __init__(self, code: CodeType) -> None:
        self.code = code

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ById) and self.code is other.code

    def __hash__(self) -> int:
        return id(self.code)


@cache
def _columns(function: _ById, instruction: int) -> tuple[int, int] | None:
    """The columns of the expression of an instruction, if it is on one line."""
    positions = islice(function.code.co_positions(), instruction // 2, None)
    line, last, start, end = next(positions, (None,) * 4)
    return None if line != last or start is None or end is None else (start, end)


def _upwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _tensors(given: object) -> tuple[torch.Tensor, ...]:
    several = given if isinstance(given, (tuple, list)) else [given]
    return tuple(one for one in several if isinstance(one, torch.Tensor))
