"""Reports as one web page that needs nothing else: matrix, timelines, and all findings.

What a framework says is untrusted. The frame escapes it, the data are JSON in which no tag can
begin, the script adds it as text only, and a policy with the hashes of our own style and script
forbids any other.
"""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from conformance.comparing.writable import require_regular
from conformance.findings.errors import PagePathError
from conformance.findings.verdict import JUDGED, WRONG, Check, Verdict
from conformance.views.page_data import Shown, document, progress, shown
from reference.aggregation import Mode

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from conformance.findings.report import Report

PARTS = Path(__file__).with_name("page_parts")

SCRIPTS = ("data.js", "picture.js", "detail.js", "list.js")
"""In the order in which they build on each other."""


@dataclass(frozen=True, kw_only=True)
class Tally:
    """How many findings of one version, check and mode are wrong, of how many that were run."""

    query: dict[str, str]
    """The filter that lists them."""

    wrong: int
    seen: int
    unsupported: int

    @property
    def share(self) -> float:
        """How much of it is wrong, in percent; the least of it can be seen."""
        return max(round(100 * self.wrong / self.seen, 1), 2.0 if self.wrong else 0.0)


@dataclass(frozen=True)
class Version:
    """One report, counted."""

    shown: Shown

    @cached_property
    def modes(self) -> list[Mode]:
        """Those it has findings of."""
        return [mode for mode in Mode if mode in self.shown.report.summary.modes]

    @property
    def stopped(self) -> str:
        """How far a run got that was stopped; empty for any other."""
        return "" if self.shown.report.complete else progress(self.shown.report)

    @cached_property
    def _verdicts(self) -> Counter[tuple[Check, Mode, Verdict]]:
        return Counter((f.check, f.mode, f.verdict) for f in self.shown.report.findings)

    def tally(self, checks: Iterable[Check], modes: Iterable[Mode]) -> Tally:
        """Those of some checks and modes together."""
        cells, counts = list(product(checks, modes)), self._verdicts
        verdicts = {v: sum(counts[check, mode, v] for check, mode in cells) for v in Verdict}
        wrong = sum(verdicts[verdict] for verdict in WRONG)
        query = {"framework": self.shown.framework, "version": self.shown.version}
        if len(cells) == 1:
            [(check, mode)] = cells
            query |= {"check": check, "mode": mode}
        return Tally(
            query=query if wrong else query | {"verdict": "any"},
            wrong=wrong,
            seen=sum(count for verdict, count in verdicts.items() if verdict in JUDGED),
            unsupported=verdicts[Verdict.UNSUPPORTED],
        )


@dataclass(frozen=True)
class Framework:
    """One framework's engine in all versions that there are reports of, in the order given."""

    name: str
    versions: list[Version]

    @property
    def latest(self) -> Version:
        """The report given last."""
        return self.versions[-1]

    @property
    def rows(self) -> list[tuple[Check, Mode]]:
        """Checks and modes that any version was looked at for."""
        return [
            (check, mode)
            for check, mode in product(Check, Mode)
            if any(version.tally([check], [mode]).seen for version in self.versions)
        ]


def write(reports: Iterable[Report], path: Path) -> None:
    """Put the page of some reports at ``path``, before which none of them is asked for.

    Raises:
        PagePathError: nothing can be written there.
    """
    with _refusals_said(path):
        require_regular(path)
    # Python has halves of characters, from the names of files, that no encoding has.
    page = render(list(reports)).encode("utf-8", "backslashreplace")
    with _refusals_said(path):
        path.write_bytes(page)


@contextmanager
def _refusals_said(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise PagePathError(
            f"no page can be written to {path}: {error.strerror}",
            "give a file in a folder that exists, with -o FILE",
        ) from error


def render(reports: Sequence[Report]) -> str:
    """The page; reports of one framework's engine are a timeline in the order given."""
    versions = shown(reports)
    style = _part("style.css")
    script = "".join(map(_part, SCRIPTS))
    environment = Environment(
        loader=FileSystemLoader(PARTS),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {
        "allow_nan": False,
        "ensure_ascii": False,
        "separators": (",", ":"),
    }
    return environment.get_template("frame.html").render(
        policy=_policy(style, script),
        style=style,
        script=script,
        data=document(versions),
        frameworks=_frameworks(versions),
        checks=list(Check),
        modes=list(Mode),
    )


def _frameworks(versions: Iterable[Shown]) -> list[Framework]:
    found: dict[str, Framework] = {}
    for one in versions:
        found.setdefault(one.framework, Framework(one.framework, [])).versions.append(Version(one))
    return list(found.values())


def _part(name: str) -> str:
    return (PARTS / name).read_text(encoding="utf-8")


def _policy(style: str, script: str) -> str:
    """Of everything on the page, only our own style and script are in force."""
    return (
        f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}';"
        " base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
