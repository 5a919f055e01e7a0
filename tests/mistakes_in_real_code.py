"""Mistakes put into copies of frameworks' real code, and the causes or broken laws they must give.

``RL_LOSS_CONFORMANCE_SOURCES=FOLDER python -m tests.mistakes_in_real_code [NAME …]`` prints what
changes in the causes when each mistake is made; FOLDER has clones of miles, slime, prime_rl,
nemo_rl, open_instruct and roll.
"""

import ast
import importlib.util
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, fields
from pathlib import Path
from typing import Protocol

from adapters.frameworks import LISTED
from conformance.comparing.cause_changes import CauseChange, cause_changes
from conformance.comparing.diff import difference
from conformance.findings.report import Report
from conformance.findings.verdict import Verdict
from conformance.plan.checks import LAWFUL
from conformance.runs import registry
from conformance.sources.source import resolve
from tests import command
from tests.tables import table
from tests.toys import commit

CASES = (
    "fully_masked_sample",
    "odd_groups",
    "split_groups",
    "two_steps",
    "unequal_groups",
    "unequal_shards",
    "uneven_lengths",
)
"""Cases with empty samples, masked tokens, several steps, unequal groups, rollouts and shards."""

SLICED = ("dp1-cp1-mb2-thd", "dp2-cp1-mb1-thd", "dp1-cp2-mb1-thd", "dp1-cp4-mb2-thd")
"""Layouts that distinguish factors and denominators of ranks, slices and micro-batches."""


@dataclass(frozen=True)
class Edit:
    """Replaces one reading of a variable within a function, or within all functions of that name.

    ``reading`` is the number of the reading, counted from 1 in the order of the text.
    """

    file: str
    function: str
    variable: str
    reading: int
    by: str

    def apply(self, package: Path) -> None:
        """Change the file in a checkout's package."""
        path = package / self.file
        lines = path.read_text().splitlines(keepends=True)
        name = self._readings(ast.parse("".join(lines)))[self.reading - 1]
        line = lines[name.lineno - 1].encode()
        changed = line[: name.col_offset] + self.by.encode() + line[name.end_col_offset :]
        lines[name.lineno - 1] = changed.decode()
        path.write_text("".join(lines))

    def _readings(self, module: ast.Module) -> list[ast.Name]:
        names = {
            (node.lineno, node.col_offset): node
            for function in functions(module, self.function)
            for node in ast.walk(function)
            if isinstance(node, ast.Name)
            if node.id == self.variable and isinstance(node.ctx, ast.Load)
        }
        return [names[position] for position in sorted(names)]

    def line(self, package: Path) -> int:
        """The line that is changed."""
        module = ast.parse((package / self.file).read_text())
        return self._readings(module)[self.reading - 1].lineno


@dataclass(frozen=True)
class Rewording:
    """Replaces a text that occurs once in a function, such as an operator with its operands."""

    file: str
    function: str
    text: str
    by: str

    def apply(self, package: Path) -> None:
        """Change the file in a checkout's package."""
        path, start = package / self.file, self._start(package)
        source = path.read_text()
        path.write_text(source[:start] + self.by + source[start + len(self.text) :])

    def line(self, package: Path) -> int:
        """The line that is changed, or the first of several."""
        return (package / self.file).read_text()[: self._start(package)].count("\n") + 1

    def _start(self, package: Path) -> int:
        """The place of the text in the file."""
        source = (package / self.file).read_text()
        lines = source.splitlines(keepends=True)
        [start] = (
            len("".join(lines[: function.lineno - 1])) + body.index(self.text)
            for function in functions(ast.parse(source), self.function)
            if (body := "".join(lines[function.lineno - 1 : function.end_lineno])).count(self.text)
            == 1
        )
        return start


def functions(module: ast.Module, name: str) -> Iterator[ast.FunctionDef]:
    """Yield the functions of a name."""
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef) and node.name == name:
            yield node


@dataclass(frozen=True)
class Mistake:
    """A mistake in a framework's code, and the only cause that it must give."""

    name: str
    cause: str
    edit: Edit | Rewording
    _: KW_ONLY
    framework: str
    engine: str = "megatron"
    checks: str = "weights,metric,auxiliary"
    modes: str = "sample_mean,token_mean"
    layouts: Sequence[str] = SLICED
    condition: Sequence[str] = ()
    left_out: str = "nothing"
    """An expression for findings that are not made, such as `dp2 and unequal_groups`."""

    @property
    def arguments(self) -> list[str]:
        """The options of a run that sees the mistake."""
        return [
            f"--engine={self.engine}",
            f"--checks={self.checks}",
            f"--modes={self.modes}",
            *(f"--layout={layout}" for layout in self.layouts),
            f"-k=({' or '.join(CASES)}) and not ({self.left_out})",
        ]


