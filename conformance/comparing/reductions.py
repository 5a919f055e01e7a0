"""The reductions of all frameworks, by their own names, and which of them are equivalent.

The conventions of every framework are those of its newest committed report, which
`conformance.views.overview` writes to ``reductions.json`` next to this module.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from pydantic import TypeAdapter

from conformance.corpus.cases import CORPUS, REJECTION
from conformance.findings.errors import UnknownReductionError
from conformance.findings.finding import FrozenModel
from reference.aggregation import (
    Aggregation,
    Conventions,
    DenominatorMask,
    EmptyUnits,
    Mode,
    SampleUnit,
)
from reference.weights import token_weights

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from conformance.corpus.cases import Case
    from reference.step import Step


Value = TypeVar("Value")

DECLARED = Path(__file__).with_name("reductions.json")


class Declared(FrozenModel):
    """A framework version's declarations that determine the token weights of its policy loss."""

    version: str
    modes: dict[str, str]
    """The framework's reductions by its own names, as `adapters.contract.Adapter.mode_names`."""

    sample_unit: SampleUnit
    empty_units: EmptyUnits
    denominator_mask: DenominatorMask

    @property
    def conventions(self) -> Conventions:
        """The declared conventions, and the defaults of all other conventions."""
        return Conventions(**self.model_dump(exclude={"version", "modes"}))


FRAMEWORKS = TypeAdapter(dict[str, dict[str, Declared]])
"""Declarations by framework and engine, the default engine first."""


def kind(mode: str) -> Mode:
    """Returns the mode in a text for `Aggregation.parse`, with or without a divisor."""
    return Mode(mode.partition(":")[0])


@cache
def declared() -> Mapping[str, Mapping[str, Declared]]:
    """Returns the declarations of each framework's newest committed report."""
    return FRAMEWORKS.validate_json(DECLARED.read_bytes())


@dataclass(frozen=True, kw_only=True)
class Reduction:
    """A framework's reduction of the policy loss, by the framework's own name."""

    place: str
    """The framework, with its engine if that is not the default: ``miles`` or ``miles/fsdp``."""

    name: str
    declared: Declared

    @property
    def mode(self) -> str:
        """The mode as `Aggregation.parse` reads it; just ``constant`` if users give the divisor."""
        return self.declared.modes[self.name]

    def __str__(self) -> str:
        return f"{self.place}:{self.name}"

    @property
    def default_name(self) -> str:
        """The text that names the reduction if its engine is the framework's default."""
        return f"{self.place.partition('/')[0]}:{self.name}"

    def aggregation(self, divisor: float) -> Aggregation:
        """Returns the mode with its divisor, which is ``divisor`` if users give it."""
        is_given = self.mode == Mode.CONSTANT
        return Aggregation(Mode.CONSTANT, divisor) if is_given else Aggregation.parse(self.mode)

    def weights(self, step: Step, divisor: float) -> NDArray[np.float64]:
        """Returns the weight of each response token: float64 [tokens]."""
        return token_weights(step, self.aggregation(divisor), self.declared.conventions)


def find_reduction(text: str) -> Reduction:
    """Returns the reduction that ``FRAMEWORK:NAME`` or ``FRAMEWORK/ENGINE:NAME`` names.

    Raises:
        UnknownReductionError: the framework, engine or name is unknown.
    """
    place, _, name = text.partition(":")
    framework, _, engine = place.partition("/")
    engines = _one_of(declared(), framework, "framework of the committed reports")
    found = _one_of(engines, engine or next(iter(engines)), f"engine of {framework}")
    _one_of(found.modes, name, f"reduction of {place}")
    return Reduction(place=place, name=name, declared=found)


def _one_of(known: Mapping[str, Value], name: str, kind: str) -> Value:
    if name not in known:
        raise UnknownReductionError(
            f"{name!r} is no {kind}",
            f"write FRAMEWORK:NAME or FRAMEWORK/ENGINE:NAME; choose one of {', '.join(known)}",
        )
    return known[name]


def alike_reductions(declarations: Mapping[str, Mapping[str, Declared]]) -> list[list[Reduction]]:
    """Returns all reductions, in groups with equal weights in every case of the corpus.

    ``declarations`` are by framework and engine. Engines of a framework with equal reductions are
    named once.
    """
    steps = [(step, case.divisor) for case in (*CORPUS, *REJECTION) for step in case.steps]
    classes: dict[bytes, list[Reduction]] = defaultdict(list)
    for one in _reductions(declarations):
        alike = classes[b"".join(one.weights(*step).tobytes() for step in steps)]
        if one.default_name not in map(str, alike):
            alike.append(one)
    return sorted(classes.values(), key=lambda reductions: [*Mode].index(kind(reductions[0].mode)))


def alike_elsewhere(here: Reduction, cases: Sequence[Case]) -> list[Reduction]:
    """Returns the reductions of other frameworks with equal weights in all of these cases."""
    steps = [(step, case.divisor) for case in cases for step in case.steps]
    others = {name: engines for name, engines in declared().items() if name != here.place}
    found: list[Reduction] = []
    for one in _reductions(others):
        is_alike = (np.array_equal(one.weights(*step), here.weights(*step)) for step in steps)
        if one.default_name not in map(str, found) and all(is_alike):
            found.append(one)
    return found


def _reductions(declarations: Mapping[str, Mapping[str, Declared]]) -> Iterator[Reduction]:
    """Yield each reduction of each engine."""
    for framework, engines in declarations.items():
        for number, (engine, found) in enumerate(engines.items()):
            place = f"{framework}/{engine}" if number else framework
            yield from (Reduction(place=place, name=one, declared=found) for one in found.modes)
