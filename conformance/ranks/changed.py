"""Records which changed statements of a framework a process runs.

A file with changed lines is compiled with additional calls: before each changed statement, a call
records the statement. Line and column numbers stay the same, so tracebacks and traces are not
affected.
"""

from __future__ import annotations

import ast
import builtins
import importlib.abc
import importlib.machinery
import io
import json
import os
import sys
import tokenize
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from importlib.machinery import ModuleSpec
    from types import CodeType

VARIABLE = "_RL_LOSS_CONFORMANCE_CHANGED"

NOTE = "_rl_loss_conformance_note"
"""The name of the builtin function that is called before each changed statement."""

NO_CODE = (
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
    *(tokenize.ENCODING, tokenize.ENDMARKER),
)


class Place(NamedTuple):
    """The changed lines of one statement."""

    file: str
    first: int
    last: int


_ran: set[Place] = set()


def drain() -> frozenset[Place]:
    """Return the changed statements that this process has run since the last call."""
    ran = frozenset(_ran)
    _ran.clear()
    return ran


def announce(lines: Mapping[str, Sequence[int]]) -> None:
    """Pass the changed lines of files, by absolute path, to processes that this one starts."""
    os.environ[VARIABLE] = json.dumps({name: [*numbers] for name, numbers in lines.items()})


def announced() -> str:
    """The changed lines that this process announces, or was started with."""
    return os.environ.get(VARIABLE, "{}")


def note_all_of(told: str) -> None:
    """Record the statements on these lines when they run, in modules imported from now on."""
    lines = {name: {*several} for name, several in json.loads(told).items()}
    finder = _Finder(lines)
    if lines and finder not in sys.meta_path:
        setattr(builtins, NOTE, _note)
        sys.meta_path.insert(0, finder)


def _note(file: str, first: int, last: int) -> None:
    _ran.add(Place(file, first, last))


def marks(path: Path, lines: Iterable[int]) -> Marks:
    """The changed statements of a file; none if this Python version cannot parse it."""
    found = Marks(str(path), {*lines})
    with suppress(OSError, SyntaxError):
        found.marked(path.read_bytes())
    return found


class Marks:
    """Puts calls before the changed statements of one file."""

    def __init__(self, file: str, lines: set[int]) -> None:
        self._file = file
        self._lines = lines
        self.places: list[Place] = []
        """The changed statements inside functions; all other statements run on import."""

        self.is_of_module = False
        """Whether a changed statement runs on import, and is not itself an import."""

    def marked(self, source: bytes) -> ast.Module:
        """The syntax tree of the file with calls before changed statements."""
        tree = ast.parse(source, self._file)
        self._lines = self._lines & _lines_of_code(source)
        tree.body = [*self._block(tree.body, is_in_function=False)]
        return ast.fix_missing_locations(tree)

    def _block(
        self, body: Sequence[ast.stmt], *, is_in_function: bool, header: set[int] | None = None
    ) -> Iterator[ast.stmt]:
        """Yield a block's statements, with calls for changed ones and for a changed ``header``."""
        for statement in body:
            changed = self._own_lines(statement) & self._lines
            if _is_docstring(statement):
                yield statement
                continue
            if header:
                yield self._call(header, statement)
                header = None
            is_definition = isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef))
            if changed and is_in_function and not is_definition:
                yield self._call(changed, statement)
            elif changed and not is_definition and not _imports(statement):
                self.is_of_module = True
            self._mark_inside(statement, changed, is_in_function=is_in_function)
            yield statement

    def _mark_inside(self, statement: ast.stmt, changed: set[int], *, is_in_function: bool) -> None:
        is_definition = isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef))
        within = is_definition or (is_in_function and not isinstance(statement, ast.ClassDef))
        for owner, name, block in _blocks(statement):
            header = changed if is_definition else None
            setattr(owner, name, [*self._block(block, is_in_function=within, header=header)])

    def _own_lines(self, statement: ast.stmt) -> set[int]:
        """The lines of a statement that are in no nested statement."""
        own = _lines(statement)
        for _, _, block in _blocks(statement):
            for inner in block:
                own -= _lines(inner)
        return own

    def _call(self, changed: set[int], before: ast.stmt) -> ast.stmt:
        place = Place(self._file, min(changed), max(changed))
        self.places.append(place)
        function = ast.Name(id=NOTE, ctx=ast.Load())
        given: list[ast.expr] = [ast.Constant(value) for value in place]
        call = ast.Expr(ast.Call(func=function, args=given, keywords=[]))
        for node in ast.walk(call):
            ast.copy_location(node, before)
        return call


def _blocks(statement: ast.AST) -> Iterator[tuple[ast.AST, str, list[ast.stmt]]]:
    """Yield each block directly inside a statement, with the node and field that contain it."""
    for name, value in ast.iter_fields(statement):
        if not isinstance(value, list):
            continue
        if value and isinstance(value[0], ast.stmt):
            yield statement, name, value
        for one in value:
            if isinstance(one, (ast.excepthandler, ast.match_case)):
                yield from _blocks(one)


def _lines(statement: ast.stmt) -> set[int]:
    decorators = getattr(statement, "decorator_list", ())
    first = min([statement.lineno, *(one.lineno for one in decorators)])
    return {*range(first, (statement.end_lineno or first) + 1)}


def _lines_of_code(source: bytes) -> set[int]:
    tokens = tokenize.tokenize(io.BytesIO(source).readline)
    return {
        line
        for token in tokens
        if token.type not in NO_CODE
        for line in range(token.start[0], token.end[0] + 1)
    }


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _imports(statement: ast.stmt) -> bool:
    return isinstance(statement, (ast.Import, ast.ImportFrom))


class _Finder(importlib.abc.MetaPathFinder):
    """A finder for modules of changed files, which comes before all other finders."""

    def __init__(self, lines: Mapping[str, set[int]]) -> None:
        self._lines = lines
        self._stems = {Path(name).stem for name in lines} | {
            Path(name).parent.name for name in lines
        }

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Finder) and other._lines == self._lines

    __hash__ = None  # type: ignore[assignment]

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: Any = None
    ) -> ModuleSpec | None:
        if fullname.rpartition(".")[2] not in self._stems:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.origin is None:
            return None
        file = os.path.realpath(spec.origin)
        if file in self._lines:
            spec.loader = _MarkingLoader(fullname, spec.origin, file, self._lines[file])
        return spec if file in self._lines else None


class _MarkingLoader(importlib.machinery.SourceFileLoader):
    def __init__(self, fullname: str, path: str, file: str, lines: set[int]) -> None:
        super().__init__(fullname, path)
        self._file = file
        self._lines = lines

    def get_code(self, fullname: str) -> CodeType | None:
        """Compile the source with calls, without a bytecode cache."""
        path = self.get_filename(fullname)
        tree = Marks(self._file, self._lines).marked(self.get_data(path))
        code: CodeType = compile(tree, path, "exec", dont_inherit=True)
        return code
