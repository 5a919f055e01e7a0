"""Reports as one self-contained web page: causes, matrix, timelines, and all findings.

The text of a framework is untrusted. The template escapes it; the data are compressed JSON in
Base64, which cannot contain a tag; the script adds text nodes only; and a content security policy
with the hashes of our own style and script forbids all other styles and scripts.
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
"""The number of causes that are unfolded at first, over all frameworks: they fit on a screen."""

LEAST_UNFOLDED = 1
"""The number of causes of each framework that are unfolded at first, in any case."""

SCRIPTS = ("data.js", "picture.js", "detail.js", "list.js")
"""The scripts, each after the scripts that it needs."""


class Cell(NamedTuple):
    """The findings of a version in some checks and modes."""

    tally: Tally

    query: dict[str, str]
    """The filter of the page that lists these findings."""


def cell(version: Version, checks: Collection[Check], modes: Collection[Mode]) -> Cell:
    """Counts the findings of a version in some checks and modes."""
    cells = (version.cells.get(place, ()) for place in product(checks, modes))
    tally = Tally.of(chain.from_iterable(cells))
    query = {"framework": version.framework, "version": version.name}
    if len(checks) == len(modes) == 1:
        query |= {"check": next(iter(checks)), "mode": next(iter(modes))}
    return Cell(tally, query if tally.wrong else query | {"verdict": "any"})


def judged_cells(versions: Sequence[Version]) -> list[tuple[Check, Mode]]:
    """Returns the checks and modes for which any version has a verdict."""
    return [
        (check, mode)
        for check, mode in product(Check, Mode)
        if any(cell(version, [check], [mode]).tally.seen for version in versions)
    ]


@dataclass(frozen=True, kw_only=True)
class PageCause:
    """A cause of a framework, from the last version that has it."""

    group: FindingGroup
    run: int
    """The index of that version's report on the page."""

    change: CauseChange
    """Its fate from version to version."""

    counts: dict[str, int]
    """The number of its findings in each version with the cause, by the version's name."""

    query: dict[str, str]
    """The filter of the page that lists its findings."""

    link: dict[str, str]
    """The filter of the page that opens an ordinary finding."""

    command: str
    """The command that runs the smallest reproduction."""

    entry: KnownMistake | KnownFailure | None
    """The entry of `reports/known` about the cause, if there is one."""

    issue: str | None = None
    """The address of its bug report."""

    @property
    def where(self) -> str:
        """The line in the entry of `reports/known`, or else the first suspected line."""
        line = getattr(self.entry, "line", None)
        return PurePosixPath(line).name if line else self.group.cause.where

    @property
    def drawn(self) -> Finding | None:
        """The first of its findings with a picture."""
        return next((one for one in self.group.findings if one.picture is not None), None)

    @property
    def size_rank(self) -> tuple[int, int]:
        """A sort key for causes with pictures: the worst first, then by number of samples."""
        picture = None if self.drawn is None else self.drawn.picture
        return self.group.cause.harm.rank, len(picture.samples) if picture else 0

    @property
    def is_named_rightly(self) -> bool:
        """Whether the cause's name is the first in its entry of `reports/known`, if it has one."""
        names = getattr(self.entry, "names", (self.group.cause.name,))
        return bool(names[0] == self.group.cause.name)

    @property
    def is_advice(self) -> bool:
        """Whether the cause is advice, which breaks no promise of the framework."""
        return self.group.cause.severity is Severity.ADVICE


@dataclass(frozen=True, kw_only=True)
class PageFramework:
    """A framework's engine, with its versions in the order given."""

    name: str
    versions: list[Version]
    causes: list[PageCause]
    """The causes of all versions, each once, the worst of the last version first."""

    @property
    def mistakes(self) -> list[PageCause]:
        """Causes that break a promise."""
        return [one for one in self.causes if not one.is_advice]

    @property
    def advice(self) -> list[PageCause]:
        """Causes that break no promise."""
        return [one for one in self.causes if one.is_advice]

    @property
    def rank(self) -> int:
        """A sort key: the harm of the worst mistake; frameworks without mistakes come last."""
        return min((one.group.cause.harm.rank for one in self.mistakes), default=len(Harm))


def headline(frameworks: Iterable[PageFramework]) -> str:
    """A sentence that counts mistakes, those in gradients, and those in gradients by default.

    An entry of `reports/known` is one mistake, on any number of engines.
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
    """The mistake whose picture is drawn first: the worst one, with the fewest samples."""
    drawn = [one for framework in frameworks for one in framework.mistakes if one.drawn]
    return min(drawn, key=lambda one: one.size_rank, default=None)


def page_causes(
    versions: Sequence[Version], issues: Mapping[tuple[str, str], str] | None = None
) -> list[PageCause]:
    """Returns the causes of a framework's versions, each once, the worst of the last version first.

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
        PagePathError: the path cannot be written.
    """
    with _path_errors(path):
        require_room(path.parent)
        require_regular(path)
    # File names can contain lone surrogates, which no encoding can represent.
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

    Findings with a verdict in ``left_out`` are counted in the tables, and not listed. ``issues``
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
    """Returns the data in the page's encoding: gzip of JSON in UTF-8, in Base64."""
    text = json.dumps(data, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    # File names can contain lone surrogates, which JSON can escape and UTF-8 cannot encode.
    packed = gzip.compress(text.encode("utf-8", "backslashreplace"), mtime=0)
    return base64.b64encode(packed).decode()


def _part(name: str) -> str:
    return (PARTS / name).read_text(encoding="utf-8")


def _policy(style: str, script: str) -> str:
    """Returns a content security policy that allows only our own style and script."""
    return (
        f"default-src 'none'; style-src '{digest(style)}'; script-src '{digest(script)}';"
        " base-uri 'none'; form-action 'none'"
    )


def digest(text: str) -> str:
    """Returns the source expression for a style or script in a content security policy."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
