"""Facts of conditions and checks in words that need no knowledge of this project.

If a user chooses a fact by an option, the fact is worded as the option that the user types.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from adapters.contract import Option
from conformance.findings.verdict import Check
from conformance.plan.checks import ALL_SPECS, CHECK_SPECS, LAWFUL
from reference.aggregation import Mode

SLUGS = frozenset(one.slug for one in CHECK_SPECS)

OBJECTIVES = {spec.slug: spec.objective for spec in ALL_SPECS}

_WORDS: Mapping[str, Mapping[str, str]] = tomllib.loads(
    Path(__file__).with_suffix(".toml").read_text("utf-8")
)

PARALLELISM = {part: [words] for part, words in _WORDS["parallelism"].items()}
"""The kinds of parallelism in words, if no adapter's record names their options."""

LOSSES = (Check.OFF_POLICY, Check.ADVANTAGES, Check.OTHER_LOSSES)
"""Checks of policy losses, advantages and other losses, which a user chooses by options."""

LAWS = {spec.slug: (spec.law.says, spec.objective) for spec in LAWFUL if spec.law is not None}
"""For each check of a law, the change in words, and the objective."""

FORMATS = ("thd", "bshd")

ChosenBy = Mapping[str, Sequence[str]]
"""The options that a user types for each mode, objective and part of layouts that is not the
default."""


def counted(number: int, what: str, plural: str = "s") -> str:
    """Returns a number with what it counts, such as ``1 sample`` or ``2 micro-batches``."""
    return f"{number:,} {what}{'' if number == 1 else plural}"


def spelt(name: str) -> str:
    """Returns the name of a loss, number or kind of advantages as spelt in sentences."""
    spelt = " ".join(_WORDS["spellings"].get(word, word) for word in name.split("_"))
    return spelt.replace(" pp", "++").replace("penalised GAE", "KL-penalised GAE")


@cache
def is_choice(fact: str) -> bool:
    """Whether a fact is about options, layouts or batches, rather than about a checked number."""
    name = fact.rpartition(" ")[2]
    is_chosen = name in (*Mode,) or _is_of_loss(name)
    return is_chosen or fact.startswith(("with", "where ", "after "))


def _is_of_loss(slug: str) -> bool:
    """Whether a check is of a policy loss, of advantages or of another loss."""
    return slug in SLUGS and slug.partition(".")[0] in LOSSES


def said(fact: str, chosen_by: ChosenBy) -> str:
    """Returns a fact in words; ``chosen_by`` has the options that choose parts of layouts."""
    if fact in _WORDS["layouts"]:
        return _WORDS["layouts"][fact]
    start, _, name = fact.rpartition(" ")
    part = _part(fact)
    if typed := _typed(part, chosen_by):
        return f"{'without' if start in ('without', 'except in') else 'with'} {typed}"
    if start in ("in", "except in") and name in {*SLUGS, *_WORDS["subjects"], *LAWS}:
        return f"{start} {subject(name)}"
    if fact.startswith(("with ", "without ")):
        return fact.replace("_", " ")
    for term, words in _WORDS["terms"].items():
        fact = fact.replace(f"the {term} term", f"the {words}")
    return fact.replace("the policy_loss and kl terms of the loss", "the policy loss and KL term")


def options_of(fact: str, chosen_by: ChosenBy) -> Sequence[str]:
    """Returns the options that a user types to get a fact; empty if no option is needed."""
    part = _part(fact)
    return () if fact.startswith("without ") else chosen_by.get(part, PARALLELISM.get(part, ()))


def _part(fact: str) -> str:
    """The mode, objective or part of a layout that a fact is about; else the fact's last word."""
    name = fact.rpartition(" ")[2]
    return _WORDS["parts"].get(fact) or (OBJECTIVES[name] if _is_of_loss(name) else name)


def _typed(part: str, chosen_by: ChosenBy) -> str:
    """The options of a part, if they choose nothing else; otherwise empty.

    Modes, layout options and formats always have their options. A policy loss or estimator has no
    options here if another one needs the same options, since these then do not identify it.
    """
    options = chosen_by.get(part, ())
    others = (chosen for other, chosen in chosen_by.items() if other != part)
    is_of_others = any({*options} <= {*chosen} for chosen in others)
    is_known = part in (*Mode, *Option, *FORMATS)
    return "" if is_of_others and not is_known else " ".join(options)


def subject(slug: str) -> str:
    """Returns the gradient or number that a check looks at, in words."""
    check, _, name = slug.partition(".")
    named = spelt(name)
    if slug in LAWS:
        says, objective = LAWS[slug]
        return f"the same step when {says} ({spelt(objective)})"
    pattern = _WORDS["checks"].get(check, f"{check}: NAME")
    return _WORDS["subjects"].get(slug) or pattern.replace("NAME", named)
