"""The evidence of findings on known mistakes, and the causes that explain findings."""

from __future__ import annotations

import math
from enum import StrEnum
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, NamedTuple, Self

from pydantic import BaseModel, ConfigDict
from pydantic_core import CoreSchema, core_schema

from conformance.findings.sanitize import numberless

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from conformance.findings.finding import Finding

EMPTY_SAMPLE = "where a sample has no active token"
"""The fact of findings whose step has a sample without active tokens."""

UNEXPLAINED = "unexplained"
"""The name of a cause that no mistake of the catalogue explains."""

SAME_DIRECTION = 1 - 1e-6
"""The cosine above which two gradients have the same direction."""


TIMES = 2
"""The smallest factor that is given as a multiple instead of a percentage."""

INVISIBLE = 1e-6
"""The relative error below which a size counts as right: about the rounding of float32."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class TermMistake(str):
    """A known mistake in one term of a loss, such as ``kl/multiplied_by_cp``."""

    __slots__ = ()

    @classmethod
    def of(cls, term: str, mistake: str) -> Self:
        """The name of a mistake in a term."""
        return cls(f"{term}/{mistake}")

    @property
    def term(self) -> str:
        """The name of the term."""
        return self.partition("/")[0]

    @property
    def mistake(self) -> str:
        """The name of the mistake."""
        return self.partition("/")[2]

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: object) -> CoreSchema:
        return core_schema.no_info_after_validator_function(cls, core_schema.str_schema())


class Clues(_Frozen):
    """The evidence of one finding on the known mistakes."""

    terms: list[str]
    """The terms that the finding depends on."""

    explanations: list[list[list[TermMistake]]] = []
    """Explanations of a wrong observation. Each is a list of mistakes that occur together, and each
    mistake is a list of names that this observation cannot distinguish."""

    excluded: list[TermMistake] = []
    """Mistakes that would show in this finding and do not."""

    conditions: list[str] = []
    """Facts of the step and its cut, such as ``where a sample has no active token``."""

    @property
    def by_mistake(self) -> list[list[set[str]]]:
        """The explanations, with the names of mistakes only and not of terms."""
        return [[{name.mistake for name in part} for part in parts] for parts in self.explanations]

    @property
    def suspects(self) -> set[str]:
        """All mistakes that occur in any explanation."""
        return set().union(*(part for parts in self.by_mistake for part in parts))

    def about(self, mistakes: frozenset[str]) -> Clues:
        """The same clues, keeping only the given mistakes among the excluded mistakes."""
        excluded = [name for name in self.excluded if name.mistake in mistakes]
        return self.model_copy(update={"excluded": excluded})


class Severity(StrEnum):
    """Kinds of damage that a cause does, the worst first."""

    GRADIENT = "wrong gradient"
    LOGGED = "wrong logged number"
    NOT_TRAINED = "ordinary step declined or crashed"
    ACCEPTED = "bad input accepted"
    ADVICE = "advice"


FAILURES = {"crashed": "crash", "declined": "refusal of an ordinary step"}
"""The kind of failure of steps that do not run, by the name of the cause."""


class Harm(StrEnum):
    """Kinds of harm that a cause does to users, the worst first."""

    GRADIENT_BY_DEFAULT = "wrong gradient by default"
    GRADIENT_WITH_OPTION = "wrong gradient with an option"
    NOT_TRAINED = "step that cannot run"
    GRADIENT_AT_EDGE = "wrong gradient for a rare batch"
    NUMBER_BY_DEFAULT = "wrong number by default"
    NUMBER_OTHERWISE = "wrong number, with an option or for a rare batch"
    ACCEPTED = "bad input accepted"
    ADVICE = "advice"

    @property
    def rank(self) -> int:
        """A sort key: 0 for the worst."""
        return [*Harm].index(self)


class Reach(_Frozen):
    """The users who meet a cause: all, or those of options or of batches with rare properties."""

    options: list[str] = []
    """Options, as users type them, that differ from the defaults in all findings of the cause."""

    rare: list[str] = []
    """Facts of all findings of the cause that an ordinary batch does not have."""

    untested: list[str] = []
    """Options and facts for which no otherwise equal finding was made."""

    @property
    def tested(self) -> list[str]:
        """Options and facts shown to be necessary for the cause."""
        return [one for one in (*self.options, *self.rare) if one not in self.untested]

    def __str__(self) -> str:
        shown = self._said(self.tested)
        seen = [f"only seen {words}" for words in self._said(self.untested)]
        return ", ".join([*shown, *seen]) or "by default"

    def _said(self, some: Sequence[str]) -> list[str]:
        options = [one for one in self.options if one in some]
        rare = [one for one in self.rare if one in some]
        return [*([f"with {' '.join(options)}"] if options else []), *rare]


class Range(NamedTuple):
    """The smallest and the largest value over a cause's findings."""

    lowest: float
    highest: float

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Self | None:
        """The range of the known values; None without any."""
        known = [value for value in values if value is not None]
        return cls(min(known), max(known)) if known else None

    @property
    def off(self) -> str:
        """The distance of factors from 1, as in ``6 % too small to 4 % too large``; empty if 0."""
        sizes = [_off(factor) for factor in self if abs(factor - 1) >= INVISIBLE]
        if len(sizes) < 2:
            return "".join(f"up to {_digits(size)}{unit}" for size, unit in sizes)
        (low, unit), (high, other) = sizes
        if unit != other:
            return f"{_digits(low)}{unit} to {_digits(high)}{other}"
        numbers = dict.fromkeys(_digits(size) for size in sorted((low, high)))
        return f"{' to '.join(numbers)}{unit}"


