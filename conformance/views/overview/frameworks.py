"""docs/frameworks.md: what each framework calls a mode, and what it means by that name."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

from conformance.comparing.conversion import (
    DECLARED,
    FRAMEWORKS,
    Declared,
    Reduction,
    differences,
    kind,
)
from conformance.corpus.cases import CORPUS, REJECTION
from conformance.findings.verdict import JUDGED, WRONG, Check, Verdict
from conformance.runs.registry import adapter_classes
from conformance.views.listing import detail, find
from conformance.views.overview.committed import newest
from conformance.views.tables import markdown_table
from reference.aggregation import Mode

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from conformance.findings.report import Report
    from conformance.views.overview.committed import Version

    ByEngine = Mapping[str, Mapping[str, Declared]]

PAGE = Path("docs/frameworks.md")

EXAMPLE = "unequal_groups"
"""The case whose step the factors between reductions are told of."""

HEAD = """\
# Frameworks side by side

What each framework calls a mode, what it means by the name, and by how much the learning rate
changes for somebody who takes a recipe from one to another. All of it is of the newest
[committed reports](../reports/README.md); `python -m conformance.views.overview` writes this page.

For a step of your own, with masks and lengths as your recipe has them
([its form](check-a-framework.md#a-step-of-your-own)):

```sh
rl-loss-conformance convert --from=verl:token-mean --to=skyrl:sequence_mean STEP.json
```

## Names

The framework's own name of each mode. Behind it, how many of the steps that were looked at have
wrong weights in the gradient of the policy loss, under any name of the mode. Steps that a framework
refuses are not among them.
"""

CONVENTIONS_HEAD = """
## What the modes leave open

As each framework documents it; what no document says is read off the code, and in brackets. None
of the answers is a mistake, and all but the first three concern auxiliary losses and logged numbers
alone.
"""

ALIKE_HEAD = """
## Names for the same thing

Reductions of one row weigh every token of every case of the corpus alike, rejected tokens and
rollouts of several samples included, so that a recipe keeps its learning rate. Where users give the
divisor L, it is the same for all.
"""

FACTORS_HEAD = """
## Factors on the learning rate

What becomes of the gradient where a recipe moves from the row's reduction to the column's: the
factor on the learning rate, and the cosine of the angle between both gradients where it is below 1.
Rows and columns are those of the table above. All of it depends on the step; this is a case of the
corpus:
"""

SHOWN = {
    "N counts": "sample_unit",
    "samples without active tokens": "empty_units",
    "mask of denominators": "denominator_mask",
    "entropy": "entropy",
    "KL": "kl",
    "estimator of KL": "kl_estimator",
    "diagnostics": "diagnostics",
}
"""Fields of `reference.aggregation.Conventions` by the words of the page."""


def pages(found: Sequence[Version]) -> dict[Path, str]:
    """Returns the text of docs/frameworks.md and of the file that conversions read."""
    latest = newest(found)
    declarations = declared(latest)
    document = FRAMEWORKS.dump_python(declarations, mode="json")
    return {
        PAGE: "".join(f"{line}\n" for line in page(latest, declarations)),
        DECLARED: json.dumps(document, indent=1) + "\n",
    }


def declared(latest: Sequence[Version]) -> dict[str, dict[str, Declared]]:
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


def _declared(version: Version, names: Mapping[str, str]) -> Declared:
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


def page(latest: Sequence[Version], declarations: ByEngine) -> Iterator[str]:
    """Yields the lines of docs/frameworks.md."""
    yield HEAD
    yield from _names(latest, declarations)
    yield CONVENTIONS_HEAD
    yield from _conventions(latest)
    yield ALIKE_HEAD
    alike = _alike(declarations)
    yield from _table_of_alike(alike)
    yield FACTORS_HEAD
    yield "```text"
    yield from detail(find(EXAMPLE))
    yield "```"
    yield ""
    yield from _factors(alike)


def _names(latest: Sequence[Version], declarations: ByEngine) -> Iterator[str]:
    rows = (
        [
            one.report.adapter,
            one.report.engine,
            one.name,
            *_cells(one.report, declarations[one.report.adapter][one.report.engine].modes),
        ]
        for one in latest
    )
    return markdown_table(["framework", "engine", "version", *Mode], rows)


def _cells(report: Report, modes: Mapping[str, str]) -> Iterator[str]:
    weighed = [one for one in report.findings if one.check is Check.WEIGHTS]
    trained = (Verdict.CONFORMS, *WRONG)
    seen = Counter(one.mode for one in weighed if one.verdict in trained)
    wrong = Counter(one.mode for one in weighed if one.verdict in WRONG)
    for mode in Mode:
        names = [_name(name, meant) for name, meant in modes.items() if kind(meant) is mode]
        verdict = f"**{wrong[mode]} of {seen[mode]}**" if wrong[mode] else f"0 of {seen[mode]}"
        yield f"{', '.join(names)}: {verdict}" if names else "–"


def _name(name: str, meant: str) -> str:
    _, _, divisor = meant.partition(":")
    return f"`{name}` (L = {divisor})" if divisor else f"`{name}`"


def _conventions(latest: Sequence[Version]) -> Iterator[str]:
    rows = (
        [
            f"{one.framework} {one.name}",
            *(_answer(one.report, field) for field in SHOWN.values()),
        ]
        for one in latest
    )
    return markdown_table(["", *SHOWN], rows)


def _answer(report: Report, convention: str) -> str:
    answer = str(getattr(report.conventions, convention))
    return answer if convention in report.documented else f"({answer})"


def _alike(declarations: ByEngine) -> list[list[Reduction]]:
    """Returns all reductions; those that weigh every case of the corpus alike are one list.

    Engines of one framework that are alike are named once.
    """
    classes: dict[bytes, list[Reduction]] = defaultdict(list)
    for framework, engines in declarations.items():
        for number, (engine, found) in enumerate(engines.items()):
            for name in found.modes:
                place = f"{framework}/{engine}" if number else framework
                one = Reduction(place=place, name=name, declared=found)
                alike = classes[_weights(one)]
                if f"{framework}:{name}" not in map(str, alike):
                    alike.append(one)
    return sorted(classes.values(), key=lambda reductions: [*Mode].index(kind(reductions[0].mode)))


def _weights(one: Reduction) -> bytes:
    """Returns the weights of all cases of the corpus."""
    steps = [(step, case.divisor) for case in (*CORPUS, *REJECTION) for step in case.steps]
    return b"".join(one.weights(step, divisor).tobytes() for step, divisor in steps)


def _table_of_alike(alike: Sequence[Sequence[Reduction]]) -> Iterator[str]:
    rows = (
        [str(number), one[0].mode, ", ".join(f"`{each}`" for each in one)]
        for number, one in enumerate(alike, 1)
    )
    return markdown_table(["", "mode", "reductions"], rows)


def _factors(alike: Sequence[Sequence[Reduction]]) -> Iterator[str]:
    numbers = [str(number) for number in range(1, len(alike) + 1)]
    rows = (
        [number, *(_factor(before[0], after[0]) for after in alike)]
        for number, before in zip(numbers, alike, strict=True)
    )
    return markdown_table(["from, to", *numbers], rows)


def _factor(before: Reduction, after: Reduction) -> str:
    if before is after:
        return "1"
    [found] = differences(find(EXAMPLE), before, after)
    assert found.scale is not None
    assert found.cosine is not None
    turned = f" ({found.cosine:.3f})" if found.cosine < 1 - 1e-9 else ""
    return f"{found.scale:.4g}{turned}"
