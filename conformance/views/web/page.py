"""Reports as one self-contained web page: causes, matrix, timelines, and all findings.

The text of a framework is untrusted. The template escapes it, the data are compressed JSON in
Base64, in which no tag can begin, the script adds it as text only, and a content security policy
with the hashes of our own style and script forbids any other.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, product
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple

from conformance.comparing.cause_changes import Fate, cause_histories
from conformance.comparing.known import entry_of
from conformance.comparing.report_file import require_regular
from conformance.explain.conditions.wording import counted
from conformance.findings.badness import explain
from conformance.findings.cause import Harm, Severity
from conformance.findings.errors import PagePathError
from conformance.findings.files import put, require_room
from conformance.findings.verdict import WRONG, Check
from conformance.runs.options import command
from conformance.tracing.unfolded import number
from conformance.views.formatting import Tally, environment
from conformance.views.web.page_data import Version, document, name_versions
from reference.aggregation import Mode

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from conformance.comparing.cause_changes import CauseChange
    from conformance.comparing.expectations import KnownFailure, KnownMistake
    from conformance.findings.finding import Finding
    from conformance.findings.groups import FindingGroup, SharedCause
    from conformance.findings.report import Report
    from conformance.findings.verdict import Verdict

PARTS = Path(__file__).with_name("page_parts")

UNFOLDED = 24
"""Causes that are unfolded at first, of all frameworks together: they fit on a screen."""

LEAST_UNFOLDED = 1
"""Causes of each framework that are unfolded at first, however many frameworks there are."""

SCRIPTS = ("data.js", "picture.js", "detail.js", "list.js")
"""The scripts in the order in which they build on each other."""


class Cell(NamedTuple):
    """The findings of a version in some checks and modes."""

    tally: Tally

    query: dict[str, str]
    """The filter of the page that lists them."""


def cell(version: Version, checks: Collection[Check], modes: Collection[Mode]) -> Cell:
    """Counts the findings of a version in some checks and modes."""
    cells = (version.cells.get(place, ()) for place in product(checks, modes))
    tally = Tally.of(chain.from_iterable(cells))
    query = {"framework": version.framework, "version": version.name}
    if len(checks) == len(modes) == 1:
        query |= {"check": next(iter(checks)), "mode": next(iter(modes))}
    return Cell(tally, query if tally.wrong else query | {"verdict": "any"})


def judged_cells(versions: Sequence[Version]) -> list[tuple[Check, Mode]]:
    """Returns the checks and modes that any version was judged in."""
    return [
        (check, mode)
        for check, mode in product(Check, Mode)
        if any(cell(version, [check], [mode]).tally.seen for version in versions)
    ]


@dataclass(frozen=True, kw_only=True)
class PageCause:
    """A cause of a framework, as it is in the last version that has it."""

    group: FindingGroup
    run: int
    """The place of that version's report on the page."""

    change: CauseChange
    """Its fate from version to version."""

    counts: dict[str, int]
    """The number of its findings in each version that has it, by the version's name."""

    query: dict[str, str]
    """The filter of the page that lists its findings."""

    link: dict[str, str]
    """The filter of the page that opens an ordinary finding."""

    command: str
    """Runs the smallest reproduction."""

    entry: KnownMistake | KnownFailure | None
    """The entry of `reports/known` about it, if there is one."""

    issue: str | None = None
    """The address of its bug report."""

    @property
    def where(self) -> str:
        """The line that was worked out by hand, or else the first that is suspected."""
        line = getattr(self.entry, "line", None)
        return PurePosixPath(line).name if line else self.group.cause.where

    @property
    def drawn(self) -> Finding | None:
        """The first of its findings that has a picture."""
        return next((one for one in self.group.findings if one.picture is not None), None)

    @property
    def by_size(self) -> tuple[int, int]:
        """A sort key of causes that are drawn: the worst first, then by samples."""
        picture = None if self.drawn is None else self.drawn.picture
        return self.group.cause.harm.rank, len(picture.samples) if picture else 0

    @property
    def is_named_rightly(self) -> bool:
        """Whether nothing that was worked out by hand has another name for it first."""
        names = getattr(self.entry, "names", (self.group.cause.name,))
        return bool(names[0] == self.group.cause.name)

    @property
    def is_advice(self) -> bool:
        """Whether nothing that the framework promises is broken."""
        return self.group.cause.severity is Severity.ADVICE


@dataclass(frozen=True, kw_only=True)
class PageFramework:
    """A framework's engine, with its versions in the order given."""

    name: str
    versions: list[Version]
    causes: list[PageCause]
    """The causes of all versions, each once, the worst of the last one first."""

    @property
    def mistakes(self) -> list[PageCause]:
        """Causes that break a promise."""
        return [one for one in self.causes if not one.is_advice]

    @property
    def advice(self) -> list[PageCause]:
        """Causes that break none."""
        return [one for one in self.causes if one.is_advice]

    @property
    def rank(self) -> int:
        """A sort key: what users lose by the worst mistake, those without any last."""
        return min((one.group.cause.harm.rank for one in self.mistakes), default=len(Harm))


