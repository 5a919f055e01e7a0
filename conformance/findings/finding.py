"""One finding: its id, a verdict with its numbers, its diagnosis, the framework's message."""

from __future__ import annotations

from functools import cache, cached_property
from typing import TYPE_CHECKING, Annotated, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from adapters.contract import Depth, Layout
from conformance.findings.verdict import Check, Verdict
from reference.aggregation import Mode

if TYPE_CHECKING:
    from pydantic import ValidationError


GENERATED = "generated"
"""The name of all generated cases in ids."""

PRODUCTION = "production_step"
"""The case of the corpus that is as large as a step in production."""


def slug(check: Check, subject: str | None) -> str:
    """The first part of an id: the check, with its subject if it has several."""
    return f"{check}.{subject}" if subject else str(check)


class FindingId(NamedTuple):
    """The parts of a finding's id, which is written as ``check[.subject]/mode/case/layout``."""

    check: Check
    subject: str | None
    mode: Mode
    case: str
    layout: Layout

    @property
    def slug(self) -> str:
        """The check, with its subject if it has several."""
        return slug(self.check, self.subject)

    def __str__(self) -> str:
        return f"{self.slug}/{self.mode}/{self.case}/{self.layout}"

    @classmethod
    def parse(cls, text: str) -> FindingId:
        """Read an id as written by `str`.

        Raises:
            ValueError: the text is of another form.
        """
        parts = text.split("/")
        if len(parts) != 4:
            raise ValueError(
                f"{text!r} is not of the form weights/token_mean/two_prompts/dp2-cp1-mb2-thd"
            )
        slug, mode, case, layout = parts
        check, subject = _parse_slug(slug)
        return cls(check, subject, Mode(mode), case, _parse_layout(layout))


@cache
def _parse_slug(text: str) -> tuple[Check, str | None]:
    check, _, subject = text.partition(".")
    return Check(check), subject or None


_parse_layout = cache(Layout.parse)
"""Cached, since thousands of ids have the same few layouts."""


class FrozenModel(BaseModel):
    """A frozen model that forbids unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


def first_problem(error: ValidationError) -> tuple[str, str]:
    """The place of the first error in a document, and its message."""
    problem = error.errors()[0]
    return ".".join(map(str, problem["loc"])), problem["msg"].removeprefix("Value error, ")


ALTERNATIVES = "; or it is "
"""The words before the names of other mistakes that explain a finding as well."""


class Diagnosis(FrozenModel):
    """The mistake that explains a mismatch, with its numbers."""

    name: str
    explanation: str
    numbers: dict[str, float] = {}
    also: list[str] = []
    """Names of other mistakes that explain the mismatch as well."""

    @property
    def first_explanation(self) -> str:
        """The explanation without the names of other mistakes."""
        return self.explanation.partition(ALTERNATIVES)[0]


class Run(NamedTuple):
    """Adjacent tokens of a sample with equal weight, ranks and micro-batch.

    The weight is the token's gradient if the loss has several terms, and None if not finite. Ranks
    and micro-batch are None if the cut of the step is unknown.
    """

    tokens: int
    expected: float
    observed: float | None
    dp_rank: int | None
    cp_rank: int | None
    micro_batch: int | None


class PicturedSample(FrozenModel):
    """The response of a sample; ``runs`` may cover only the first of its ``tokens``."""

    sample: int
    group: int
    tokens: int
    runs: list[Run]


class Picture(FrozenModel):
    """Expected and observed weights of one step, for the samples with the largest errors."""

    step: int
    samples_of_step: int
    samples: list[PicturedSample]


class Logged(FrozenModel):
    """A number that a framework logs and the expected one; None if it is not finite."""

    expected: float
    reported: Annotated[float | None, Field(allow_inf_nan=False)] = None


class Behaviour(FrozenModel):
    """A few numbers of a job's result, right or wrong, by which two versions are compared.

    ``gradients`` has two numbers for each optimizer step: the sum of the sizes of all token
    weights, and of the weights times fixed factors that differ by token, so that swapped tokens
    show. ``logged`` has the numbers of the framework's log by its own names, the first value of
    each; a number that is not finite is None.
    """

    gradients: tuple[tuple[float | None, float | None], ...]
    logged: dict[str, float | None] = {}


class Finding(FrozenModel):
    """The verdict on one check, mode, case and layout; its ``id`` names them.

    ``error`` is the largest relative error of a token weight or logged number and ``tolerance`` its
    bound. A mismatch has an ``agreement`` (`conformance.findings.badness`) and, if the mistake
    determines it, the ``place`` in the framework's code as ``file:line (function)``. ``message`` is
    the framework's own if it declined or crashed. Wrong weights have a ``picture``, and the least
    squares ``scale`` and the ``cosine`` of the observed gradient to the right one; a wrong metric
    has the ``logged`` number. A finding on a gradient has the ``behaviour`` of its job. ``clues``
    is the index of the finding's clues in the report's list.
    """

    id: str
    depth: Depth = Depth.STEP
    verdict: Verdict
    error: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    tolerance: Annotated[float, Field(ge=0)] | None = None
    agreement: Annotated[float, Field(ge=0, le=1)] | None = None
    scale: float | None = None
    cosine: float | None = None
    diagnosis: Diagnosis | None = None
    place: str | None = None
    message: str | None = None
    picture: Picture | None = None
    logged: Logged | None = None
    behaviour: Behaviour | None = None
    clues: Annotated[int, Field(ge=0)] | None = None

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if str(self.identity) != self.id:
            raise ValueError(f"the id is {self.id!r}, which is written {str(self.identity)!r}")
        if self.verdict is Verdict.CONFORMS and (self.error or 0.0) > (self.tolerance or 0.0):
            raise ValueError(f"an error of {self.error} above {self.tolerance} does not conform")
        return self

    @cached_property
    def identity(self) -> FindingId:
        """The parts of the id."""
        return FindingId.parse(self.id)

    @property
    def check(self) -> Check:
        """The check."""
        return self.identity.check

    @property
    def subject(self) -> str | None:
        """The subject of a check with several subjects."""
        return self.identity.subject

    @property
    def is_of_bad_input(self) -> bool:
        """Whether the input is a configuration, a log or group boundaries, perhaps malformed."""
        malformed = self.check is Check.SHARDING and self.subject is not None
        return malformed or self.check in (Check.ARGUMENTS, Check.LOGGING)

    @property
    def is_rightly_refused(self) -> bool:
        """Whether the framework refused bad input, as the contract demands or allows."""
        return self.verdict is Verdict.REFUSED and self.is_of_bad_input

    @property
    def mode(self) -> Mode:
        """The mode that the framework was asked for."""
        return self.identity.mode

    @property
    def case(self) -> str:
        """The name of the case."""
        return self.identity.case

    @property
    def layout(self) -> Layout:
        """The layout."""
        return self.identity.layout
