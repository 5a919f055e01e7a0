"""What changes for a step that moves from one framework's reduction to another's.

The conventions of every framework are those of its newest committed report, which
`conformance.views.overview` writes to ``frameworks.json`` next to this module.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pydantic import TypeAdapter

from conformance.corpus.cases import CORPUS, REJECTION
from conformance.findings.agreement import direction
from conformance.findings.errors import UnknownReductionError
from conformance.findings.finding import FrozenModel
from conformance.views.formatting import text_table
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
    from collections.abc import Iterator, Mapping

    import numpy as np
    from numpy.typing import NDArray

    from conformance.corpus.cases import Case
    from reference.step import Step


WORDS = {
    "sample_unit": "N counts",
    "empty_units": "samples without active tokens",
    "denominator_mask": "mask of denominators after rejection sampling",
}
"""Fields of `Declared` that reductions may differ in."""

Value = TypeVar("Value")

DECLARED = Path(__file__).with_name("frameworks.json")


class Declared(FrozenModel):
    """What a version of a framework declares that the weights of its policy loss depend on."""

    version: str
    modes: dict[str, str]
    """Its reductions by its own names, as in `adapters.contract.Adapter.mode_names`."""

    sample_unit: SampleUnit
    empty_units: EmptyUnits
    denominator_mask: DenominatorMask

    @property
    def conventions(self) -> Conventions:
        """These, and the defaults of all others."""
        return Conventions(**self.model_dump(exclude={"version", "modes"}))


FRAMEWORKS = TypeAdapter(dict[str, dict[str, Declared]])
"""By framework and engine, its default engine first."""


def kind(mode: str) -> Mode:
    """Returns the mode of a text such as `Aggregation.parse` reads, with its divisor or without."""
    return Mode(mode.partition(":")[0])


@cache
def declared() -> Mapping[str, Mapping[str, Declared]]:
    """Returns what each framework's newest committed report declares."""
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
        """As `Aggregation.parse` reads it; ``constant`` alone if users give its divisor."""
        return self.declared.modes[self.name]

    def __str__(self) -> str:
        return f"{self.place}:{self.name}"

    def aggregation(self, divisor: float) -> Aggregation:
        """Returns the mode with its divisor, which is ``divisor`` if users give it."""
        is_given = self.mode == Mode.CONSTANT
        return Aggregation(Mode.CONSTANT, divisor) if is_given else Aggregation.parse(self.mode)

    def weights(self, step: Step, divisor: float) -> NDArray[np.float64]:
        """Returns the weight of each response token: float64 [tokens]."""
        return token_weights(step, self.aggregation(divisor), self.declared.conventions)


@dataclass(frozen=True, kw_only=True)
class StepChange:
    """The gradient of a step under another reduction, compared with that before.

    Gradients of tokens count as orthogonal and of one length, as in all reports.
    """

    step: Step

    scale: float | None
    """The factor on the learning rate, by least squares; None if the gradient before is 0."""

    cosine: float | None
    """That of the angle between both gradients; None if one is 0."""

    @property
    def norm(self) -> float | None:
        """The factor on the gradient's norm; None if one of them is 0."""
        return self.scale / self.cosine if self.scale and self.cosine else None


def find_reduction(text: str) -> Reduction:
    """Returns the reduction that ``FRAMEWORK:NAME`` or ``FRAMEWORK/ENGINE:NAME`` names.

    Raises:
        UnknownReductionError: there is none of that framework, engine or name.
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


def differences(case: Case, before: Reduction, after: Reduction) -> list[StepChange]:
    """Returns what changes in each step of a batch that moves from one reduction to another."""
    found = []
    for step in case.steps:
        old, new = (one.weights(step, case.divisor) for one in (before, after))
        scale, cosine = direction(new, old)
        found.append(StepChange(step=step, scale=scale, cosine=cosine))
    return found


def alike_reductions(declarations: Mapping[str, Mapping[str, Declared]]) -> list[list[Reduction]]:
    """Returns all reductions; those that weigh every case of the corpus alike are one list.

    ``declarations`` are by framework and engine. Engines of one framework that are alike are named
    once.
    """
    steps = [(step, case.divisor) for case in (*CORPUS, *REJECTION) for step in case.steps]
    classes: dict[bytes, list[Reduction]] = defaultdict(list)
    for framework, engines in declarations.items():
        for number, (engine, found) in enumerate(engines.items()):
            for name in found.modes:
                place = f"{framework}/{engine}" if number else framework
                one = Reduction(place=place, name=name, declared=found)
                alike = classes[b"".join(one.weights(*step).tobytes() for step in steps)]
                if f"{framework}:{name}" not in map(str, alike):
                    alike.append(one)
    return sorted(classes.values(), key=lambda reductions: [*Mode].index(kind(reductions[0].mode)))


def as_text(case: Case, before: Reduction, after: Reduction) -> Iterator[str]:
    """Yields what both reductions are, and the factor and the angle in each step of a batch."""
    yield from text_table(
        ["from" if one is before else "to", str(one), one.declared.version, one.mode]
        for one in (before, after)
    )
    for field, words in WORDS.items():
        old, new = (str(getattr(one.declared, field)) for one in (before, after))
        if old != new:
            yield f"{words}: {old}, then {new}"
    yield ""
    header = ["step", "samples", "active tokens", "learning rate", "norm", "cosine"]
    found = differences(case, before, after)
    yield from text_table([header, *(_row(number, one) for number, one in enumerate(found, 1))])
    yield ""
    yield (
        "In effect, the learning rate is multiplied by that factor in the direction of the gradient"
        " before; divide it by the factor to keep that part of the step. A cosine below 1 is a"
        " change of direction, which no learning rate makes up for: what is new is in the norm."
    )


def _row(number: int, one: StepChange) -> list[str]:
    return [
        str(number),
        str(one.step.size),
        str(one.step.active_tokens.sum()),
        "no gradient" if one.scale is None else _times(one.scale),
        _times(one.norm),
        "\N{EN DASH}" if one.cosine is None else f"{one.cosine:.6f}",
    ]


def _times(factor: float | None) -> str:
    return "\N{EN DASH}" if factor is None else f"\N{MULTIPLICATION SIGN} {factor:.6g}"
