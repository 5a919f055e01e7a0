"""docs/frameworks.md and docs/options.md: how frameworks are driven, their modes and options.

docs/options.md says which options are covered, and by which checks. It is made from the records of
frameworks (`adapters.contract.framework`).
"""

from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING

from adapters.frameworks import LISTED
from conformance.comparing.reductions import (
    DECLARED,
    FRAMEWORKS,
    Declared,
    alike_reductions,
    kind,
)
from conformance.findings.verdict import JUDGED, Check
from conformance.plan.checks import CHECK_SPECS
from conformance.runs.registry import adapter_classes, known
from conformance.views.conversion import differences
from conformance.views.formatting import Tally, environment, markdown_table
from conformance.views.listing import detail, find
from conformance.views.overview.committed import newest
from reference.aggregation import Mode

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from adapters.contract.framework import Framework, OptionRow, Settings
    from adapters.frameworks import ListedFramework
    from conformance.comparing.reductions import Reduction
    from conformance.findings.report import Report
    from conformance.views.overview.committed import CommittedReport

    ByEngine = Mapping[str, Mapping[str, Declared]]


PAGE = Path("docs/frameworks.md")

EXAMPLE = "unequal_groups"
"""The case by whose step the factors between reductions are computed."""

OPTIONS = Path("docs/options.md")

KNOWN_CHECKS = tuple(f"`{name}`" for name in (*Check, *(spec.slug for spec in CHECK_SPECS)))
"""The possible beginnings of a note on an option that a check covers although no job sets it."""

HEAD = """\
# Options and the checks that cover them

The options of each framework that affect the way from rewards to the gradient, and their checks. A
check in the last column runs the framework with the option in use; if no check does, the column
says why. Parts of layouts are called as in their names, such as
`dp2-cp1-mb2-thd`, where `mb` is a number of micro-batches. Options are those of the versions of the
newest [committed reports](../reports/README.md). `python -m conformance.views.overview` writes this
page.

"Advantages are given" means that adapters supply advantages of their own, by which weights are
read. Only in the check `advantages` does the framework compute them, from rewards.
"""


def pages(found: Sequence[CommittedReport]) -> dict[Path, str]:
    """Returns the text of docs/frameworks.md and of the file that conversions read."""
    latest = newest(found)
    declarations = declared(latest)
    document = FRAMEWORKS.dump_python(declarations, mode="json")
    return {
        PAGE: page(latest, declarations),
        DECLARED: json.dumps(document, indent=1) + "\n",
    }


def declared(latest: Sequence[CommittedReport]) -> dict[str, dict[str, Declared]]:
    """Returns the declarations of the newest versions, the default engine of a framework first."""
    reports = {(one.report.adapter, one.report.engine): one for one in latest}
    return {
        framework: {
            engine: _declared(reports[framework, engine], adapter.mode_names)
            for engine, adapter in adapter_classes(framework).items()
            if (framework, engine) in reports
        }
        for framework in sorted({framework for framework, _ in reports})
    }


def _declared(version: CommittedReport, names: Mapping[str, str]) -> Declared:
    """Returns a version's declared conventions, and its names of the modes that were checked."""
    report = version.report
    conventions = report.conventions
    seen = {finding.mode for finding in report.findings if finding.verdict in JUDGED}
    return Declared(
        version=version.name,
        modes={name: mode for name, mode in names.items() if kind(mode) in seen},
        sample_unit=conventions.sample_unit,
        empty_units=conventions.empty_units,
        denominator_mask=conventions.denominator_mask,
    )


def page(latest: Sequence[CommittedReport], declarations: ByEngine) -> str:
    """Returns the text of docs/frameworks.md."""
    alike = alike_reductions(declarations)
    numbers = [str(number) for number in range(1, len(alike) + 1)]
    return (
        environment()
        .get_template("frameworks.md.jinja")
        .render(
            driven=[_driven(one) for one in LISTED.values()],
            recipes=[
                [one.title, one.recipes, one.examples] for one in LISTED.values() if one.recipes
            ],
            modes=[*Mode],
            names=[
                [
                    one.report.adapter,
                    one.report.engine,
                    one.name,
                    *_cells(one.report, declarations[one.report.adapter][one.report.engine].modes),
                ]
                for one in latest
            ],
            alike=[
                [number, one[0].mode, ", ".join(f"`{each}`" for each in one)]
                for number, one in zip(numbers, alike, strict=True)
            ],
            example="\n".join(detail(find(EXAMPLE))),
            factors_header=["from, to", *numbers],
            factors=[
                [number, *(_factor(before[0], after[0]) for after in alike)]
                for number, before in zip(numbers, alike, strict=True)
            ],
        )
    )


