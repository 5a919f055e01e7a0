"""Text for the reviewer of a change: what got worse, with its lines, and one sentence."""

from __future__ import annotations

import re
from collections import defaultdict
from functools import reduce
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from adapters.contract.objective import OF_CRITIC, Metric
from conformance.comparing import advised
from conformance.comparing.behaviour import BehaviourChange, final_clause, said
from conformance.comparing.cause_changes import Fate
from conformance.comparing.refused import no_longer_refused
from conformance.explain.conditions.facts import NEGATIVE
from conformance.explain.conditions.wording import OBJECTIVES, counted
from conformance.explain.reach import options
from conformance.findings.badness import explain, failure
from conformance.findings.cause import UNEXPLAINED, Reach, Severity
from conformance.findings.sanitize import first_line, numberless, printable
from conformance.findings.verdict import UNJUDGED, WRONG, Verdict
from conformance.sources.changes import HUNK
from conformance.sources.source import SHORT
from conformance.views.report_formats import error_commands
from reference.aggregation import Mode

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from conformance.comparing.cause_changes import CauseChange
    from conformance.comparing.reviewed import Reviewed
    from conformance.findings.cause import Cause
    from conformance.findings.finding import Finding
    from conformance.findings.groups import FindingGroup
    from conformance.findings.report import Report
    from conformance.ranks.changed import Place
    from conformance.runs.versions.review import Progress, Review

MOST = 3
"""The most causes of one kind that the sentence names."""

MOST_FILES = 4

MOST_HUNKS = 3
"""The largest number of hunks of a change that are all named."""

MOST_RANGES = 4

GAP = 3
"""The most lines between changed statements that count as one range."""


ORDINARY = f"of the {Metric.POLICY_LOSS} term"
"""A fact of a condition that is not mentioned, as most steps have it."""

ERROR_WIDTH = 100

RAISED = re.compile(r"(.+?):(\d+)(?: |$)")
"""Matches the place of a crash: its file and its line."""

BY_VERDICT = {Verdict.REFUSED: "refused", Verdict.UNSUPPORTED: "no longer offered"}


def begins(review: Review, budget: float) -> Iterator[str]:
    """Yields lines on the versions and layouts that are about to be run."""
    base, head = review.versions.base, review.versions.head
    lines = {name: text.count("\n") for name, text in review.changed.items()}
    most = sorted(lines, key=lambda name: -lines[name])
    files = ", ".join(PurePosixPath(name).name for name in most[:MOST_FILES])
    more = f" and {len(most) - MOST_FILES} more" if len(most) > MOST_FILES else ""
    yield (
        f"{head.ref} {head.revision[:SHORT]}".strip()
        + f" against {base.revision[:SHORT]} {base.date} {base.subject}".rstrip()
    )
    yield f"changes {files}{more}" if most else "changes no Python file of the package"
    layouts = " and ".join(map(str, review.layouts.usual))
    yield f"runs both on {layouts}, first what the change touches, for {budget:g} s (--budget)"


def so_far(progress: Progress) -> str:
    """Returns the number of findings that both runs have, and the last finding."""
    if not progress.head:
        return "both versions start"
    both = sum(one.id in progress.base for one in progress.head)
    last = progress.head[-1].id
    return f"{counted(both, 'finding')} of both; {last}"


def first_worse(before: Finding, after: Finding) -> str:
    """Returns the first finding that got worse, with its verdicts before and after."""
    words = explain(after) or first_line(after.message)
    return f"worse: {after.id}: {before.verdict} -> {after.verdict}: {words}"


def cut_short(found: Reviewed, seconds: float, budget: float) -> str:
    """Returns a sentence on the number of findings when the budget was used up."""
    count = len(found.head.findings)
    return (
        f" That is after {seconds:.0f} s and {counted(count, 'finding')} of each;"
        f" --budget={max(5 * budget, 60):g} looks at more."
    )


