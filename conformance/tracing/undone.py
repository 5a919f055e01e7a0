"""Proves which changes of a version are a cause, by runs in which changes are undone.

A smallest part of all changes is found whose undoing makes all findings conform, by delta debugging
(Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", 2002, algorithm ddmin).
"""

from __future__ import annotations

import ast
import io
import math
import re
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING

from adapters.contract.job import FileVersions
from conformance.explain.conditions.wording import counted
from conformance.findings.trace import Line
from conformance.sources.changes import HUNK
from conformance.tracing.edits.statements import statements
from conformance.tracing.source import functions_of, is_at
from conformance.tracing.suspects.reasons import Suspect, extent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from conformance.tracing.placed import OrdinaryRun
    from conformance.tracing.trace import Trace
    from conformance.tracing.trials import Trials

MOST_ALONE = 40
"""The most changes that are undone one by one if undoing all of them does not help."""


@dataclass(frozen=True)
class ChangedLines:
    """Lines of a file that differ from its base: ``after`` replaced ``before``."""

    file: str
    first: int
    """The number of the first line of ``after`` or, if it is empty, of the line behind."""

    before: tuple[str, ...]
    after: tuple[str, ...]

    @property
    def lines(self) -> set[tuple[str, int]]:
        """The changed lines, or the line behind removed lines, each with the file."""
        return {(self.file, self.first + number) for number in range(len(self.after) or 1)}

    def line(self, suspected: Iterable[Line]) -> Line:
        """The first suspected line of the change, or else its first line that is not empty."""
        inside = [one for one in suspected if (one.file, one.number) in self.lines]
        if inside:
            return inside[0]
        filled = (n for n, text in enumerate(self.after, self.first) if text.strip())
        number = next(filled, self.first)
        around = [one for one in functions_of(self.file) if is_at(one, number)]
        return Line(self.file, number, around[-1].name if around else "<module>")

    @property
    def words(self) -> str:
        """The undone change: the line of the base, or the numbers of changed lines."""
        before, after = (counted(len(several), "line") for several in (self.before, self.after))
        if not self.before:
            return f"without the {after} that the base lacks"
        if len(self.before) == 1:
            return f"with `{self.before[0].strip()}` as in the base"
        return f"with {before} of the base instead of {after}"


@dataclass(frozen=True)
class Changes:
    """The changes of a version; ``hunks`` has those of each file, by absolute path."""

    hunks: Mapping[str, str]
    _proven: list[Sequence[ChangedLines]] = field(default_factory=list)
    """The changes that are proven for earlier causes; they are often the cause of others."""

    def proven(self, trials: Trials, trace: Trace, runs: Sequence[OrdinaryRun]) -> list[Suspect]:
        """The lines of the changes that are a cause; empty if undoing changes shows none.

        Changes are proven if all findings conform once they are undone, and if the other changes
        do not suffice. If the base cannot run the step, changes are undone one by one.

        Raises:
            ProofTimeOverError: no time was left.
        """
        undoing, files = _Undoing(trials, runs), files_of(trace)
        every = [*chain.from_iterable(changes(file, text) for file, text in self.hunks.items())]
        of_files = [one for one in every if one.file in files]
        sufficing = filter(undoing.suffices, filter(None, (*self._proven, of_files, every)))
        found = smallest(next(sufficing, ()), undoing.suffices)
        if not found and not any(map(undoing.runs_with, (of_files, every))):
            alone = ([one] for one in nearest(of_files, trace))
            found = next(filter(undoing.suffices, islice(alone, MOST_ALONE)), ())
        others = [one for one in every if one not in found]
        if not found or (others and undoing.suffices(others)):
            return []
        self._proven.append(found)
        suspected = [one.line for one in trace.suspects]
        also = f", together with {counted(len(found) - 1, 'other change')}" if found[1:] else ""
        return [
            Suspect(
                one.line(suspected),
                f"proven: {one.words}{also}, {extent(len(runs))}",
                f"what is right {one.words}{also}",
            )
            for one in found
        ]


