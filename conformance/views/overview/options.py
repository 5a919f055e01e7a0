"""docs/options.md: which options of each framework are covered, and by which checks.

Sections are made of the records of frameworks (`adapters.contract.framework`).
"""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING

from conformance.findings.verdict import Check
from conformance.plan.checks import CHECK_SPECS
from conformance.runs.registry import adapter_classes, known
from conformance.views.markdown import markdown_table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from adapters.contract.framework import Framework, OptionRow, Settings

PAGE = Path("docs/options.md")

KNOWN_CHECKS = tuple(f"`{name}`" for name in (*Check, *(spec.slug for spec in CHECK_SPECS)))
"""What a note begins with if it says which checks look at options that no job sets."""

HEAD = """\
# Options and the checks that cover them

Which options of each framework touch the way from rewards to the gradient, and what looks at each.
A check in the last column runs the framework with the option in use; where there is none, the
reason stands in its place. Parts of layouts are called as in their names, such as
`dp2-cp1-mb2-thd`, where `mb` is a number of micro-batches. Options are those of the versions of the
newest [committed reports](../reports/README.md). `python -m conformance.views.overview` writes this
page.

"Advantages are given" means that adapters put in advantages of their own, which weights are read
by. Only the check `advantages` has the framework compute them, from rewards.
"""


def pages() -> dict[Path, str]:
    """Returns the text of docs/options.md."""
    sections = ["".join(f"{line}\n" for line in section(one)) for one in records()]
    return {PAGE: "\n".join([HEAD, *sections])}


def records() -> list[list[Framework]]:
    """Returns the records of engines that have one title, by that title."""
    of_engines = (one.framework for name in known() for one in adapter_classes(name).values())
    documented = [one for one in of_engines if one is not None and one.options]
    by_title = sorted(documented, key=lambda one: one.title.lower())
    return [[*engines] for _, engines in groupby(by_title, lambda one: one.title)]


def section(engines: list[Framework]) -> Iterator[str]:
    """Yields the lines about one framework: a table for engines whose records have one scope."""
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
    return f"none: {row.note}"


def _checks(row: OptionRow, engines: list[Framework]) -> Iterator[str]:
    """Yields the checks of jobs that set one of a row's options, on the layouts where they do."""
    names, [of_all, *_] = {*row.names}, engines
    of_modes = [settings for _, settings in of_all.modes.values() if names & {*settings}]
    words = [_word(row, settings) for settings in of_modes]
    if words:
        yield f"`{Check.WEIGHTS}`{_for(*words)}"
    for objective, specs in groupby(CHECK_SPECS, lambda spec: spec.objective):
        settings = of_all.objectives.get(objective, {})
        if names & {*settings}:
            yield ", ".join(
                f"`{spec.slug}`"
                for spec in specs
                if spec.metric is None or spec.metric in of_all.metrics
            ) + _for(_word(row, settings))
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
    """The word that the first of a row's options is set to; empty if it is no word."""
    value = settings.get(row.names[0])
    return value if isinstance(value, str) else ""


def _for(*words: str) -> str:
    named = ", ".join(f"`{word}`" for word in dict.fromkeys(words) if word)
    return f" for {' and '.join(named.rsplit(', ', 1))}" if named else ""