def _driven(one: ListedFramework) -> list[str]:
    """Returns a row on how a framework is driven, with a link to its page or repository."""
    classes = adapter_classes(one.name)
    devices = dict.fromkeys(device for adapter in classes.values() for device in adapter.devices)
    return [
        f"[{one.title}]({one.page or f'https://github.com/{one.repository}'})",
        f"`{one.name}`",
        *(", ".join(f"`{word}`" for word in words) for words in (classes, devices, one.extras)),
        f"`{one.environment}`",
        f"`{one.source}`" if one.source.startswith("pypi:") else one.source or "installed",
    ]


def _cells(report: Report, modes: Mapping[str, str]) -> Iterator[str]:
    weighed = [one for one in report.findings if one.check is Check.WEIGHTS]
    for mode in Mode:
        tally = Tally.of(one for one in weighed if one.mode is mode)
        names = [_name(name, meant) for name, meant in modes.items() if kind(meant) is mode]
        wrong = f"{tally.wrong} of {tally.wrong + tally.right}"
        wrong = f"**{wrong}**" if tally.wrong else wrong
        yield f"{', '.join(names)}: {wrong}" if names else "–"


def _name(name: str, meant: str) -> str:
    _, _, divisor = meant.partition(":")
    return f"`{name}` (L = {divisor})" if divisor else f"`{name}`"


def _factor(before: Reduction, after: Reduction) -> str:
    if before is after:
        return "1"
    [found] = differences(find(EXAMPLE), before, after)
    assert found.scale is not None
    assert found.cosine is not None
    turned = f" ({found.cosine:.3f})" if found.cosine < 1 - 1e-9 else ""
    return f"{found.scale:.4g}{turned}"


def option_pages() -> dict[Path, str]:
    """Returns the text of docs/options.md."""
    sections = ["".join(f"{line}\n" for line in option_section(one)) for one in records()]
    return {OPTIONS: "\n".join([HEAD, *sections])}


def records() -> list[list[Framework]]:
    """Returns the records of engines, grouped by title."""
    of_engines = (one.framework for name in known() for one in adapter_classes(name).values())
    documented = [one for one in of_engines if one is not None and one.options]
    by_title = sorted(documented, key=lambda one: one.title.lower())
    return [[*engines] for _, engines in groupby(by_title, lambda one: one.title)]


def option_section(engines: list[Framework]) -> Iterator[str]:
    """Yields the lines about one framework: a table for all engines with the same scope."""
    yield f"## {engines[0].title}"
    for scope in dict.fromkeys(one.scope for one in engines):
        within = [one for one in engines if one.scope == scope]
        yield ""
        if scope:
            yield from (*wrap(scope, 100), "")
        rows = (
            [", ".join(f"`{name}`" for name in row.names), row.changes, _covered(row, within)]
            for row in within[0].options
        )
        yield from markdown_table(["option", "what it changes", "check"], rows)


def _covered(row: OptionRow, engines: list[Framework]) -> str:
    checks = ", ".join(_checks(row, engines))
    if checks or row.note.startswith(KNOWN_CHECKS):
        return "; ".join(filter(None, (checks, row.note)))
    return ": ".join(filter(None, ("none", row.note)))


def _checks(row: OptionRow, engines: list[Framework]) -> Iterator[str]:
    """Yields the checks of jobs that set one of a row's options, with the layouts that do so."""
    names, [of_all, *_] = {*row.names}, engines
    of_modes = [settings for _, settings in of_all.modes.values() if names & {*settings}]
    words = [_word(row, settings) for settings in of_modes]
    if words:
        yield f"`{Check.WEIGHTS}`{_named_for(*words)}"
    for objective, specs in groupby(CHECK_SPECS, lambda spec: spec.objective):
        settings = of_all.objectives.get(objective, {})
        if names & {*settings}:
            yield ", ".join(
                f"`{spec.slug}`"
                for spec in specs
                if spec.metric is None or spec.metric in of_all.metrics
            ) + _named_for(_word(row, settings))
    if any(names & {*chosen.settings} for chosen in of_all.configurations.values()):
        yield f"`{Check.ARGUMENTS}`"
    of_layouts = [
        part
        for engine in engines
        for words, settings in engine.layout.items()
        if names & {*settings}
        for part in words.split()
    ]
    if of_layouts:
        parts = ", ".join(f"`{part}`" for part in dict.fromkeys(of_layouts))
        yield f"`{Check.WEIGHTS}` on layouts with {parts}"


def _word(row: OptionRow, settings: Settings) -> str:
    """The word that the first of a row's options is set to; empty for other values."""
    value = settings.get(row.names[0])
    return value if isinstance(value, str) else ""


def _named_for(*words: str) -> str:
    named = ", ".join(f"`{word}`" for word in dict.fromkeys(words) if word)
    return f" for {' and '.join(named.rsplit(', ', 1))}" if named else ""