def files_of(trace: Trace) -> set[str]:
    """The files whose lines a traced step runs."""
    graph = trace.graph
    ran = {line.file for node in graph.nodes() for line in graph.operation(node).stack}
    return {str(Path(file).resolve()) for file in ran}


def nearest(several: Sequence[ChangedLines], trace: Trace) -> list[ChangedLines]:
    """The changes of statements that may be wrong, best first; see `statements`."""
    found: dict[ChangedLines, None] = {}
    for statement in statements(trace):
        first, last = statement.unit.lineno, statement.unit.end_lineno or 0
        of_statement = {(statement.line.file, number) for number in range(first, last + 1)}
        found |= dict.fromkeys(one for one in several if not of_statement.isdisjoint(one.lines))
    return [*found]


NO_CHANGES = Changes({})
"""The changes of a version that is compared with no other."""


def changes(file: str, hunks: str) -> Iterator[ChangedLines]:
    """Yield the changes of a file, given its hunks; lines that replace as many are split."""
    for hunk in re.split(r"^(?=@@ )", hunks, flags=re.MULTILINE):
        header, *lines = [*io.StringIO(hunk)] or [""]
        if (found := HUNK.match(header)) is None:
            continue
        first = int(found[1]) + (found[2] == "0")  # a hunk without lines is behind its line
        before, after = (tuple(one[1:] for one in lines if one[0] == sign) for sign in "-+")
        if len(before) != len(after):
            yield ChangedLines(file, first, before, after)
            continue
        for number, pair in enumerate(zip(before, after, strict=True), first):
            yield ChangedLines(file, number, pair[:1], pair[1:])


def undone(several: Sequence[ChangedLines]) -> FileVersions:
    """The versions of the changed files in which some changes are undone."""
    of_files: dict[str, list[ChangedLines]] = defaultdict(list)
    for one in several:
        of_files[one.file].append(one)
    return FileVersions(tuple((file, _text(file, of_file)) for file, of_file in of_files.items()))


def _text(file: str, several: Sequence[ChangedLines]) -> str:
    lines = [*io.StringIO(Path(file).read_text())]
    for one in sorted(several, key=lambda change: change.first, reverse=True):
        lines[one.first - 1 : one.first - 1 + len(one.after)] = one.before
    return "".join(lines)


@dataclass(frozen=True)
class _Undoing:
    """Tells whether all findings of a cause conform once some changes are undone."""

    trials: Trials
    runs: Sequence[OrdinaryRun]

    def suffices(self, several: Sequence[ChangedLines]) -> bool:
        """Whether all findings conform once some changes are undone."""
        versions = undone(several)
        return _is_code(versions) and all(self.trials.conforms(run, versions) for run in self.runs)

    def runs_with(self, several: Sequence[ChangedLines]) -> bool:
        """Whether the first finding's step runs once some changes are undone."""
        versions = undone(several)
        return _is_code(versions) and self.trials.ran(self.runs[0], replaced=versions) is not None


def _is_code(versions: FileVersions) -> bool:
    """Whether files can be parsed, which they may not with a part of a change undone."""
    try:
        for _, text in versions.texts:
            ast.parse(text)
    except SyntaxError:
        return False
    return True


def smallest(
    several: Sequence[ChangedLines], suffices: Callable[[Sequence[ChangedLines]], bool]
) -> Sequence[ChangedLines]:
    """A smallest part that suffices, of several changes which suffice together or are none."""
    parts = 2
    while len(several) > 1:
        size = math.ceil(len(several) / parts)
        split = [several[start : start + size] for start in range(0, len(several), size)]
        rests = ([one for one in several if one not in part] for part in split if parts > 2)
        found = next(filter(suffices, chain(split, rests)), None)
        if found is not None:
            parts = 2 if found in split else max(parts - 1, 2)
            several = found
        elif parts >= len(several):
            break
        else:
            parts = min(2 * parts, len(several))
    return several
