"""The lines of a framework that ask for an operation, read off the stack of Python."""

from __future__ import annotations

import sys
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import torch

from adapters.contract import Adapter
from conformance.findings.trace import Line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

OURS = ("adapters", "conformance", "tests")

LIBRARIES = frozenset(
    {*sys.stdlib_module_names, "torch", "numpy", "tensordict", "typing_extensions"}
    - {"__main__", "__mp_main__"}
)
"""Packages whose frames are passed by: a framework or its engine asked for what they do."""

BEGIN_BACKWARD = {"_engine_run_backward": "t_outputs", "custom_backward": "output"}
"""Functions of torch and Megatron that begin a backward pass, and their variable of its roots."""

DEEPEST = 8
"""How many lines of a stack are kept."""

READS_GRADIENT = ("adapters.toolkit.probe", "as_array")
"""The module and function by which adapters read the probe's gradient."""


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


def passes_by(adapter: Adapter) -> Callable[[str], bool]:
    """Whether frames of a module are ours, or of a library that others ask to do something.

    An adapter without a package is its own framework, with the modules next to its classes.
    """
    classes = [one for one in type(adapter).__mro__ if issubclass(one, Adapter)]
    modules = [one.__module__ for one in classes if one is not Adapter and not adapter.package]
    own = tuple(f"{module.rpartition('.')[0]}." for module in modules)

    @cache
    def is_passed_by(module: str) -> bool:
        if module.startswith(own):
            return False
        return module.partition(".")[0] in LIBRARIES or module.partition(".")[0] in OURS

    return is_passed_by


def asked(is_passed_by: Callable[[str], bool]) -> Asked:
    """Who asked for the operation that is being dispatched."""
    stack: list[Line] = []
    inside: tuple[Line, ...] = ()
    roots: tuple[torch.Tensor, ...] = ()
    reads_gradient, innermost = False, None
    for frame in _frames():
        module, code = frame.f_globals.get("__name__", ""), frame.f_code
        if code.co_name in BEGIN_BACKWARD and not roots:
            inside, roots = tuple(stack), _tensors(frame.f_locals[BEGIN_BACKWARD[code.co_name]])
        reads_gradient = reads_gradient or (module, code.co_name) == READS_GRADIENT
        is_of_file = not code.co_filename.startswith("<")
        if len(stack) < DEEPEST and is_of_file and not is_passed_by(module):
            stack.append(Line(code.co_filename, frame.f_lineno, code.co_name))
            innermost = innermost or frame
    return Asked(tuple(stack), inside, roots, reads_gradient, innermost)


def _frames() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _tensors(given: object) -> tuple[torch.Tensor, ...]:
    several = given if isinstance(given, (tuple, list)) else [given]
    return tuple(one for one in several if isinstance(one, torch.Tensor))