def headline(frameworks: Iterable[PageFramework]) -> str:
    """The number of mistakes, and how many of them every user meets in a gradient.

    An entry describes one mistake, on however many engines.
    """
    harms: dict[tuple[str, object], set[Harm]] = defaultdict(set)
    for framework in frameworks:
        for one in framework.mistakes:
            if one.change.fate is not Fate.GONE and getattr(one.entry, "deliberate", None) is None:
                adapter = framework.versions[-1].report.adapter
                harms[adapter, one.entry or one.group.cause.mistake].add(one.group.cause.harm)
    if not harms:
        return "No mistake was found."
    several = len({adapter for adapter, _ in harms})
    of_gradients = {Harm.GRADIENT_BY_DEFAULT, Harm.GRADIENT_WITH_OPTION, Harm.GRADIENT_AT_EDGE}
    wrong = sum(bool(of_gradients & one) for one in harms.values())
    default = sum(Harm.GRADIENT_BY_DEFAULT in one for one in harms.values())
    return (
        f"{counted(len(harms), 'mistake')} in {counted(several, 'framework')}:"
        f" {wrong or 'none'} in the gradient,"
        f" {default or 'none'} of these with default options and an ordinary batch."
    )


def lead(frameworks: Iterable[PageFramework]) -> PageCause | None:
    """The mistake whose picture is drawn first: of the worst, the one that fewest samples show."""
    drawn = [one for framework in frameworks for one in framework.mistakes if one.drawn]
    return min(drawn, key=lambda one: one.by_size, default=None)


def page_causes(
    versions: Sequence[Version], issues: Mapping[tuple[str, str], str] | None = None
) -> list[PageCause]:
    """Returns the causes of a framework's versions, each once, the worst of the last one first.

    ``issues`` are the addresses of bug reports, by engine and cause.
    """
    histories = cause_histories([one.report for one in versions])
    return [_page_cause(shared, versions, change, issues or {}) for shared, change in histories]


def _page_cause(
    shared: SharedCause,
    versions: Sequence[Version],
    change: CauseChange,
    issues: Mapping[tuple[str, str], str],
) -> PageCause:
    group, version = shared.newest, versions[next(iter(shared.groups))]
    query = {"framework": version.framework, "cause": group.cause.statement}
    address = f"{version.run}/{group.example.id}"
    engine = f"{version.report.adapter} {version.report.engine}"
    return PageCause(
        group=group,
        run=version.run,
        change=change,
        counts={versions[at].name: len(found.findings) for at, found in shared.groups.items()},
        query=query | ({} if group.example.verdict in WRONG else {"verdict": "any"}),
        link={"verdict": "any", "finding": address},
        command=command(version.report, group.smallest),
        entry=entry_of(version.report, group.cause),
        issue=issues.get((engine, group.cause.statement)),
    )


def write(reports: Iterable[Report], path: Path) -> None:
    """Writes the page of some reports to ``path``, which is checked before any report is read.

    Raises:
        PagePathError: nothing can be written there.
    """
    with _path_errors(path):
        require_room(path.parent)
        require_regular(path)
    # File names can hold halves of surrogate pairs, which no encoding has.
    page = render(list(reports)).encode("utf-8", "backslashreplace")
    with _path_errors(path):
        put(page, path.resolve())


@contextmanager
def _path_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise PagePathError(
            f"no page can be written to {path}: {error.strerror}",
            "give another file with -o FILE",
        ) from error


def render(
    reports: Sequence[Report],
    left_out: Collection[Verdict] = (),
    issues: Mapping[tuple[str, str], str] | None = None,
) -> str:
    """Returns the page; reports of one framework's engine are a timeline in the order given.

    Findings with a verdict of ``left_out`` are counted in the tables, and not listed. ``issues``
    are the addresses of bug reports, by engine and cause.
    """
    versions = name_versions(reports)
    named: dict[str, list[Version]] = {}
    for version in versions:
        named.setdefault(version.framework, []).append(version)
    found = [
        PageFramework(name=name, versions=several, causes=page_causes(several, issues))
        for name, several in named.items()
    ]
    frameworks = sorted(found, key=lambda one: one.rank)
    style = _part("style.css")
    script = "".join(map(_part, SCRIPTS))
    data = document(versions, left_out)
    templates = environment(explained=explain, number=number)
    return templates.get_template("page.html").render(
        policy=_policy(style, script),
        style=style,
        script=script,
        data=data,
        packed=_packed(data),
        left_out=[*left_out],
        frameworks=frameworks,
        checks=list(Check),
        modes=list(Mode),
        cell=cell,
        judged_cells=judged_cells,
        headline=headline(frameworks),
        lead=lead(frameworks),
        unfolded=max(UNFOLDED // max(len(frameworks), 1), LEAST_UNFOLDED),
    )


def _packed(data: dict[str, Any]) -> str:
    """Returns the data as the page holds them: gzip of JSON in UTF-8, in Base64."""
    text = json.dumps(data, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    # File names can hold halves of surrogate pairs, which JSON has an escape for and UTF-8 nothing.
    packed = gzip.compress(text.encode("utf-8", "backslashreplace"), mtime=0)
    return base64.b64encode(packed).decode()


def _part(name: str) -> str:
    return (PARTS / name).read_text(encoding="utf-8")


def _policy(style: str, script: str) -> str:
    """Returns a content security policy that allows our own style and script alone."""
    return (
        f"default-src 'none'; style-src '{digest(style)}'; script-src '{digest(script)}';"
        " base-uri 'none'; form-action 'none'"
    )


def digest(text: str) -> str:
    """Returns what a content security policy calls a style or a script of ours."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
