"""The changed statements that a process runs."""

import importlib
import inspect
import sys
from pathlib import Path

import pytest

from conformance.ranks import changed

SOURCE = '''"""A module."""
import os

X = 1


def f(a,
      b=2):
    """A function."""
    # a comment
    if a:
        x = 1
        # another
        y = (1 +
             2)
    elif b:
        y = 3
    else:
        y = 4
    try:
        z = 1
    except ValueError:
        z = 2
    return y


class C:
    n: int = 3

    def g(self):
        return 1
'''

LINES = len(SOURCE.splitlines())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "looked_at.py"
    file.write_text(SOURCE)
    return file


@pytest.mark.parametrize(
    ("lines", "statements"),
    [
        ([1, 2, 4], []),  # statements that run on import
        ([8], [(8, 8)]),
        ([9, 10, 13], []),  # docstring and comments
        ([12], [(12, 12)]),
        ([15], [(15, 15)]),
        ([16], [(16, 16)]),
        ([11, 12], [(11, 11), (12, 12)]),
        ([23, 24], [(23, 23), (24, 24)]),
        ([28, 30], [(30, 30)]),
        ([31], [(31, 31)]),
    ],
)
def test_statements_in_functions_have_places(
    path: Path, lines: list[int], statements: list[tuple[int, int]]
) -> None:
    assert [place[1:] for place in changed.marks(path, lines).places] == statements


def test_statements_that_run_on_import_are_told_from_imports_and_words(path: Path) -> None:
    found = [line for line in range(1, LINES + 1) if changed.marks(path, [line]).is_of_module]

    assert found == [4, 27, 28]


def test_what_a_process_runs_is_noted_and_its_source_stays(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    monkeypatch.syspath_prepend(path.parent)
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    changed.announce({str(path): [*range(1, LINES + 1)]})
    changed.note_all_of(changed.announced())
    monkeypatch.delenv(changed.VARIABLE)
    module = importlib.import_module("looked_at")
    changed.drain()

    assert module.f(1) == 3
    assert [place.first for place in sorted(changed.drain())] == [7, 11, 12, 14, 20, 21, 24]
    assert module.f(0, 0) == 4
    assert 19 in {place.first for place in changed.drain()}
    assert changed.drain() == frozenset()
    assert inspect.getsource(module.C.g).strip().endswith("return 1")
    assert not [*path.parent.glob("__pycache__/*")]
