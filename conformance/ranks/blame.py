"""Decides who is to blame for an exception: the framework, which may have refused, or the adapter.

An adapter is made for some versions of its framework. If another version asks a stub for an
attribute that the stub lacks, or lacks an option that the adapter sets, the framework did nothing
wrong: the adapter does not support this version.

A deliberate error counts as a refusal only before training. Once a micro-batch of the job has been
trained, it counts as a crash, since it is then often about rows that the framework added itself.
"""

from __future__ import annotations

import ast
import builtins
import dis
import importlib.metadata
import inspect
import linecache
import sys
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.abc import InspectLoader
from types import CodeType
from typing import TYPE_CHECKING, Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from adapters.contract import Adapter
from adapters.contract.recorded import TRAINING
from adapters.toolkit.imports import is_stub
from conformance.findings.sanitize import sanitize, sanitized_traceback
from conformance.findings.verdict import Verdict
from conformance.ranks.messages import Raised
from conformance.sources.source import python_required

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import TracebackType

PASSES_CALLS_ON = "__tracebackhide__"
"""The local variable by which pytest hides a frame; here it marks functions that only pass calls
on, so that an exception raised below them is attributed to their caller."""

FEWEST_WORDS = 3
"""The fewest words of a deliberate error's message: ``f"{shape} {other}"`` explains nothing."""


def blame(error: BaseException, adapter: Adapter, source: Path | None) -> Raised:
    """Returns the verdict on an exception, with its words and place."""
    stack = _Stack(error, type(adapter))
    place = stack.place()
    return Raised(
        verdict=_verdict(error, stack),
        words=sanitize(telling_line(error) + _remedy(stack, source), source),
        place=None if place is None else sanitize(place, source),
        traceback=sanitized_traceback(error, source),
    )


def telling_line(error: BaseException) -> str:
    """Returns an exception's type and the first line of its message that has a letter in it."""
    kind = type(error)
    name = kind.__qualname__
    if kind.__module__ not in ("builtins", "__main__"):
        name = f"{kind.__module__}.{name}"
    lines = [line.strip() for line in str(error).splitlines()]
    telling = next((line for line in lines if any(map(str.isalpha, line))), "".join(lines[:1]))
    return f"{name}: {telling}" if telling else name


def _remedy(stack: _Stack, source: Path | None) -> str:
    """A hint for a missing package or a file that needs a newer Python; else empty."""
    error = stack.error
    if isinstance(error, ModuleNotFoundError) and error.name is not None:
        extras, own = _extras_with(error.name.partition(".")[0]), stack.adapter.name
        if canonicalize_name(own) in extras:
            extras = [canonicalize_name(own)]
        return f"; pip install 'rl-loss-conformance[{extras[0]}]'" if extras else ""
    if source is not None and stack.is_importing() and (required := python_required(source)):
        return f"; its pyproject.toml requires Python {required}, and {_this_python()}"
    return f"; {_this_python()}" if isinstance(error, SyntaxError) else ""


def _this_python() -> str:
    return f"this is Python {sys.version_info.major}.{sys.version_info.minor}"


def _extras_with(package: str) -> list[str]:
    """The extras of this project that require the distribution of an imported package."""
    name = canonicalize_name(package)
    names = {name, f"py{name}", f"{name}-core"}  # such as pyyaml for yaml
    requirements = map(Requirement, importlib.metadata.requires("rl-loss-conformance") or ())
    markers = [one.marker for one in requirements if canonicalize_name(one.name) in names]
    extras = importlib.metadata.metadata("rl-loss-conformance").get_all("Provides-Extra") or []
    return [
        extra for extra in extras if any(one and one.evaluate({"extra": extra}) for one in markers)
    ]


