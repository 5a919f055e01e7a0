"""The answer about a recipe as text, JSON and a web page, with one sentence first."""

from __future__ import annotations

import json
import textwrap
from typing import TYPE_CHECKING

from markupsafe import Markup

from conformance.findings.cause import Severity
from conformance.views.formatting import environment
from conformance.views.web.page import PARTS, digest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from conformance.recipes.answer import Answer, Reached

WIDTH = 100


def as_text(answer: Answer) -> Iterator[str]:
    """Yields the sentence, the findings behind it, and the mistakes that reach the recipe."""
    yield from _wrapped(answer.sentence, "")
    yield ""
    yield _ran(answer)
    for heading, lines in _sections(answer):
        yield ""
        yield f"{heading}:"
        for one in lines:
            yield from _wrapped(one, "  - ")


def as_html(answer: Answer) -> Iterator[str]:
    """Yields one self-contained web page with the same content."""
    style = "".join((PARTS / name).read_text("utf-8") for name in ("style.css", "recipe.css"))
    yield (
        environment()
        .get_template("recipe.html")
        .render(
            answer=answer,
            ran=_ran(answer),
            sections=[*_sections(answer)],
            style=Markup(style),
            digest=digest(style),
        )
    )


def _ran(answer: Answer) -> str:
    return f"{answer.framework} {answer.version}, engine {answer.engine}: {answer.ran}"


def _sections(answer: Answer) -> Iterator[tuple[str, list[str]]]:
    """Yield each heading that has lines, with its lines."""
    elsewhere = ", ".join(answer.elsewhere)
    every: dict[str, Iterable[str]] = {
        "What your recipe trains": [*answer.weight, *answer.losses],
        "In other words": [f"{elsewhere}."] if elsewhere else [],
        "What it chose": _options(answer.chosen),
        "What is the framework's default": _options(answer.defaults),
        "What reaches it": _all_reached(answer.reached),
        "What does not reach it, tested by this run": (
            f"{one.says} Not reached: it would show in {one.finding}." for one in answer.not_reached
        ),
        "Wrong once, and right when run again": answer.unsteady,
        "What this run would not show": _not_tested(answer),
        "What your log means": (f"{key.name}: {key.means} [{key.state}]" for key in answer.logged),
        "What was run in place of your values": answer.instead,
        "Options of yours that no check looks at": (
            f"{name}: {said}" for name, said in answer.not_looked_at.items()
        ),
    }
    for heading, lines in every.items():
        if said := [*lines]:
            yield heading, said


def as_json(answer: Answer) -> Iterator[str]:
    """Yields one JSON document for programs, with the same content."""
    yield json.dumps(answer.model_dump(mode="json"), indent=1, ensure_ascii=False)


def _options(options: Mapping[str, str]) -> list[str]:
    return [" ".join(f"{name}={value}" for name, value in options.items())] if options else []


def _not_tested(answer: Answer) -> Iterator[str]:
    """Yields known mistakes that the run would not show; advice is only counted."""
    yield from (f"{one.says} It reaches {one.reach}." for one in answer.not_tested if one.reach)
    others = sum(one.reach is None for one in answer.not_tested)
    if others:
        yield f"{others} more, shown only by bad input or by values that no ordinary step has."


def _all_reached(reached: Iterable[Reached]) -> Iterator[str]:
    for one in reached:
        where = f" ({', '.join(one.keys)})" if one.keys else ""
        on_purpose = f" On purpose: {one.on_purpose}." if one.on_purpose else ""
        sized = f" At your batch size: {one.at_size}." if one.at_size else ""
        rare = f" Seen only {', '.join(one.rare)}." if one.rare else ""
        place = "; ".join(filter(None, (one.line, one.upstream)))
        new = (
            ""
            if one.is_known or one.severity is Severity.ADVICE
            else " Not known before: it was never held against the source."
        )
        yield (
            f"{one.severity}{where}: {one.says}{rare}{on_purpose}{sized}{new}"
            f"{f' {place}.' if place else ''} For example {one.example}"
        )


def _wrapped(text: str, start: str) -> Iterator[str]:
    yield from textwrap.wrap(
        text,
        WIDTH,
        initial_indent=start,
        subsequent_indent=" " * len(start),
        break_long_words=False,
        break_on_hyphens=False,
    )