def _off(factor: float) -> tuple[float, str]:
    """The size and the unit of the deviation from 1, such as a percentage too small."""
    side = "large" if factor > 1 else "small"
    if factor <= 0:
        return factor, " times the right size"
    if 1 / TIMES < factor < TIMES:
        return abs(factor - 1) * 100, f" % too {side}"
    return max(factor, 1 / factor), f" times too {side}"


def _digits(number: float) -> str:
    """The number with two significant digits, or three above 100, and no exponent."""
    rounded = float(f"{number:.{3 if abs(number) > 100 else 2}g}")
    return f"{rounded:,.10f}".rstrip("0").rstrip(".")


UNSEEN_BY_ADAM = "Adam cancels a constant factor, gradient clipping and the logged norm do not"
"""The consequence of a gradient with the right direction and a wrong norm."""


class Impact(_Frozen):
    """The effect of a cause on training at the size of a production step; None where it is unknown.

    The effect is measured on such a step, predicted for it, or a sentence with the formula.
    """

    scale: Range | None = None
    """The least-squares scale of wrong over right gradient."""

    cosine: Range | None = None
    """The cosine of the angle between wrong and right gradient."""

    reported: Range | None = None
    """The ratio of logged to right numbers."""

    step: str = ""
    """The size of the step and how it is cut, such as ``512 samples, dp 8, cp 1``."""

    words: str = ""
    """The effect at any size in words, if it is not a number."""

    @classmethod
    def of(cls, findings: Sequence[Finding]) -> Self:
        """The ranges over all findings that have numbers."""
        logged = [finding.logged for finding in findings if finding.logged is not None]
        return cls(
            scale=Range.of(finding.scale for finding in findings),
            cosine=Range.of(finding.cosine for finding in findings),
            reported=Range.of(
                number.reported / number.expected
                for number in logged
                if number.reported is not None and number.expected
            ),
        )

    def __str__(self) -> str:
        """Returns the consequence for training in words; empty if nothing is known."""
        said = [self.words] if self.words else []
        size_alone = ""
        turns = self.cosine is not None and self.cosine.lowest < SAME_DIRECTION
        if self.scale is not None and (off := self.scale.off):
            said.append(f"gradient {off}")
            size_alone = "" if turns else f"; {UNSEEN_BY_ADAM}"
        if self.cosine is not None and turns:
            angle = math.degrees(math.acos(max(self.cosine.lowest, -1.0)))
            said.append(f"direction off by up to {_digits(angle)}°")
        if self.reported is not None and (off := self.reported.off):
            said.append(f"the logged number is {off}")
        step = f" ({self.step})" if self.step else ""
        return f"{', '.join(said)}{step}{size_alone}" if said else ""


NO_FACTOR = "computes the loss of the token, and no factor of the weight looks wrong"
"""The reason to suspect a line that no evidence distinguishes from others."""


class SuspectedLine(_Frozen):
    """A line of the framework's or its engine's code that a cause makes suspect."""

    file: str
    """The path relative to the folder that holds the package."""

    line: int
    function: str
    why: str
    instead: str = ""
    """Words on the number that the line computes with and on the right number, if runs have proven
    it."""

    @property
    def place(self) -> str:
        """The line as ``file:line (function)``."""
        return f"{self.file}:{self.line} ({self.function})"

    def __str__(self) -> str:
        return f"{self.place}: {self.why}"


