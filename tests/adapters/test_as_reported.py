"""Findings of committed reports, made again by the real code of frameworks.

CI makes whole quick plans of SkyRL, verl, AReaL, OpenRLHF and TRL on one engine each, with
``--expect``, which notices new mistakes. These tests cover all engines, and also notice findings
that are no longer made.
"""

from collections.abc import Iterator
from importlib.metadata import version
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import pytest

from conformance.comparing.report_file import load
from conformance.findings.report import Report
from tests import command
from tests.adapters.steps import marks, require
from tests.pools import clone
from tests.tables import table

REPORTS = Path(__file__).parents[2] / "reports"

DISTRIBUTIONS = {"liger": "liger-kernel", "unsloth": "unsloth_zoo"}
"""The distributions of frameworks whose package has another name."""


class Selection(NamedTuple):
    """A committed report, and the selection of its findings that are made again."""

    report: str
    layouts: tuple[str, ...]
    """Layouts, with which the ids of the selected findings end."""

    parts: tuple[str, ...] = ("/",)
    """Parts of ids, such as checks or cases; the id of a selected finding contains one of them."""

    marks: tuple[pytest.MarkDecorator, ...] = ()

    def has(self, finding_id: str) -> bool:
        """Whether a finding is made again."""
        is_on = finding_id.endswith(self.layouts)
        return is_on and any(part in finding_id for part in self.parts)

    @property
    def expression(self) -> str:
        """The expression that selects the findings, for pytest's option ``-k``."""
        layouts = " or ".join(f"{layout}]" for layout in self.layouts)
        return f"({layouts}) and ({' or '.join(self.parts)})"


TELLING = (
    "fully_masked_sample",
    "long_prompts",
    "nine_samples",
    "no_active_token",
    "rejected_tokens",
    "short_responses",
    "two_steps",
)
"""Cases that distinguish the mistakes of most checks."""

STARTUP = ("arguments.", "logging")

TABLE = table("adapters/as_reported.toml")

NAMED = {"TELLING": TELLING, "STARTUP": STARTUP}


def _selections() -> Iterator[Selection]:
    """Yields the selections of the table, one for each of their reports."""
    for entry in TABLE["selection"]:
        parts = [NAMED.get(part, (part,)) for part in entry.get("parts", ["/"])]
        for report in entry["reports"]:
            marked = (pytest.mark.thorough,) if entry.get("thorough") else ()
            yield Selection(
                report, tuple(entry["layouts"]), tuple(chain.from_iterable(parts)), marked
            )


SELECTIONS = tuple(_selections())


def made(selection: Selection, report: Report) -> dict[str, tuple[str, str | None]]:
    """The verdicts and diagnoses of the selected findings, by id."""
    return {
        str(finding.id): (finding.verdict, finding.diagnosis and finding.diagnosis.name)
        for finding in report.findings
        if selection.has(str(finding.id))
    }


class Commit(NamedTuple):
    """A commit of a clone, and the expected verdict or mistake of a step in `token_mean`."""

    adapter: str
    engine: str
    ref: str
    layout: str
    found: str = "conforms"
    """A verdict, or the mistake."""

    case: str = "uneven_lengths"


COMMITS = tuple(Commit(**entry) for entry in TABLE["commit"])
"""The oldest commits that the pages call driven, and commits that changed the result of a step."""


def source(report: Report) -> list[str]:
    """The option for a report's version; the test is skipped if that version is not available."""
    of = report.source
    if of.kind == "pypi":
        return [f"--source=pypi:{of.version}"]
    if of.kind == "git":
        return [f"--source={clone(report.adapter)}@{of.revision}"]
    distribution = DISTRIBUTIONS.get(report.adapter, report.adapter)
    if find_spec(distribution.replace("-", "_")) is None:
        pytest.skip(f"{distribution} is not installed")
    if version(distribution) != of.version:
        pytest.skip(f"{distribution} is installed in another version than {of.version}")
    return []


def again(folder: Path, adapter: str, *options: str) -> command.Result:
    """Runs an adapter; several sources of one framework need processes of their own."""
    if any(option.startswith("--source=") for option in options):
        process = command.start(folder, f"--adapter={adapter}", *options)
        return command.finish(process, folder, adapter)
    return command.run(folder, adapter, *options)


@pytest.mark.parametrize(
    "selection",
    [
        pytest.param(
            one,
            id=f"{one.report} {one.layouts[0]}",
            marks=[*marks(one.report.partition("/")[0]), *one.marks],
        )
        for one in SELECTIONS
    ],
)
def test_findings_are_those_of_the_committed_report(tmp_path: Path, selection: Selection) -> None:
    """Checks that are newer than a report, and findings beyond its plan, are not compared."""
    committed = load(REPORTS / f"{selection.report}.json.gz")
    require(committed.engine)
    depth = committed.findings[0].depth
    plan, divisor = committed.request.plan, committed.request.divisor
    modes = [f"--modes=constant:{divisor:g}"] if divisor else []
    asked = (f"--plan={plan}", f"--depth={depth}", *modes, "--no-trace")
    chosen = (f"--engine={committed.engine}", *source(committed), *asked)
    result = again(tmp_path, committed.adapter, *chosen, "-k", selection.expression)

    assert result.report.complete, result.output
    then, now = made(selection, committed), made(selection, result.report)
    found = then.keys() & now.keys()
    # Quick plans of then and now share most jobs, but not all.
    assert len(found) > 0.7 * min(len(then), len(now))
    assert {one: now[one] for one in found} == {one: then[one] for one in found}


@pytest.mark.parametrize(
    "one",
    [
        pytest.param(one, id=f"{one.engine} {one.ref} {one.case}", marks=marks(one.adapter))
        for one in COMMITS
    ],
)
def test_commits_that_the_pages_name_are_driven(tmp_path: Path, one: Commit) -> None:
    require(one.engine)
    chosen = (f"--source={clone(one.adapter)}@{one.ref}", f"--engine={one.engine}")
    step = ("--checks=weights", "--modes=token_mean", f"--layout={one.layout}", "-k", one.case)
    result = again(tmp_path, one.adapter, *chosen, *step)

    [finding] = result.report.findings
    named = finding.diagnosis.name if finding.diagnosis else finding.verdict
    assert named.partition("_or_")[0] == one.found, result.output
