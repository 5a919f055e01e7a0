"""docs/frameworks.md: what each framework calls a mode, and what it means by that name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from conformance.findings.verdict import JUDGED, Check
from conformance.runs.registry import adapter_classes
from conformance.views.conversion import (
    DECLARED,
    FRAMEWORKS,
    Declared,
    alike_reductions,
    differences,
    kind,
)
from conformance.views.formatting import Tally, environment
from conformance.views.listing import detail, find
from conformance.views.overview.committed import newest
from reference.aggregation import Mode

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from conformance.findings.report import Report
    from conformance.views.conversion import Reduction
    from conformance.views.overview.committed import CommittedReport

    ByEngine = Mapping[str, Mapping[str, Declared]]

PAGE = Path("docs/frameworks.md")

EXAMPLE = "unequal_groups"
"""The case whose step the factors between reductions are told of."""


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
    """Returns what the newest versions declare, the default engine of each framework first."""
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
    """Returns a version's own conventions, and its names of the modes that were looked at."""
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
