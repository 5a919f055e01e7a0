"""The lines of a framework that ask for an operation, read off the stack of Python."""

from __future__ import annotations

import sys
import threading
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import TYPE_CHECKING, NamedTuple

import torch

from conformance.findings.trace import Line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import CodeType, FrameType

    from adapters.contract.job import Replacement

BEGIN_BACKWARD = {"_engine_run_backward": "t_outputs", "custom_backward": "output"}
"""Functions of torch and Megatron that begin a backward pass, and their variable of its roots."""

DEEPEST = 16
"""The most lines of a stack that are kept."""

READS_GRADIENT = "as_array"
"""The name of the functions of `adapters` by which the probe's gradient is read."""


class Function(NamedTuple):
    """The facts on the function of a frame by its code."""

    code: CodeType
    """Kept, so that no other one gets its identity."""

    is_passed_by: bool
    """Whether it is of a module that others ask to do something."""

    is_of_file: bool
    """Whether it was written in a file, and not made by a library such as `dataclasses`."""

    roots: str | None
    """Its variable of the roots of the backward pass that it begins, if it does."""

    reads_gradient: bool
    """Whether it reads the probe's gradient."""


@dataclass
class Functions:
    """Remembers functions by the identity of their code: to compare what it holds takes long."""

    is_passed_by: Callable[[str], bool]
    """Whether frames of a module are passed by."""

    silent: set[int] = field(default_factory=set)
    """The identities of the code of functions that are passed by and tell nothing: of most."""

    _known: dict[int, Function] = field(default_factory=dict)
    _lines: dict[tuple[int, int], Line] = field(default_factory=dict)
    """By the identity of their code and the instruction."""

    def of(self, frame: FrameType) -> Function:
        """The function of a frame; that of a constructor is of the module of its class."""
        code = frame.f_code
        known = self._known.get(id(code))
        if known is None:
            module, name = _module(frame), code.co_name
            known = self._known[id(code)] = Function(
                code,
                self.is_passed_by(module),
                not code.co_filename.startswith("<"),
                BEGIN_BACKWARD.get(name),
                name == READS_GRADIENT and module.startswith("adapters."),
            )
            if known.is_passed_by and not known.roots and not known.reads_gradient:
                self.silent.add(id(code))
        return known

    def line(self, frame: FrameType) -> Line:
        """The line that a frame is in, with the columns of what it evaluates."""
        code, instruction = frame.f_code, frame.f_lasti
        known = self._lines.get((id(code), instruction))
        if known is None:
            columns = _columns(code, instruction)
            known = Line(code.co_filename, frame.f_lineno, code.co_name, columns)
            self._lines[id(code), instruction] = known
        return known


class Asked(NamedTuple):
    """The lines that asked for an operation, with their frames.

    ``inside`` are the lines within the backward pass that is under way, such as those of a hook.
    """

    stack: tuple[Line, ...]
    inside: tuple[Line, ...]
    roots: tuple[torch.Tensor, ...]
    reads_gradient: bool
    frames: tuple[FrameType, ...]

    @property
    def variables(self) -> tuple[tuple[str, float], ...]:
        """The numbers that the innermost function has in variables, by name."""
        named = (item for frame in self.frames[:1] for item in frame.f_locals.items())
        return tuple((name, float(held)) for name, held in named if type(held) in (int, float))


def asked(functions: Functions, thread: int) -> Asked:
    """The lines that asked, in a traced thread, for the operation that is being dispatched.

    Gradients of CUDA tensors are computed in threads of autograd's own, while that thread waits.
    """
    stack: list[Line] = []
    inside: tuple[Line, ...] = ()
    roots: tuple[torch.Tensor, ...] = ()
    kept: list[FrameType] = []
    reads_gradient = False
    own = threading.get_ident() == thread
    frames = [sys._getframe(1)] if own else [sys._getframe(1), sys._current_frames()[thread]]
    for frame in chain.from_iterable(map(_upwards, frames)):
        if id(frame.f_code) in functions.silent:
            continue
        function = functions.of(frame)
        if function.roots and not roots:
            inside, roots = tuple(stack), _tensors(frame.f_locals[function.roots])
        reads_gradient = reads_gradient or function.reads_gradient
        if len(stack) < DEEPEST and function.is_of_file and not function.is_passed_by:
            stack.append(functions.line(frame))
            kept.append(frame)
    return Asked(tuple(stack), inside, roots, reads_gradient, tuple(kept))


def is_asked_for(replaced: Replacement, functions: Functions, thread: int) -> bool:
    """Whether the line of a replacement asks for the operation that is being dispatched."""
    line, *callers = asked(functions, thread).stack or [None]
    if line is None or (line.file, line.number) != (replaced.file, replaced.line):
        return False
    is_expression = None in (replaced.columns, line.columns) or replaced.columns == line.columns
    called_by = [(one.file, one.number) for one in callers[:1] if one is not None]
    return is_expression and replaced.caller in (None, *called_by)


def _module(frame: FrameType) -> str:
    """The module of a function; the constructor of a named tuple has one of its own."""
    module = str(frame.f_globals.get("__name__", ""))
    is_named_tuple = module.startswith("namedtuple_") and "_cls" in frame.f_locals
    return str(frame.f_locals["_cls"].__module__) if is_named_tuple else module


def _columns(code: CodeType, instruction: int) -> tuple[int, int] | None:
    """The columns of the expression of an instruction, if it is on one line."""
    positions = islice(code.co_positions(), instruction // 2, None)
    line, last, start, end = next(positions, (None,) * 4)
    return None if line != last or start is None or end is None else (start, end)


def _upwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _tensors(given: object) -> tuple[torch.Tensor, ...]:
    several = given if isinstance(given, (tuple, list)) else [given]
    return tuple(one for one in several if isinstance(one, torch.Tensor))
