"""Imports a framework from its source, on a machine without its GPU packages."""

from __future__ import annotations

import ast
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import os
import sys
import textwrap
import types
import typing
from abc import ABCMeta
from dataclasses import replace
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from adapters.contract.tables import read_imports

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from adapters.contract import Adapter, Description


class WrongSourceError(RuntimeError):
    """A framework was imported from a place other than its source."""


def import_from(package: str, folders: Iterable[Path]) -> types.ModuleType:
    """Import a package from the first of ``folders`` that has it, or the installed package.

    The folders precede installed packages, also for later imports. Raises `ImportError` if no
    folder has the package, and `WrongSourceError` if this process has already imported it from
    another place.
    """
    roots = [str(folder.resolve()) for folder in folders]
    if roots and importlib.machinery.PathFinder.find_spec(package, roots) is None:
        raise ImportError(f"there is no package {package} in {', '.join(roots)}")
    sys.path[:0] = [root for root in roots if root not in sys.path]
    importlib.invalidate_caches()
    module = importlib.import_module(package)
    found = (module.__file__ or str(next(iter(module.__path__)))) if module.__spec__ else ""
    if roots and not any(found.startswith(root) for root in roots):
        raise WrongSourceError(
            f"{package} was to come from {', '.join(roots)} and came from {found};"
            " run each source in a process of its own"
        )
    return module


def modules_of(package: str) -> Callable[[str], Any]:
    """A function that imports a module of a framework by its path below the package."""
    return lambda path: importlib.import_module(f"{package}.{path}")


def found(path: str) -> Any:
    """A module or one of its members, such as ``package.module:Class.method``; None if missing."""
    home, _, names = path.partition(":")
    try:
        module = importlib.import_module(home)
    except ModuleNotFoundError:
        return None
    return member(module, names) if names else module


def member(thing: Any, path: str) -> Any:
    """The member with a dotted path, such as ``Class.method`` of a module; None if missing."""
    for name in path.split("."):
        thing = getattr(thing, name, None)
    return thing


def add_names_of_newer_python(*names: str) -> None:
    """On Python below 3.12, replace names of `typing` by their versions in Python 3.12."""
    if sys.version_info < (3, 12):
        import typing_extensions

        vars(typing).update({name: getattr(typing_extensions, name) for name in names})


def name_classes_as_before() -> None:
    """Add the name of a class that transformers 5 has dropped but frameworks still import."""
    transformers: Any = importlib.import_module("transformers")
    if not hasattr(transformers, "AutoModelForVision2Seq"):
        transformers.AutoModelForVision2Seq = transformers.AutoModelForImageTextToText


def choices_in(code: Any, option: str) -> set[str]:
    """The strings that a function or a module compares with a variable named after an option.

    They are the choices of an option if a framework has no list of choices.
    """
    return _compared_texts(code).get(option, set())


@cache
def _compared_texts(code: Any) -> dict[str, set[str]]:
    """The strings that code compares with variables and attributes, by the name's last part."""
    texts: dict[str, set[str]] = {}
    for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(code)))):
        if isinstance(node, ast.Compare):
            name = ast.unparse(node.left).split(".")[-1]
            inside = chain.from_iterable(map(ast.walk, node.comparators))
            constants = (one.value for one in inside if isinstance(one, ast.Constant))
            texts.setdefault(name, set()).update(x for x in constants if isinstance(x, str))
    return texts


def choices_of(kind: Any) -> list[str]:
    """The strings that a type allows, if it is a `Literal` or contains one."""
    if get_origin(kind) is Literal:
        return [one for one in get_args(kind) if isinstance(one, str)]
    return [*chain.from_iterable(map(choices_of, get_args(kind)))]


def load(adapter: Adapter, source: Path | None) -> Description:
    """Load a framework in this process and describe it, with the packages that are stubbed."""
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")  # compiling takes longer than any step
    adapter.load(source)
    found = adapter.describe()
    return replace(found, stubs=tuple(dict.fromkeys([*found.stubs, *STUBBED])))


def stub_imports(package: str) -> None:
    """Stub the packages of the table `imports` beside a framework's record."""
    table = read_imports(package)
    stub_missing(table.missing)
    stub(table.stubbed)


def require(packages: Iterable[str], extra: str) -> None:
    """Raise `ImportError` with the names of all packages of an extra that are not installed."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise ImportError(
            f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed;"
            f" install the extra {extra}"
        )


STUBBED: list[str] = []
"""Names of the packages that are stubbed in this process."""


def stub_missing(packages: Sequence[str]) -> list[str]:
    """Stub the packages that are not installed, and return the stubs' names."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    stub(missing)
    return missing


def stub(packages: Sequence[str]) -> None:
    """Let ``import`` find an empty package under each of these names, installed or not.

    Any attribute of a stub, or of such an attribute, is a class without methods. So annotations,
    base classes, decorators and choices work, and every other use fails.
    """
    STUBBED.extend(packages)
    sys.meta_path.insert(0, _StubFinder(frozenset(packages)))


def provide(name: str, **attributes: object) -> None:
    """Let ``import`` find a package with only these attributes and without submodules."""
    package = types.ModuleType(name)
    package.__path__ = []
    package.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
    vars(package).update(attributes)
    sys.modules[name] = package
    _provided.add(name)


_provided: set[str] = set()
"""Names of packages that `provide` made in this process."""


def is_stub(thing: object) -> bool:
    """Whether an object is a stub package, or a class that a stub package made or provides."""
    if isinstance(thing, types.ModuleType):
        return isinstance(thing, _StubModule) or thing.__name__ in _provided
    kind = thing if isinstance(thing, type) else type(thing)
    return issubclass(kind, (_Stub, types.SimpleNamespace))


def _made_up(owner: object, name: str) -> type:
    """A new stub class, kept as an attribute of the stub from which it was requested."""
    stub = _StubType(name, (_Stub,), {})
    setattr(owner, name, stub)
    return stub


class _StubType(ABCMeta):  # lets a class also have an abstract base
    def __getattr__(cls, name: str) -> type:
        if name.startswith("_"):
            raise AttributeError(name)
        return _made_up(cls, name)


class _Stub(metaclass=_StubType):
    """Any attribute of a stub module: accepts any arguments and can only decorate a function."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        """Ignore the arguments."""

    def __class_getitem__(cls, of: object) -> type:
        """Be as generic as a package's class."""
        return cls

    @classmethod
    def __get_pydantic_core_schema__(cls, *_: object) -> dict[str, str]:
        """Be the type of a pydantic field that accepts any value."""
        return {"type": "any"}

    def __call__(self, decorated: object) -> object:
        if not callable(decorated):
            raise TypeError(f"{type(self).__name__} is a stub and cannot be called")
        return decorated


class _StubModule(types.ModuleType):
    __path__: list[str] = []  # noqa: RUF012 - as modules have it

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return _made_up(self, name)


class _StubFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, packages: frozenset[str]) -> None:
        self._packages = packages

    def find_spec(
        self, fullname: str, path: object = None, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        if any(fullname == name or fullname.startswith(f"{name}.") for name in self._packages):
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _StubModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Do nothing: the module is empty."""
