"""A difference between two reports as text, as Markdown for a pull request, and as JSON."""

from __future__ import annotations

import json
import sys
from bisect import bisect
from collections import defaultdict
from dataclasses import dataclass
from itertools import chain, groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from conformance.comparing.behaviour import BehaviourChange, said
from conformance.comparing.cause_changes import Fate, cause_changes
from conformance.comparing.diff import ChangeKind
from conformance.findings.badness import explain, legend
from conformance.findings.sanitize import printable
from conformance.findings.verdict import WRONG
from conformance.views.formatting import SYMBOLS
from conformance.views.report_formats import title

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from conformance.comparing.diff import Change, Difference, Group, SettingChange, Slice, State
    from conformance.comparing.gate import Gate
    from conformance.findings.finding import Finding
    from conformance.findings.report import Report

SCHEMA = "rl-loss-conformance/diff/1"

CAUSE = 80
"""The most characters of a mistake's name, or of a crash's last line, in a group's title."""

MOST_CHARACTERS = 65_000
"""The largest length of the Markdown; a comment on GitHub holds 65,536 characters."""


@dataclass(frozen=True, kw_only=True)
class OutputLimits:
    """The largest numbers of listed items."""

    groups: int = sys.maxsize
    """Groups of each kind."""

    findings: int = sys.maxsize
    """Findings of each group."""

    values: int = sys.maxsize
    """Values in a line."""

    words: int = sys.maxsize
    """Characters of the text of a framework or a diagnosis."""


ALL = OutputLimits()

GIST = OutputLimits(groups=4, findings=1, values=6, words=120)
"""Limits for text that fits one screen."""

FOLDED = OutputLimits(findings=5, values=100, words=300)
"""Limits for Markdown, where a group is one line until it is unfolded."""

PROGRESS = {
    ChangeKind.WORSE: "worse",
    ChangeKind.BETTER: "better",
    ChangeKind.OTHER_DIAGNOSIS: "wrong in another way",
    ChangeKind.CHANGED: "neither better nor worse",
    ChangeKind.UNSEEN: "not looked at again",
    ChangeKind.UNSEEN_BEFORE: "not looked at before",
    ChangeKind.VANISHED: "vanished",
    ChangeKind.APPEARED: "appeared",
    ChangeKind.ONLY_OLD: "in parts that only OLD looked at",
    ChangeKind.ONLY_NEW: "in parts that only NEW looked at",
    ChangeKind.SAME: "the same",
}
"""Headings for two versions of one framework."""

SIDE_BY_SIDE = PROGRESS | {
    ChangeKind.WORSE: "differ, OLD fares better",
    ChangeKind.BETTER: "differ, NEW fares better",
    ChangeKind.OTHER_DIAGNOSIS: "differ, both are wrong",
    ChangeKind.CHANGED: "differ, neither fares better",
    ChangeKind.UNSEEN: "only OLD has a judgement",
    ChangeKind.UNSEEN_BEFORE: "only NEW has a judgement",
    ChangeKind.VANISHED: "only OLD has them",
    ChangeKind.APPEARED: "only NEW has them",
}
"""Headings for two frameworks or engines, which have no order in time."""

ALONE = (ChangeKind.VANISHED, ChangeKind.APPEARED, ChangeKind.ONLY_OLD, ChangeKind.ONLY_NEW)
"""Kinds of findings that only one report has."""


def gate_lines(gate: Gate, report: Report) -> Iterator[str]:
    """Yields the decision of a gate, and the changes since the report that it compares with.

    After a fault of the harness there is nothing to decide.
    """
    if report.fault is not None:
        return
    yield from gate.lines(report)
    found = gate.difference(report)
    if found is not None:
        yield from as_text(found)


def as_text(difference: Difference, limits: OutputLimits = GIST) -> Iterator[str]:
    """Yields lines for a terminal: what is compared, counts, the largest groups of each kind."""
    yield from map(printable, _text(difference, limits))


def as_markdown(difference: Difference) -> Iterator[str]:
    """Yields a comment for a pull request: a table of counts, then the groups, folded.

    The comment is at most `MOST_CHARACTERS` long: groups that do not fit are left out and counted.
    """
    from conformance.views.formatting import code, environment, escape_html

    def quoted(lines: Iterable[str]) -> list[str]:
        """Lines as code, in which GitHub links neither users nor issues nor commits."""
        return [code(printable(line)) for line in lines]

    def cut(words: str) -> str:
        return _cut(words, FOLDED.words)

    words = _words(difference)
    folds = [
        (
            f"{words[group.kind]}: {len(group.changes)}"
            f" × <code>{escape_html(printable(_group_title(group)))}</code>",
            quoted(_lines(group)),
        )
        for group in difference.groups()
    ]
    folds += [(heading, quoted(found)) for heading, found in _others(difference, FOLDED)]
    template = environment().get_template("diff.md.jinja")
    known = {
        "sides": [(name, *quoted([cut(_title(one))])) for name, one in _sides(difference)],
        "same_source": [*_same_source(difference)],
        "causes": quoted(map(cut, _causes(difference))),
        "compared": difference.compared,
        "counts": [(name, str(n), str(wrong or "")) for name, n, wrong in _counts(difference)],
        "stopped": [*_stopped(difference)],
        "legend": quoted(_legend(difference)),
    }

    def render_first(count: int) -> str:
        return template.render(known, folds=folds[:count], left_out=len(folds) - count)

    fitting = bisect(
        range(len(folds) + 1), MOST_CHARACTERS, key=lambda count: len(render_first(count))
    )
    yield from render_first(max(fitting - 1, 0)).rstrip().split("\n")


