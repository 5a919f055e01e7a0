"""Docstrings and names of functions begin with a noun or a verb; no two classes share a name.

`names.toml` has the number of exceptions to each rule in each file. These numbers may only become
smaller: ``python -m tests.test_names`` lowers them to the exceptions that files still have.
"""

import ast
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXCEPTIONS = Path(__file__).with_name("names.toml")
PACKAGES = ("adapters", "conformance", "reference")
ALL = (*PACKAGES, "tests")

QUESTIONS = frozenset(["How", "Of", "Those", "What", "Where", "Which", "Whose"])
"""First words of a docstring after which a reader must guess what it is about."""

PREPOSITIONS = frozenset(
    ["at", "behind", "by", "for", "from", "in", "of", "on", "to", "under", "with", "without"]
)

LIBRARIES = frozenset(
    [
        "from_cli",
        "from_config",
        "from_hf_pretrained",
        "from_pretrained",
        "on_log",
        "on_train_begin",
        "to",
        "to_megatron_provider",
    ]
)
"""Names of functions that replace a library's functions of the same names."""

Trees = Mapping[str, ast.Module]
Rule = Callable[[Trees], Iterator[tuple[str, int, str]]]
"""A function that yields the file, the line and a complaint for each violation of a rule."""


def docstrings(trees: Trees) -> Iterator[tuple[str, int, str]]:
    """Yields the docstrings, also of attributes, that begin with a question word."""
    for file, node in _nodes(trees):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            words = node.value.value.split() if isinstance(node.value.value, str) else []
            if words and words[0] in QUESTIONS:
                yield file, node.lineno, f'"{" ".join(words[:8])} …" begins with "{words[0]}"'


def functions(trees: Trees) -> Iterator[tuple[str, int, str]]:
    """Yields the functions whose name begins with a preposition."""
    for file, node in _nodes(trees):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name not in LIBRARIES:
            first = node.name.lstrip("_").partition("_")[0]
            if first in PREPOSITIONS:
                yield file, node.lineno, f'`{node.name}` begins with "{first}"'


def classes(trees: Trees) -> Iterator[tuple[str, int, str]]:
    """Yields the classes that have the same name as another class."""
    found = [(file, node) for file, node in _nodes(trees) if isinstance(node, ast.ClassDef)]
    number = Counter(node.name for _, node in found)
    for file, node in found:
        if number[node.name] > 1:
            yield file, node.lineno, f"`{node.name}` is the name of {number[node.name]} classes"


RULES: dict[str, tuple[Rule, tuple[str, ...], str]] = {
    "docstrings": (docstrings, ALL, "begin with the noun that it is about, or with a verb"),
    "functions": (
        functions,
        PACKAGES,
        "name it by what it returns, a noun, or by what it does, a verb",
    ),
    "classes": (classes, PACKAGES, "give each of them a name of its own, or have one class"),
}
"""Each rule, with the folders to which it applies, and the way out."""


def _nodes(trees: Trees) -> Iterator[tuple[str, ast.AST]]:
    return ((file, node) for file, tree in trees.items() for node in ast.walk(tree))


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


def repository(folders: tuple[str, ...]) -> Trees:
    files = sorted(path for name in folders for path in (ROOT / name).rglob("*.py"))
    return {str(path.relative_to(ROOT)): parsed(path) for path in files}


def complaints(trees: Trees, name: str, allowed: Mapping[str, int]) -> list[str]:
    """Complaints about files with more exceptions to a rule than are allowed, or with fewer."""
    rule, _, way_out = RULES[name]
    found = [*rule(trees)]
    number = Counter(file for file, _, _ in found)
    more = {file for file in number if number[file] > allowed.get(file, 0)}
    return [
        *(f"{file}:{line}: {words}: {way_out}" for file, line, words in found if file in more),
        *(
            f"{file}: {EXCEPTIONS.name} allows {allowed[file]} exceptions for {name}, and it has"
            f" {number[file]}: lower the number, by python -m tests.test_names"
            for file in allowed
            if number[file] < allowed[file]
        ),
    ]


@pytest.mark.parametrize("name", RULES)
def test_names(name: str) -> None:
    allowed = tomllib.loads(EXCEPTIONS.read_text("utf-8"))[name]
    trees = repository(RULES[name][1])
    assert not (found := complaints(trees, name, allowed)), "\n".join(found)


BROKEN = {
    "one.py": '''
"""What is wrong."""
class Row:
    name: str
    """Whose it is."""
    """The end."""
    def of_group(self): ...
    def from_pretrained(self): ...
def _with_values(): ...
def offered(): ...
''',
    "other.py": "class Row: ...\nclass Rows: ...",
}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("docstrings", ["one.py:2: ", "one.py:5: "]),
        ("functions", ["one.py:9: `_with_values`", "one.py:7: `of_group`"]),
        ("classes", ["one.py:3: `Row`", "other.py:1: `Row`"]),
    ],
)
def test_each_rule_finds_what_breaks_it(name: str, expected: list[str]) -> None:
    trees = {file: ast.parse(text) for file, text in BROKEN.items()}
    found = complaints(trees, name, {})
    assert len(found) == len(expected)
    assert all(any(one.startswith(start) for one in found) for start in expected)
    assert not complaints(trees, name, Counter(start.partition(":")[0] for start in expected))


def test_more_exceptions_than_a_file_has_are_refused() -> None:
    [found] = complaints({}, "docstrings", {"gone.py": 2})
    assert found.startswith("gone.py: names.toml allows 2 exceptions for docstrings, and it has 0")


def lower() -> None:
    """Lower the allowed number of exceptions of each file to the number that it still has."""
    table = tomllib.loads(EXCEPTIONS.read_text("utf-8"))
    lines = [
        "# Exceptions to the rules of test_names.py by file: the numbers may only become smaller."
    ]
    for name, (rule, folders, _) in RULES.items():
        number = Counter(file for file, _, _ in rule(repository(folders)))
        left = {file: min(number[file], allowed) for file, allowed in table[name].items()}
        lines += ["", f"[{name}]", *(f'"{file}" = {one}' for file, one in left.items() if one)]
    EXCEPTIONS.write_text("\n".join(lines) + "\n", "utf-8")


if __name__ == "__main__":
    lower()
