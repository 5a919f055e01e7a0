"""Runs the functions of other versions of files in place of the imported ones.

A function keeps its identity, so that all callers run the other version; only its code and the
defaults of its parameters change. Functions and constants that only the other version of a module
has are added to the module. Other statements that run on import, such as those of classes, stay as
they were imported.
"""

from __future__ import annotations

import ast
import tokenize
from contextlib import ExitStack
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

from conformance.ranks.recording.editing import codes_in, functions_in

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType, FunctionType

    from adapters.contract.job import FileVersions

Definition = ast.FunctionDef | ast.AsyncFunctionDef


class Swapping:
    """A context in which the functions of some files are those of other versions."""

    held: ClassVar[tuple[tuple[float, ...], ...]] = ()
    """Empty, since no values are replaced; see `Replacing.held`."""

    def __init__(self, versions: FileVersions) -> None:
        self._versions = versions
        self._resources = ExitStack()

    def __enter__(self) -> Swapping:
        files = [file for file, _ in self._versions.texts]
        loaded = [*functions_in(files)]
        with self._resources:  # if a version cannot be loaded, nothing stays swapped
            for file, text in self._versions.texts:
                functions = [one for one in loaded if one.__code__.co_filename == file]
                if functions:
                    self._swap(functions, _version(file, text))
            self._resources = self._resources.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._resources.close()

    def _swap(self, functions: list[FunctionType], version: _Version) -> None:
        names = functions[0].__globals__
        for statement in version.added:
            self._restored_later(names, *version.names_of(statement))
            exec(compile(ast.Module([statement], []), version.file, "exec"), names)
        for function in functions:
            code = version.codes.get(function.__code__.co_qualname)
            if code is not None and code.co_freevars == function.__code__.co_freevars:
                self._set(function, "__code__", code)
                self._set_defaults(function, version.definitions.get(code.co_qualname))

    def _restored_later(self, names: dict[str, Any], *changed: str) -> None:
        for name in changed:
            if name in names:
                self._resources.callback(names.__setitem__, name, names[name])
            else:
                self._resources.callback(names.pop, name, None)

    def _set(self, function: FunctionType, name: str, value: object) -> None:
        self._resources.callback(setattr, function, name, getattr(function, name))
        setattr(function, name, value)

    def _set_defaults(self, function: FunctionType, definition: Definition | None) -> None:
        """Give a function the defaults of its other version."""
        if definition is None:
            return

        def value(expression: ast.expr) -> object:
            return eval(compile(ast.Expression(expression), "", "eval"), function.__globals__)

        given = definition.args
        by_name = {
            argument.arg: value(default)
            for argument, default in zip(given.kwonlyargs, given.kw_defaults, strict=True)
            if default is not None
        }
        self._set(function, "__defaults__", tuple(map(value, given.defaults)) or None)
        self._set(function, "__kwdefaults__", by_name or None)


class _Version:
    """The parts of a file's other version that differ from the imported one."""

    def __init__(self, file: str, text: str) -> None:
        with tokenize.open(file) as opened:
            imported = ast.parse(opened.read(), file)
        module = ast.parse(text, file)
        self.file = file
        before = dict(_definitions(imported))
        changed = {
            name: one
            for name, one in _definitions(module)
            if name in before and ast.dump(one) != ast.dump(before[name])
        }
        self.definitions = changed
        """The changed functions and methods, by qualified name."""

        self.codes: dict[str, CodeType] = {
            code.co_qualname: code
            for code in codes_in(compile(module, file, "exec", dont_inherit=True))
            if code.co_qualname.partition(".<locals>")[0] in changed
        }
        """The code of changed functions and of the functions inside them, by qualified name."""

        same = {ast.dump(one) for one in imported.body}
        self.added = [
            one
            for one in module.body
            if (isinstance(one, ast.Assign) and ast.dump(one) not in same)
            or (isinstance(one, Definition) and one.name not in before)
        ]
        """The changed assignments and the further functions of the module."""

    @staticmethod
    def names_of(statement: ast.stmt) -> Iterator[str]:
        """Yield the names that a statement of the module defines."""
        if isinstance(statement, Definition):
            yield statement.name
        for target in getattr(statement, "targets", ()):
            yield from (one.id for one in ast.walk(target) if isinstance(one, ast.Name))


@lru_cache(maxsize=64)
def _version(file: str, text: str) -> _Version:
    return _Version(file, text)


def _definitions(
    outer: ast.Module | ast.ClassDef, prefix: str = ""
) -> Iterator[tuple[str, Definition]]:
    """Yield the functions of a module and the methods of its classes, by qualified name."""
    for one in outer.body:
        if isinstance(one, Definition):
            yield f"{prefix}{one.name}", one
        elif isinstance(one, ast.ClassDef):
            yield from _definitions(one, f"{prefix}{one.name}.")