def as_json(difference: Difference) -> Iterator[str]:
    """Yields one document for programs, whose keys never change their meaning.

    It has ``schema``; ``old`` and ``new``, the reports without their findings; ``same_framework``;
    ``same_source``, the commit or version of both reports, or null; ``counts`` of findings by
    kind; ``settings`` that differ (section, name, old, new); ``parts`` of the suite that only one
    report covers (kind, check, dimension, value, findings); ``changes`` outside of these parts,
    each with its kind and the old and the new finding, which may be null; ``causes`` of what is
    wrong in either report (fate, statement, findings, the state of these in the other report if the
    fate is open, and the lines to look at).
    """
    document = {
        "schema": SCHEMA,
        "old": _header(difference.old),
        "new": _header(difference.new),
        "same_framework": difference.is_of_one_framework,
        "same_source": difference.same_source,
        "counts": {kind: len(difference.of(kind)) for kind in ChangeKind},
        "settings": [setting._asdict() for setting in difference.settings],
        "parts": [
            {"kind": kind, **part._asdict(), "findings": count}
            for kind in (ChangeKind.ONLY_OLD, ChangeKind.ONLY_NEW)
            for part, count in difference.parts(kind).items()
        ],
        "causes": [
            {
                "fate": one.fate,
                "statement": one.statement,
                "findings": one.findings,
                "became": one.became,
                "suspects": [str(suspect) for suspect in one.suspects],
            }
            for one in cause_changes(difference)
        ],
        "changes": [
            {"kind": change.kind, "old": _document(change.old), "new": _document(change.new)}
            for change in difference.changes
            if change.kind is not ChangeKind.SAME and change.part is None
        ],
    }
    yield json.dumps(document, indent=1, ensure_ascii=False)


def _text(difference: Difference, limits: OutputLimits) -> Iterator[str]:
    for name, report in _sides(difference):
        yield f"{name}  {_title(report)}"
    yield from _same_source(difference)
    yield ""
    if causes := [*_causes(difference)]:
        yield from (*causes, "")
    yield f"{difference.compared} findings compared"
    for words, count, wrong in _counts(difference):
        yield f"{count:>6} {words}{f', {wrong} of them wrong' if wrong else ''}"
    yield from _behaviour(difference)
    yield from _stopped(difference)
    yield from _legend(difference)
    every = difference.groups()
    for kind, words in _words(difference).items():
        groups = [group for group in every if group.kind is kind]
        if groups:
            yield ""
            yield f"{words}: {len(difference.of(kind))}"
            yield from _listed(groups, limits)
    for heading, found in _others(difference, limits):
        yield ""
        yield f"{heading}:"
        yield from (f"  {line}" for line in found[: limits.groups])
        yield from _more(found[limits.groups :])


def _behaviour(difference: Difference) -> Iterator[str]:
    """Yields differences in behaviour of two versions of one framework, right or wrong."""
    if difference.is_of_one_framework:
        yield from said(BehaviourChange(difference.old, difference.new))


def _causes(difference: Difference) -> Iterator[str]:
    """Yields a line for each cause in either report, the new ones first."""
    for change in cause_changes(difference):
        became = f"; {change.became}" if change.became else ""
        yield f"cause, {change.fate}: {change.statement} ({change.findings} findings{became})"
        if change.fate in (Fate.NEW, Fate.CHANGED):
            yield from (f"  look at {suspect}" for suspect in change.suspects)


def _same_source(difference: Difference) -> Iterator[str]:
    """Yields a line if both reports have the same commit or version, so the code did not change."""
    if difference.same_source is not None:
        yield f"OLD and NEW are of the same {difference.same_source}"


def _sides(difference: Difference) -> Iterator[tuple[str, Report]]:
    yield from (("OLD", difference.old), ("NEW", difference.new))


def _title(report: Report) -> str:
    return f"{title(report)}: {len(report.findings)} findings"


def _words(difference: Difference) -> dict[ChangeKind, str]:
    return PROGRESS if difference.is_of_one_framework else SIDE_BY_SIDE


