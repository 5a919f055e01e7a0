"""Mutates the oracle and the judge, and says which mutants the tests let live.

The tests run in a copy of the project. In the copy, properties are written without decorators, as
``size = property(_size)``, because mutmut does not mutate decorated functions.
"""

import ast
import json
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from mutmut.mutation.diff_apply import get_diff_for_mutant

ROOT = Path(__file__).parents[2]

COPIED = ("reference", "conformance", "adapters", "tests", "reports", "pyproject.toml")

PROPERTIES = ("property", "cached_property")

SURVIVED = (0, 33, None)
"""mutmut's exit codes for mutants that no test notices, that no test runs, or that were not run."""


def copy(folder: Path) -> None:
    """Copy the project to a folder, with its properties undecorated."""
    for name in COPIED:
        place = folder / name
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, place, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, place)
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    for name in settings["tool"]["mutmut"]["only_mutate"]:
        path = folder / name
        path.write_text(undecorated(path.read_text(encoding="utf-8")), encoding="utf-8")


def undecorated(source: str) -> str:
    """The module with each property as a function with an underscore, and an assignment."""
    lines = source.splitlines()
    for function in sorted(_properties(source), key=lambda function: -function.lineno):
        (decorator,) = function.decorator_list
        assert isinstance(decorator, ast.Name)
        name = function.name
        lines.insert(function.end_lineno or 0, f"\n    {name} = {decorator.id}(_{name})")
        line = function.lineno - 1
        lines[line] = lines[line].replace(f"def {name}(", f"def _{name}(")
        del lines[decorator.lineno - 1]
    return "\n".join(lines) + "\n"


def _properties(source: str) -> Iterator[ast.FunctionDef]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef) and len(node.decorator_list) == 1:
            decorator = node.decorator_list[0]
            if isinstance(decorator, ast.Name) and decorator.id in PROPERTIES:
                yield node


def report(folder: Path) -> Iterator[str]:
    """The table, and each surviving mutant with its change."""
    yield "| file | mutants | killed | survived |\n|---|---|---|---|"
    survivors: dict[str, list[str]] = {}
    total: Counter[str] = Counter()
    for meta in sorted(folder.rglob("mutants/**/*.meta")):
        codes = json.loads(meta.read_text(encoding="utf-8"))["exit_code_by_key"]
        if not codes:
            continue
        name = str(meta.relative_to(folder / "mutants").with_suffix(""))
        survivors[name] = [mutant for mutant, code in codes.items() if code in SURVIVED]
        counts = {"mutants": len(codes), "survived": len(survivors[name])}
        total.update(counts)
        yield _row(name, counts)
    yield _row("all", total)
    for name, mutants in survivors.items():
        for mutant in mutants:
            yield f"\n{mutant}\n{_change(folder, name, mutant)}"


def _row(name: str, counts: dict[str, int]) -> str:
    mutants, survived = counts["mutants"], counts["survived"]
    killed = mutants - survived
    return f"| {name} | {mutants} | {killed} ({killed / mutants:.1%}) | {survived} |"


def _change(folder: Path, name: str, mutant: str) -> str:
    source = (folder / "mutants" / name).read_text(encoding="utf-8")
    lines = get_diff_for_mutant(mutant, source=source, path=name).splitlines()
    return "\n".join(
        line for line in lines if line[:1] in "+-" and not line.startswith(("+++", "---"))
    )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="rl-loss-mutation-") as place:
        copy(Path(place))
        run = [sys.executable, "-m", "mutmut", "run", *sys.argv[1:]]
        subprocess.run(run, cwd=place, check=False, stdout=subprocess.DEVNULL)
        print(*report(Path(place)), sep="\n")