class TracedCount(_Frozen):
    """A count that a factor was computed from, such as ``24 = 8 + 16``."""

    depth: int
    """Its level in the tree of counts: 0 for the divisor itself."""

    words: str
    place: str | None = None
    """The line that made it, as ``file:line (function)``."""


class TracedFactor(_Frozen):
    """A factor between a token's loss and its weight."""

    value: float
    place: str | None = None
    """The line that applied it, as ``file:line (function)``."""

    made_of: list[TracedCount] = []
    """The counts that the divisor was computed from, each before its own parts."""


class TracedToken(_Frozen):
    """The token whose weight, or whose share of a logged number, was traced."""

    name: str
    """The token's sample and its position in the response, such as ``20:0``."""

    observed: float
    expected: float


class CauseTrace(_Frozen):
    """The result of tracing the smallest reproduction of a cause."""

    suspects: list[SuspectedLine] = []
    """The lines to look at, the likeliest first."""

    chain: list[TracedFactor] = []
    """The factors of the weight of one wrong token, in the order of their application."""

    token: TracedToken | None = None
    """The token that ``chain`` is about."""


class Cause(_Frozen):
    """A mistake and the condition under which it shows, which explain ``findings``."""

    name: str
    """The mistake of the catalogue, or how the framework failed."""

    also: list[str] = []
    """Other mistakes of the catalogue that explain all findings of the cause as well."""

    condition: list[str]
    """Facts of all findings of the cause, each shown to be necessary for it."""

    untested: list[str] = []
    """Further facts of all findings of the cause; no finding shows whether they matter."""

    severity: Severity
    reach: Reach = Reach()
    statement: str
    impact: Impact = Impact()
    place: str | None = None
    """The place in the framework's code, if it is known: ``file:line (function)``."""

    suspects: list[SuspectedLine] = []
    chain: list[TracedFactor] = []
    token: TracedToken | None = None
    """The traced token of `CauseTrace`; None if the cause was not traced."""

    findings: list[str]
    """Ids of the findings that it explains, the smallest reproduction first."""

    @property
    def words(self) -> str:
        """The statement without its condition. Facts of a condition contain no commas."""
        return (
            self.statement.rsplit(", ", len(self.condition))[0]
            if self.condition
            else self.statement
        )

    @property
    def condition_words(self) -> list[str]:
        """The condition in the words of the statement."""
        return self.statement.removeprefix(self.words).split(", ")[1:]

    @property
    def rest(self) -> float:
        """The traced token's weight over the chain's product; 1 if they agree or are unknown."""
        product = math.prod(factor.value for factor in self.chain)
        rest = self.token.observed / product if self.token and product else 1.0
        return 1.0 if abs(rest - 1) < INVISIBLE else rest

    @property
    def harm(self) -> Harm:
        """The harm that the cause does to users."""
        if self.severity is Severity.GRADIENT:
            if self.reach.rare:
                return Harm.GRADIENT_AT_EDGE
            return Harm.GRADIENT_WITH_OPTION if self.reach.options else Harm.GRADIENT_BY_DEFAULT
        if self.severity is Severity.LOGGED:
            is_default = self.reach == Reach()
            return Harm.NUMBER_BY_DEFAULT if is_default else Harm.NUMBER_OTHERWISE
        return Harm[self.severity.name]

    @property
    def where(self) -> str:
        """The file and line to look at first; empty if neither is known."""
        if self.suspects:
            return f"{PurePosixPath(self.suspects[0].file).name}:{self.suspects[0].line}"
        return PurePosixPath((self.place or "").partition(" ")[0]).name

    @property
    def loss(self) -> str:
        """The harm in a few words; for a crash or a refusal, the kind of failure."""
        return FAILURES.get(self.name, str(self.harm))

    @property
    def effect(self) -> str:
        """The damage in words, with the options or batches that it needs."""
        if self.severity in (Severity.ACCEPTED, Severity.ADVICE):
            return str(self.severity)
        return f"{FAILURES.get(self.name, self.severity)} {self.reach}"

    @property
    def mistake(self) -> str:
        """A key for the mistake without its condition, the same in all versions.

        The key is the mistake's name in the catalogue. Failures and unexplained causes share a name
        without having anything in common, so their key is the statement, without numbers such as
        those of lines.
        """
        is_explained = self.severity in (Severity.GRADIENT, Severity.LOGGED)
        if is_explained and self.name != UNEXPLAINED:
            return self.name
        return numberless(self.words)

    @property
    def key(self) -> tuple[str, tuple[str, ...]]:
        """The mistake and its condition, which identify a cause of a framework in every version."""
        return self.mistake, tuple(self.condition)
