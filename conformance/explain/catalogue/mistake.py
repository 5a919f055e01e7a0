"""The record of a known mistake, and the predictions that are made for a mistake."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from conformance.findings.cause import UNEXPLAINED

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from conformance.expected.step_context import StepContext
    from conformance.expected.term import LossTerm
    from reference.arrays import Values


class Kind(StrEnum):
    """The part of a step that a mistake gets wrong; it limits which mistakes are combined."""

    WEIGHTS = "the weights of tokens"
    FACTOR = "one factor of all weights, which may come on top of another mistake"
    PARTS = "denominators of parts of a step, whose means are averaged"
    FILLED = "what a mean counts besides samples: padding or repeated rows"
    UNREDUCED = "the shares of other ranks, which are left out"
    DERIVATIVE = "the derivative of a policy loss, which weights are multiplied by"
    ADVANTAGE = "the advantages, which weights are multiplied by"
    COUNT = "a count that is read off a factor which no other mistake explains"
    READ_OFF = "what is read off the numbers themselves, and cannot be predicted"
    ABSENT = "the whole term, which hides all else that is wrong with it"
    LOGGED = "what ranks add up to a logged number, and no gradient"
    FOUND = "what is found by other means than weights"
    RULE = "a rule about configurations, logs or group boundaries"


@dataclass(frozen=True, kw_only=True)
class Mistake:
    """A known mistake: its properties that do not depend on a step."""

    name: str
    says: str
    """The mistake in words, as the end of a sentence."""

    kind: Kind
    at_size: str = ""
    """The mistake's effect on a step of any size, as the end of a sentence, if a formula says more
    than a prediction for one step."""

    only: tuple[str, ...] = ()
    """Facts that the mistake needs: they are its condition, unless a finding contradicts them."""

    @property
    def is_read_off(self) -> bool:
        """Whether the mistake cannot be predicted, and is only recognised in observed numbers."""
        return self.kind in (Kind.READ_OFF, Kind.COUNT)


INACTIVE = "inactive_tokens_weigh"
"""The mistake by which masked tokens have a weight."""

OPTION_IGNORED = "option_ignored"
"""The mistake of an option without effect; statements name it together with the option."""

ASSUMED = "which the framework does not document"
"""The end of a sentence on a convention that a framework only seems to have."""


def _read() -> Iterator[Mistake]:
    """Yield the known mistakes of ``mistakes.toml``."""
    text = Path(__file__).with_name("mistakes.toml").read_text("utf-8")
    for group in tomllib.loads(text)["group"]:
        kind, only, at_size = Kind[group["kind"]], group.get("only", ()), group.get("at_size", {})
        for name, says in group["says"].items():
            yield Mistake(
                name=name, says=says, kind=kind, at_size=at_size.get(name, ""), only=tuple(only)
            )


MISTAKES = {mistake.name: mistake for mistake in _read()}
"""All known mistakes by name, the most common first."""

PLACES = {name: place for place, name in enumerate(MISTAKES)}


def commonness(name: str) -> int:
    """A sort key for names of mistakes, the most common ones first."""
    return PLACES[name]


def doubt(name: str) -> int:
    """A sort key for diagnoses: predicted mistakes, then inferred ones, then unexplained ones."""
    if name in (UNEXPLAINED, "nothing_reported"):
        return 2
    is_count = name in MISTAKES and MISTAKES[name].kind is Kind.COUNT
    return int(is_count or name == INACTIVE)


@dataclass(frozen=True, kw_only=True, eq=False)
class Prediction:
    """The weights of a step's tokens with a mistake, or the factors on the weights.

    If the mistake is a factor, ``sizes`` has the possible factors by name.
    """

    name: str
    """The name of the mistake, or of the first one if several are possible."""

    weights: Values
    """The predicted weights: [tokens]."""

    factors: Values | None = None
    """The wrong factors on the weights, [tokens]; None if the factors are right."""

    words: str = ""
    """The mistake in words, with the numbers of this step; empty if `Mistake.says` is enough."""

    sizes: dict[str, float] = field(default_factory=dict)
    causes: Sequence[str] = ()
    """Names of the possible mistakes, if one step cannot distinguish several; else empty."""

    together: tuple[str, ...] = ()
    """Names of further mistakes that are made together with this one."""

    def products(self, term: LossTerm) -> Values:
        """Weight · factor of each token of a term: [tokens]."""
        return self.weights * (term.factors if self.factors is None else self.factors)

    order: int = 0
    """The place among the predictions for a term, which are sorted by plausibility."""

    @property
    def mistakes(self) -> list[Mistake]:
        """The possible mistakes of the prediction."""
        return [MISTAKES[name] for name in self.causes or [self.name]]

    @property
    def kind(self) -> Kind:
        """The part of a step that the mistake gets wrong."""
        return self.mistakes[0].kind

    @property
    def says(self) -> str:
        """The mistake in words, as the end of a sentence."""
        return self.words or self.mistakes[0].says


def counting(
    context: StepContext,
    name: str,
    tokens: Values | None = None,
    units: Values | float | None = None,
    words: str = "",
) -> Prediction:
    """The prediction of a mistake that counts wrong tokens, [N or tokens], or wrong units."""
    return Prediction(name=name, words=words, weights=context.weights(tokens, units))