@dataclass(frozen=True)
class _Stack:
    """The frames of an exception that was raised by a job, or on loading a framework."""

    error: BaseException
    adapter: type[Adapter]

    @cached_property
    def entries(self) -> list[TracebackType]:
        """The frames, the innermost first, without functions that only pass calls on."""
        return [
            entry
            for entry in reversed([*_entries(self.error.__traceback__)])
            if PASSES_CALLS_ON not in entry.tb_frame.f_locals
        ]

    def is_of_framework(self, module: str) -> bool:
        """Whether a module is the framework's or, without a package, next to the adapter."""
        package = self.adapter.package
        return _is_in(module, self._homes if package is None else {package})

    def is_ours(self, module: str) -> bool:
        """Whether a module is the adapter's, or one that adapters share."""
        ours = _is_in(module, {"adapters", "conformance", *self._homes})
        return ours and not self.is_of_framework(module)

    def is_raised_by_ours(self) -> bool:
        """Whether the innermost frame, apart from those of libraries, is the adapter's."""
        modules = map(_module, self.entries)
        owned = (one for one in modules if self.is_ours(one) or self.is_of_framework(one))
        return self.is_ours(next(owned, "adapters"))

    def is_importing(self) -> bool:
        """Whether a module of the framework could not be imported."""
        modules = (_module(one) for one in self.entries if _function(one) == "<module>")
        return isinstance(self.error, SyntaxError) or any(map(self.is_of_framework, modules))

    def place(self) -> str | None:
        """The innermost line of the framework, or the function of the adapter that raised.

        A function has no line number, so that reports do not change with edits of adapters.
        """
        if self.is_raised_by_ours():
            ours = [entry for entry in self.entries if self.is_ours(_module(entry))]
            return f"{_file(ours[0])} ({_function(ours[0])})" if ours else None
        entry = next(one for one in self.entries if self.is_of_framework(_module(one)))
        return f"{_file(entry)}:{entry.tb_lineno} ({_function(entry)})"

    @cached_property
    def _homes(self) -> set[str]:
        """The modules of the adapter's classes, or their packages if `Adapter.package` is None."""
        classes = [one for one in self.adapter.__mro__ if issubclass(one, Adapter)]
        modules = {one.__module__ for one in classes if one is not Adapter}
        if self.adapter.package is not None:
            return modules
        return {module.rpartition(".")[0] or module for module in modules}


def _verdict(error: BaseException, stack: _Stack) -> Verdict:
    if _lacks_its_own_module(error, stack):
        return Verdict.CRASHED
    if isinstance(error, (ImportError, SyntaxError)) or stack.is_raised_by_ours():
        return Verdict.NOT_DRIVEN
    if _asked_too_much(error, stack):
        return Verdict.NOT_DRIVEN
    is_refusal = _is_deliberate(error, stack) and not TRAINING.has_begun
    return Verdict.REFUSED if is_refusal else Verdict.CRASHED


def _lacks_its_own_module(error: BaseException, stack: _Stack) -> bool:
    """Whether a function of the framework imports a module of the framework that does not exist.

    Imports at the top of a module do not count: they may need files that an installation generates.
    """
    if not isinstance(error, ModuleNotFoundError) or error.name is None:
        return False
    entry = stack.entries[0]
    is_its_own = stack.is_of_framework(_module(entry)) and stack.is_of_framework(error.name)
    return is_its_own and entry.tb_frame.f_code.co_name != "<module>"


def _asked_too_much(error: BaseException, stack: _Stack) -> bool:
    """Whether the framework asked for an attribute or a call that the adapter lacks."""
    if isinstance(error, AttributeError):
        return _is_made_by_ours(error.obj, error.name, stack)
    return isinstance(error, TypeError) and _was_called_wrongly(str(error), stack)


def _was_called_wrongly(words: str, stack: _Stack) -> bool:
    """Whether a function of the adapter's got arguments that it does not take.

    Python's message has the qualified name. If a patch has ended in the meantime, the name belongs
    to another function again, so the adapter's function is looked up in the adapter's modules.
    """
    name, is_call, _ = words.partition("() ")
    callee = _callee(stack.entries[0])
    if getattr(callee, "__qualname__", None) == name:
        return stack.is_ours(_module_of(callee))
    ours = [module for module in sys.modules if stack.is_ours(module)]
    return bool(is_call) and any(name in _functions(module) for module in ours)