def not_looked_at(places: Iterable[Place], changed: Collection[str]) -> str:
    """Returns a sentence on changed lines that no job has run; empty if there are none."""
    ranges: list[tuple[str, int, int]] = []
    for file, first, last in sorted(places):
        name = next((one for one in changed if file.endswith(f"/{one}")), file)
        if ranges and ranges[-1][0] == name and first <= ranges[-1][2] + GAP:
            ranges[-1] = name, ranges[-1][1], max(last, ranges[-1][2])
        else:
            ranges.append((name, first, last))
    named = [f"{name}:{first}" + (f"-{last}" * (last > first)) for name, first, last in ranges]
    more = _more(named[MOST_RANGES:])
    return f" Not looked at: {', '.join([*named[:MOST_RANGES], *more])}." if named else ""


def as_text(found: Reviewed, changed: Mapping[str, str]) -> Iterator[str]:
    """Yields the causes that are new, changed or gone, each with its lines, then one sentence.

    ``changed`` has the hunks of the diff for each changed file.
    """
    yield from map(printable, _lines(found, changed))
    yield ""
    yield sentence(found, changed)


def _lines(found: Reviewed, changed: Collection[str]) -> Iterator[str]:
    same = 0
    for change in found.changes:
        if change.fate is Fate.SAME:
            same += 1
            continue
        yield from _change(change, changed)
    yield from (f"as it may: {words}" for words in _refused(found.declined, found))
    if same:
        yield f"as before: {same} cause{'s' if same > 1 else ''}"
    yield from no_longer_refused(found.difference)
    yield from advised.said(found.difference)
    yield from said(behaviour(found))
    known = found.difference.old.new_options or ()
    if found.head.not_driven is not None:
        yield f"not driven: {found.head.not_driven}"
    if unknown := [one for one in found.head.new_options or () if one not in known]:
        yield f"not looked at, as the adapter does not know them: {', '.join(unknown)}"


def _change(change: CauseChange, changed: Collection[str]) -> Iterator[str]:
    """Yields a cause that is new, changed or gone, and suspected lines in changed files.

    Suspects in unchanged files are left out: the base has the same lines, so they fit by
    coincidence.
    """
    became = f" ({change.became})" if change.became else ""
    yield f"{change.fate}: {change.statement}{became}"
    cause = change.new or change.old
    assert cause is not None
    said = str(cause.impact)
    yield f"  {_effect(cause)}{f': {said}' if said else ''}; {change.findings} findings"
    yield f"  for example {cause.findings[0]}"
    is_number = cause.severity is not Severity.NOT_TRAINED
    suspects = (one for one in cause.suspects if one.file in changed or not is_number)
    yield from (f"  look at {suspect}" for suspect in suspects)


def _effect(cause: Cause) -> str:
    """Returns the effect of a cause, and the part of its reach that a review's few layouts show."""
    if not cause.reach.untested:
        return cause.effect
    tested = {*cause.reach.tested}
    shown = Reach(
        options=[one for one in cause.reach.options if one in tested],
        rare=[one for one in cause.reach.rare if one in tested],
    )
    return cause.model_copy(update={"reach": shown}).effect.removesuffix(f" {Reach()}")