def _counts(difference: Difference) -> Iterator[tuple[str, int, int]]:
    """Yields each kind's words, its number of findings and how many of these are wrong.

    The last number is 0 if the words already say whether the findings are wrong.
    """
    for kind, words in _words(difference).items():
        changes = difference.of(kind)
        if changes or kind is ChangeKind.WORSE:
            open_kind = kind in (ChangeKind.SAME, *ALONE)
            wrong = sum(open_kind and one.finding.verdict in WRONG for one in changes)
            yield words, len(changes), wrong


def _stopped(difference: Difference) -> Iterator[str]:
    """Yields a warning for each stopped run: findings that it lacks may not have been reached."""
    for name, report in _sides(difference):
        if not report.complete:
            yield (
                f"{name} was stopped before the last of its {report.selection.selected} findings:"
                " what it lacks may not have been reached"
            )


def _legend(difference: Difference) -> Iterator[str]:
    """Yields the meaning of "off by a factor", if the title of a group has it."""
    changes = chain.from_iterable(group.changes for group in difference.groups())
    return legend(one for change in changes for one in (change.old, change.new) if one)


def _listed(groups: Sequence[Group], limits: OutputLimits) -> Iterator[str]:
    width = len(str(len(groups[0].changes)))
    for group in groups[: limits.groups]:
        yield f"  {len(group.changes):>{width}}  {_group_title(group)}"
        changes = group.changes[: limits.findings] if limits.findings > 1 else [group.example]
        for change in changes:
            yield f"  {'':{width}}  {_line(change, limits)}"
    yield from _more(groups[limits.groups :])


def _more(rest: Sequence[object]) -> Iterator[str]:
    yield from (f"  {count}: see --all" for count in _rest(rest))


def _group_title(group: Group) -> str:
    states = " -> ".join(_state(one) for one in (group.before, group.after) if one)
    modes = ", ".join(f"{mode} {count}" for mode, count in group.modes.items())
    same = group.before == group.after and group.kind in (ChangeKind.WORSE, ChangeKind.BETTER)
    factor = (
        f", by a {'larger' if group.kind is ChangeKind.WORSE else 'smaller'} factor" if same else ""
    )
    subjects = _enumerated((f"{name} {n}" for name, n in group.subjects.items()), GIST)
    return f"{states}{factor}: {subjects} ({modes})"


def _state(state: State) -> str:
    return f"{SYMBOLS[state.verdict]} {_cut(state.cause, CAUSE)}".rstrip()


def _line(change: Change, limits: OutputLimits) -> str:
    """Returns a finding's id, with its explanation before and after the change."""
    told = [explain(one) for one in (change.old, change.new) if one is not None]
    words = " -> ".join(_cut(one, limits.words) for one in told if one)
    return f"{change.finding.id}: {words}" if words else change.finding.id


def _lines(group: Group) -> list[str]:
    """Returns the lines of a folded group."""
    shown = [_line(change, FOLDED) for change in group.changes[: FOLDED.findings]]
    return [*shown, *_rest(group.changes[FOLDED.findings :])]


def _cut(words: str, most: int) -> str:
    return words if len(words) <= most else f"{words[: most - 1]}…"


def _others(difference: Difference, limits: OutputLimits) -> Iterator[tuple[str, list[str]]]:
    """Yields a heading and lines for parts that are not compared, and for different settings."""
    for kind, name in ((ChangeKind.ONLY_OLD, "OLD"), (ChangeKind.ONLY_NEW, "NEW")):
        parts = difference.parts(kind)
        if parts:
            yield f"not compared, as only {name} looked at it", list(_parts(parts, limits))
    settings = [
        f"{section}: {_enumerated(map(_setting, of_section), limits)}"
        for section, of_section in groupby(difference.settings, key=attrgetter("section"))
    ]
    if settings:
        yield "besides findings (each side is held to its own conventions)", settings


def _parts(parts: dict[Slice, int], limits: OutputLimits) -> Iterator[str]:
    """Yields a line for each dimension of each check, with its parts."""
    values: dict[str, list[str]] = defaultdict(list)
    for part, count in parts.items():
        of_check = "" if part.dimension == "check" else f" of {part.check}"
        values[f"{part.dimension}s{of_check}"].append(f"{part.value} {count}")
    for dimension, found in values.items():
        yield f"{dimension}: {_enumerated(found, limits)}"


def _setting(setting: SettingChange) -> str:
    return f"{setting.name} {setting.old or 'none'} -> {setting.new or 'none'}"


def _enumerated(values: Iterable[str], limits: OutputLimits) -> str:
    every = [_cut(value, limits.words) for value in values]
    return ", ".join([*every[: limits.values], *_rest(every[limits.values :])])


def _rest(values: Sequence[object]) -> list[str]:
    return [f"{len(values)} more"] if values else []


def _header(report: Report) -> dict[str, Any]:
    return report.model_dump(
        mode="json", by_alias=True, exclude={"findings", "summary", "causes", "clues"}
    )


def _document(finding: Finding | None) -> dict[str, Any] | None:
    if finding is None:
        return None
    return finding.model_dump(mode="json", exclude_none=True, exclude={"picture"})
