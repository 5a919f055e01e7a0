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
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from conformance.comparing.cause_changes import CauseChange, Fate, cause_changes, missing_cause
from conformance.comparing.groups import shared_causes
from conformance.comparing.report_file import require_regular
from conformance.explain.impact import impact_words
from conformance.findings.badness import explain
from conformance.findings.cause import Severity
from conformance.findings.errors import PagePathError
from conformance.findings.verdict import WRONG, Check, Verdict
from conformance.runs.reproduce import command
from conformance.views.web.page_data import Version, document, name_versions
from reference.aggregation import Mode

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from conformance.comparing.groups import FindingGroup, SharedCause
    from conformance.findings.report import Report

PARTS = Path(__file__).with_name("page_parts")

UNFOLDED = 24
"""Causes that are unfolded at first, of all frameworks together: they fit on a screen."""

LEAST_UNFOLDED = 2
"""Causes of each framework that are unfolded at first, however many frameworks there are."""

SCRIPTS = ("data.js", "picture.js", "detail.js", "list.js")
"""The scripts in the order in which they build on each other."""


@dataclass(frozen=True, kw_only=True)
class Tally:
    """How many findings are wrong, right, refused and not looked at."""

    query: dict[str, str]
    """The filter of the page that lists them."""

    wrong: int
    right: int
    """They conform, or bad input is refused."""

    refused: int
    """Ordinary steps that the framework refuses: nothing is known of their numbers."""

    unsupported: int
    not_driven: int

    @property
    def seen(self) -> int:
        """How many verdicts there are on what a framework does."""
        return self.wrong + self.right + self.refused

    @property
    def share(self) -> float:
        """The percentage that is wrong, at least 2 so that a single one can be seen."""
        return max(round(100 * self.wrong / self.seen, 1), 2.0 if self.wrong else 0.0)


def tally(version: Version, checks: Collection[Check], modes: Collection[Mode]) -> Tally:
    """Counts the findings of a version in some checks and modes."""
    found = [one for cell in product(checks, modes) for one in version.cells.get(cell, ())]
    verdicts = Counter(one.verdict for one in found)
    rightly_refused = sum(one.is_rightly_refused for one in found)
    query = {"framework": version.framework, "version": version.name}
    if len(checks) == len(modes) == 1:
        query |= {"check": next(iter(checks)), "mode": next(iter(modes))}
    wrong = sum(verdicts[verdict] for verdict in WRONG)
    return Tally(
        query=query if wrong else query | {"verdict": "any"},
        wrong=wrong,
        right=verdicts[Verdict.CONFORMS] + rightly_refused,
        refused=verdicts[Verdict.REFUSED] - rightly_refused,
        unsupported=verdicts[Verdict.UNSUPPORTED],
        not_driven=verdicts[Verdict.NOT_DRIVEN],
    )


def judged_cells(versions: Sequence[Version]) -> list[tuple[Check, Mode]]:
    """Returns the checks and modes that any version was judged in."""
    return [
        (check, mode)
        for check, mode in product(Check, Mode)
        if any(tally(version, [check], [mode]).seen for version in versions)
    ]


@dataclass(frozen=True, kw_only=True)
class PageCause:
    """A cause of a framework, as it is in the last version that has it."""

    group: FindingGroup
    statement: str
    """What it is, and what it was under another condition in the version before."""

    fate: Fate
    became: str
    """What its findings are in the last version, where that leaves open what became of it."""

    counts: dict[str, int]
    """The number of its findings in each version that has it, by the version's name."""

    query: dict[str, str]
    """The filter of the page that lists its findings."""

    impact: str
    example: str
    """What an ordinary finding shows."""

    link: dict[str, str]
    """The filter of the page that opens that finding."""

    command: str
    """Runs the smallest reproduction."""

    @property
    def is_advice(self) -> bool:
        """Whether nothing that the framework promises is broken."""
        return self.group.cause.severity is Severity.ADVICE


def page_causes(versions: Sequence[Version]) -> list[PageCause]:
    """Returns the causes of a framework, each once: those of the last version, the worst first.

    Causes that the last version does not have follow.
    """
    reports = [one.report for one in versions]
    changes = [cause_changes(report, reports[-1]) for report in reports[:-1]]
    became = ((shared, _became(shared, reports, changes)) for shared in shared_causes(reports))
    return [
        _page_cause(shared, versions, change) for shared, change in became if change is not None
    ]


def _became(
    shared: SharedCause, reports: Sequence[Report], changes: Sequence[Sequence[CauseChange]]
) -> CauseChange | None:
    """Returns what became of a cause since the version before, or since the last that has it.

    It is None if the last version has the cause under another condition. ``changes`` are those from
    each version to the last.
    """
    cause, place = shared.cause, next(iter(shared.groups))
    if place == len(changes):
        since = changes[-1] if changes else []
        return next(
            (one for one in since if one.new is cause), CauseChange(Fate.SAME, cause, cause)
        )
    found = next((one for one in changes[place] if one.old is cause), None)
    if found is not None:
        return None if found.fate is Fate.CHANGED else found
    return missing_cause(cause, reports[place], reports[-1])


def _page_cause(shared: SharedCause, versions: Sequence[Version], change: CauseChange) -> PageCause:
    group, version = shared.newest, versions[next(iter(shared.groups))]
    query = {"framework": version.framework, "cause": group.cause.statement}
    address = f"{version.run}/{group.example.id}"
    return PageCause(
        group=group,
        statement=change.statement,
        fate=change.fate,
        became=change.became,
        counts={versions[at].name: len(found.findings) for at, found in shared.groups.items()},
        query=query | ({} if group.example.verdict in WRONG else {"verdict": "any"}),
        impact=impact_words(group.cause.impact),
        example=explain(group.example),
        link={"verdict": "any", "finding": address},
        command=command(version.report, group.smallest),
    )


def write(reports: Iterable[Report], path: Path) -> None:
    """Writes the page of some reports to ``path``, which is checked before any report is read.

    Raises:
        PagePathError: nothing can be written there.
    """
    with _path_errors(path):
        require_regular(path)
    # File names can hold halves of surrogate pairs, which no encoding has.
    page = render(list(reports)).encode("utf-8", "backslashreplace")
    with _path_errors(path):
        path.write_bytes(page)


@contextmanager
def _path_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise PagePathError(
            f"no page can be written to {path}: {error.strerror}",
            "give a file in a folder that exists, with -o FILE",
        ) from error


def render(reports: Sequence[Report], left_out: Collection[Verdict] = ()) -> str:
    """Returns the page; reports of one framework's engine are a timeline in the order given.

    Findings with a verdict of ``left_out`` are counted in the tables, and not listed.
    """
    versions = name_versions(reports)
    frameworks: dict[str, list[Version]] = {}
    for version in versions:
        frameworks.setdefault(version.framework, []).append(version)
    style = _part("style.css")
    script = "".join(map(_part, SCRIPTS))
    environment = Environment(
        loader=FileSystemLoader(PARTS),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    data = document(versions, left_out)
    return environment.get_template("frame.html").render(
        policy=_policy(style, script),
        style=style,
        script=script,
        data=data,
        packed=_packed(data),
        left_out=[*left_out],
        frameworks=frameworks,
        checks=list(Check),
        modes=list(Mode),
        tally=tally,
        judged_cells=judged_cells,
        page_causes=page_causes,
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
        f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}';"
        " base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