def _functions(module: str) -> Iterator[str]:
    """The qualified names of all functions of a module, including nested functions."""
    loader = getattr(sys.modules[module], "__loader__", None)
    codes = [loader.get_code(module)] if isinstance(loader, InspectLoader) else []
    while codes:
        code = codes.pop()
        if code is not None:
            yield code.co_qualname
            codes += [one for one in code.co_consts if isinstance(one, CodeType)]


def _is_made_by_ours(thing: Any, attribute: str | None, stack: _Stack) -> bool:
    """Whether the adapter made an object: a stub, or an instance whose constructor was skipped."""
    if is_stub(thing) or stack.is_ours(_module_of(thing)):
        return True
    kind = type(thing)
    return stack.is_of_framework(_module_of(kind)) and attribute in _set_at_start(kind)


def _set_at_start(kind: type[Any]) -> frozenset[str]:
    """The attributes that constructors of a class assign, missing if no constructor ran."""
    constructors = [one.__dict__["__init__"] for one in kind.__mro__ if "__init__" in one.__dict__]
    return frozenset(
        instruction.argval
        for constructor in constructors
        if inspect.isfunction(constructor)
        for instruction in dis.get_instructions(constructor)
        if instruction.opname == "STORE_ATTR"
    )


def _is_deliberate(error: BaseException, stack: _Stack) -> bool:
    """Whether the framework raised an error deliberately, with a message that explains it."""
    entry = stack.entries[0]
    if not stack.is_of_framework(_module(entry)):
        return False
    words = [word for word in str(error).split() if any(map(str.isalpha, word))]
    return len(words) >= FEWEST_WORDS and any(
        isinstance(error, AssertionError)
        if isinstance(statement, ast.Assert)
        else isinstance(statement.exc, ast.Call)
        and ast.unparse(statement.exc.func).rpartition(".")[2] == type(error).__name__
        for statement in _statements(_file(entry))
        if statement.lineno <= entry.tb_lineno <= (statement.end_lineno or statement.lineno)
    )


@cache
def _statements(file: str) -> tuple[ast.Raise | ast.Assert, ...]:
    """All ``raise`` and ``assert`` statements of a file."""
    nodes = ast.walk(ast.parse("".join(linecache.getlines(file))))
    return tuple(node for node in nodes if isinstance(node, (ast.Raise, ast.Assert)))


def _callee(entry: TracebackType) -> Any:
    """The object that was being called where an exception was raised; None if that is unknown."""
    code, frame = entry.tb_frame.f_code, entry.tb_frame
    first, last, start, end = [*code.co_positions()][entry.tb_lasti // 2]
    if first is None or last is None or start is None or end is None:
        return None
    lines = [line.encode() for line in linecache.getlines(_file(entry))[first - 1 : last]]
    if not lines:
        return None
    lines[-1] = lines[-1][:end]
    lines[0] = lines[0][start:]
    try:
        call = ast.parse(b"".join(lines).decode(), mode="eval").body
    except (SyntaxError, UnicodeDecodeError):
        return None
    names = {**vars(builtins), **frame.f_globals, **frame.f_locals}
    return _resolved(call.func, names) if isinstance(call, ast.Call) else None


def _resolved(expression: ast.expr, names: dict[str, Any]) -> Any:
    """The value of a dotted name; None if it has none, or if the expression is something else."""
    if isinstance(expression, ast.Name):
        return names.get(expression.id)
    if isinstance(expression, ast.Attribute):
        with suppress(Exception):  # a property may raise anything
            return getattr(_resolved(expression.value, names), expression.attr)
    return None


def _module_of(thing: Any) -> str:
    """The name of a module, or of the module that defines a function or an object's class."""
    if inspect.ismodule(thing):
        return thing.__name__
    if not isinstance(thing, type) and not inspect.isroutine(thing):
        thing = type(thing)
    return str(getattr(inspect.unwrap(thing), "__module__", ""))


def _entries(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next


def _is_in(module: str, packages: set[str]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def _module(entry: TracebackType) -> str:
    return str(entry.tb_frame.f_globals.get("__name__", ""))


def _file(entry: TracebackType) -> str:
    return entry.tb_frame.f_code.co_filename


def _function(entry: TracebackType) -> str:
    return entry.tb_frame.f_code.co_qualname