def sentence(found: Reviewed, changed: Mapping[str, str]) -> str:
    """Returns one sentence on new and fixed mistakes; each is named once, by its worst cause.

    For a wrong number, only lines in changed files are named: other lines cannot explain it.
    """
    if found.objection is not None:
        return f"No verdict: {found.objection}."
    lines = _changed_lines(changed)
    mistakes: dict[str, FindingGroup] = {}
    for group in found.worse:
        is_number = group.cause.severity is not Severity.NOT_TRAINED
        mistakes.setdefault(group.cause.words if is_number else group.cause.statement, group)
    groups = sorted(mistakes.values(), key=_telling, reverse=True)
    clauses = [_worse(group, found, lines) for group in groups]
    is_one = sum(map(len, lines.values())) == 1  # all mistakes come from this change
    named = clauses[: 1 if is_one else MOST]
    more = _more(clauses[len(named) :], " of the same change" if is_one else "")
    clauses = [*named, *more, *_refused(found.no_longer_trained, found)]
    clauses.append("nothing else got worse" if clauses else "nothing got worse")
    if new := [*_new_modes(found)]:
        clauses.append(f"new, and right: {', '.join(new)}")
    fixed = list(dict.fromkeys(_cause(change.old, lines) for change in found.fixed if change.old))
    clauses += [f"fixed: {words}" for words in fixed[:MOST]]
    clauses += _more(fixed[MOST:])
    clauses += advised.clauses(found.difference)
    clauses += final_clause(behaviour(found))
    text = "; ".join(clauses)
    return f"{text[0].upper()}{text[1:]}."


def _telling(group: FindingGroup) -> tuple[int, bool, int]:
    """A sort key: the harm of a cause, whether it is explained, and its number of findings."""
    cause = group.cause
    return -cause.harm.rank, cause.name != UNEXPLAINED, len(group.findings)


def behaviour(found: Reviewed) -> BehaviourChange:
    """Returns the numbers that differ between steps of the base and of the head."""
    return BehaviourChange(found.difference.old, found.difference.new)


def _new_modes(found: Reviewed) -> Iterator[str]:
    """Yields the option of each mode that only the head has, and that is right in all findings."""
    for mode in Mode:
        before = {one.verdict for one in found.difference.old.findings if one.mode is mode}
        after = {one.verdict for one in found.head.findings if one.mode is mode}
        if before == {Verdict.UNSUPPORTED} and Verdict.CONFORMS in after - {*WRONG} == after:
            yield f"`{' '.join(found.head.chosen_by.get(mode, [mode]))}`"


def _more(rest: Sequence[str], words: str = "") -> list[str]:
    return [f"{len(rest)} more{words}"] if rest else []


def _changed_lines(changed: Mapping[str, str]) -> dict[str, list[range]]:
    """Returns the lines of each hunk by file; for a hunk that only removes, the line before it."""
    return {
        name: [
            range(int(first), int(first) + max(int(count or 1), 1))
            for first, count in HUNK.findall(text)
        ]
        for name, text in changed.items()
    }


def _worse(group: FindingGroup, found: Reviewed, changed: Mapping[str, Sequence[range]]) -> str:
    cause = group.cause
    if cause.severity is not Severity.NOT_TRAINED:
        before = any(one.new is cause and one.old is not None for one in found.changes)
        return f"{'more wrong than before: ' if before else ''}{_cause(cause, changed)}"
    return _not_trained(group, found.head)


def _cause(cause: Cause, changed: Mapping[str, Sequence[range]]) -> str:
    """Returns the statement of a cause, its reach and its line.

    Facts that hold for most steps are left out, and so are untested options: two layouts do not
    show whether these options matter.
    """
    typed = " ".join(one for one in cause.reach.options if one in cause.reach.tested)
    facts = [
        words
        for fact, words in zip(cause.condition, cause.condition_words, strict=True)
        if not fact.startswith((*NEGATIVE, ORDINARY)) and words.partition(" ")[2] not in typed
    ]
    reach = f", with `{typed}`" if typed else ""
    return f"{', '.join([cause.words, *facts])}{reach}{_line(cause, changed)}"


def _line(cause: Cause, changed: Mapping[str, Sequence[range]]) -> str:
    """Returns the lines to look at, in brackets."""
    places = _places(cause, changed)
    named = ", ".join(f"{PurePosixPath(file).name}:{line}" for file, line in places)
    return f" ({named})" if named and named not in cause.words else ""