def _read(kind: str) -> Iterator[Mistake]:
    """Yields mistakes of the table, each with the fields that runs of its framework share."""
    all_of_them = table("mistakes_in_real_code.toml")
    for entry in all_of_them[kind]:
        run, edit = all_of_them["run"][entry.pop("run")], entry.pop("edit")
        kind_of_edit = Edit if len(edit) == len(fields(Edit)) else Rewording
        yield Mistake(edit=kind_of_edit(*edit), **{**run, **entry})


MISTAKES = tuple(_read("mistake"))

TRACED = tuple(_read("traced"))
"""Mistakes that give several causes; only whether their lines are found is tested."""

OF_LAWS = tuple(_read("law"))
"""Mistakes that break laws: ``name`` has the laws, joined by ``+``, ``cause`` their mistake."""

INSTALLED = [name for name, one in LISTED.items() if not one.source]
"""Frameworks that an extra installs."""

RELEASED = {name: one.source for name, one in LISTED.items() if one.source.startswith("pypi:")}
"""The sources of frameworks that are fetched without their dependencies."""


class OfAnEngine(Protocol):
    """A change of a framework's code, which is run on one of its engines."""

    framework: str
    engine: str


def original(mistake: OfAnEngine) -> Path:
    """The folder that contains the framework's unchanged package."""
    adapter = registry.create(mistake.framework, mistake.engine)
    if mistake.framework in INSTALLED:
        spec = importlib.util.find_spec(adapter.package)
        assert spec.origin is not None
        return Path(spec.origin).parents[1]
    release = RELEASED.get(mistake.framework)
    checkout = f"{os.environ.get(command.SOURCES)}/{mistake.framework}@main"
    path = resolve(adapter, release or checkout).path
    assert path is not None
    return path


def copied(mistake: OfAnEngine, folder: Path) -> Path:
    """A checkout of the framework's package, without the mistake."""
    for part in [*packages(mistake), *_beside(mistake)]:
        shutil.copytree(
            original(mistake) / part, folder / part, ignore=shutil.ignore_patterns("__pycache__")
        )
    commit(folder)
    return folder


def packages(mistake: OfAnEngine) -> list[Path]:
    """The folders of the framework's package in a checkout, the one that is changed first."""
    adapter = registry.create(mistake.framework, mistake.engine)
    return [Path(root) / adapter.package for root in adapter.roots]


def _beside(mistake: OfAnEngine) -> list[Path]:
    """Other folders of the framework's repository that its adapter reads."""
    tree = map(Path, registry.create(mistake.framework, mistake.engine).tree)
    held = {part for package in packages(mistake) for part in (package, *package.parents)}
    return [part for part in tree if part not in held and (original(mistake) / part).is_dir()]


def changes(mistake: Mistake, folder: Path) -> list[CauseChange]:
    """The change that the mistake makes to the causes of a run."""
    source = copied(mistake, folder / "source")
    before = report(mistake, source, folder)
    mistake.edit.apply(source / packages(mistake)[0])
    after = report(mistake, source, folder)
    return cause_changes(difference(before, after))


def broken_laws(mistake: Mistake, folder: Path) -> set[str]:
    """The laws that are broken with the mistake, in findings that break none without it."""
    source = copied(mistake, folder / "source")
    before = _laws_of_broken(report(mistake, source, folder))
    mistake.edit.apply(source / packages(mistake)[0])
    after = _laws_of_broken(report(mistake, source, folder))
    return {law for finding, law in after.items() if finding not in before}


def _laws_of_broken(found: Report) -> dict[str, str]:
    """The law that each wrong finding shows to be broken, by the finding's id."""
    laws = {spec.slug: spec.law.name for spec in LAWFUL if spec.law}
    wrong = (one for one in found.findings if one.verdict in (Verdict.ADVICE, Verdict.MISMATCH))
    return {one.id: laws[one.identity.slug] for one in wrong}


def report(mistake: Mistake, source: Path, folder: Path) -> Report:
    """The report on a framework's code in a folder."""
    result = command.run(folder, mistake.framework, f"--source={source}", *mistake.arguments)
    assert result.report.complete, result.output
    return result.report


def main(names: Sequence[str]) -> None:
    """Print the changes that mistakes make; all mistakes if no name is given."""
    for mistake in MISTAKES:
        if mistake.name in (names or [mistake.name]):
            print(f"{mistake.name}: expected {mistake.cause}", flush=True)
            with tempfile.TemporaryDirectory(prefix="rl-loss-mistakes-") as folder:
                for change in changes(mistake, Path(folder)):
                    print(f"  {change.fate}: {change.statement} ({change.findings})", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