def _places(cause: Cause, changed: Mapping[str, Sequence[range]]) -> list[tuple[str, int]]:
    """Returns a changed suspect, or all hunks of a small change, or else the first suspect.

    Suspected lines are named only in changed files.
    """
    suspects = [(one.file, one.line) for one in cause.suspects if one.file in changed]
    changing = [one for one in suspects if any(one[1] in hunk for hunk in changed[one[0]])]
    hunks = [(name, hunk.start) for name, several in changed.items() for hunk in several]
    small = hunks if len(hunks) <= MOST_HUNKS else []
    return changing[:1] or small or suspects[:1]


def runner_commands(found: Reviewed, changed: Mapping[str, str], folder: str) -> Iterator[str]:
    """Yields GitHub runner commands that annotate lines of the change.

    ``folder`` is the path from the workspace to the package's parent folder, empty if they are the
    same.
    """
    lines = _changed_lines(changed)

    def place(cause: Cause) -> tuple[str, int] | None:
        raised = RAISED.match(cause.place or "")
        if raised and raised[1] in lines:
            return str(PurePosixPath(folder, raised[1])), int(raised[2])
        for file, line in _places(cause, lines)[:1]:
            return str(PurePosixPath(folder, file)), line
        return None

    objections = [found.objection] if found.objection else []
    yield from error_commands(found.head, found.failing, objections, place)


def _place(cause: Cause) -> str:
    """Returns the place where a cause raises, in brackets; empty if unknown."""
    return f" ({PurePosixPath(cause.place.partition(' ')[0]).name})" if cause.place else ""


def _not_trained(group: FindingGroup, head: Report) -> str:
    cause, verdict = group.cause, group.example.verdict
    typed = cause.reach.options
    subject = f"`{' '.join(typed)}`" if typed else "training"
    hangs = cause.statement.startswith("hang: ")
    verb = "hangs" if hangs else "is declined" if verdict is Verdict.DECLINED else "crashes"
    steps = {_step(finding) for finding in group.findings}
    others = {
        _step(one)
        for one in head.findings
        if one.verdict not in (*UNJUDGED, Verdict.REFUSED)
        and {*typed} <= {*options(one, head.chosen_by)}
        and OBJECTIVES.get(one.identity.slug) not in OF_CRITIC  # no policy loss affects a critic
    }
    extent = "every step" if steps >= others else f"{len(steps)} of {len(steps | others)} steps"
    rare = "".join(f", {fact}" for fact in cause.reach.rare)
    place = _place(cause)
    error = "" if hangs or place else f": {first_line(group.example.message)[:ERROR_WIDTH]}"
    return f"{subject} {verb} in {extent}{rare}{place}{error}"


def _step(finding: Finding) -> tuple[str, ...]:
    """A key for the step of a finding; several findings may share a step."""
    identity = finding.identity
    objective = OBJECTIVES.get(identity.slug, identity.slug)
    return str(objective), identity.mode, identity.case, str(identity.layout)


def _refused(refused: Iterable[Finding], found: Reviewed) -> Iterator[str]:
    """Yields a clause for each error with which the head refuses steps that the base trains."""
    alike: dict[tuple[str, str], list[Finding]] = defaultdict(list)
    for finding in refused:
        alike[finding.verdict, numberless(failure(finding))].append(finding)
    for findings in sorted(alike.values(), key=len, reverse=True)[:MOST]:
        typed = _shared(options(one, found.head.chosen_by) for one in findings)
        steps = len({_step(one) for one in findings})
        subject = "a step" if steps == 1 else f"{steps} steps"
        verb = "is" if steps == 1 else "are"
        words = BY_VERDICT.get(findings[0].verdict, findings[0].verdict)
        reach = f" with `{' '.join(typed)}`" if typed else ""
        error = first_line(findings[0].message)[:ERROR_WIDTH].rstrip(".")
        yield f"{subject} that the base trains {verb} {words}{reach}: {error}"


def _shared(lists: Iterable[list[str]]) -> list[str]:
    """Returns the items that all lists have, in the order of the first."""
    return reduce(lambda one, other: [each for each in one if each in other], lists)
