"""One finding: a verdict with its numbers, its diagnosis and the framework's own words."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Annotated, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from adapters.contract import Depth, Layout
from conformance.findings.finding_id import FindingId
from conformance.findings.verdict import Check, Verdict

if TYPE_CHECKING:
    from reference.aggregation import Mode


class Model(BaseModel):
    """Frozen, and of known fields alone."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class Diagnosis(Model):
    """The mistake that explains a mismatch, with its numbers."""

    name: str
    explanation: str
    numbers: dict[str, float] = {}
    also: list[str] = []
    """Names of other mistakes that explain as much."""


class Run(NamedTuple):
    """Neighbouring tokens of a sample that have one weight and were in one place.

    The weight is that of a token, or the gradient of one where several terms are looked at; None
    where it was not finite. Places are None where it is not known how the step was cut.
    """

    tokens: int
    expected: float
    observed: float | None
    dp_rank: int | None
    cp_rank: int | None
    micro_batch: int | None


class PicturedSample(Model):
    """A sample's response of so many ``tokens``; ``runs`` may end short of them."""

    sample: int
    group: int
    tokens: int
    runs: list[Run]


class Picture(Model):
    """Expected and observed weights of one step of a job, of the samples that are most off."""

    step: int
    samples_of_step: int
    samples: list[PicturedSample]


class Logged(Model):
    """A number that a framework logs, beside the reference's; None where it was not finite."""

    expected: float
    reported: Annotated[float | None, Field(allow_inf_nan=False)] = None


class Finding(Model):
    """Verdict on one check of one mode, case and layout, which its ``id`` names.

    ``error`` is the largest
    relative error of a token weight, or of a logged number, ``tolerance`` the bound it was held
    against; ``agreement`` the smaller of observed and expected divided by the larger, where that is
    least, 0 where a weight is lost or has the wrong sign (of a mismatch); ``place`` is where in the
    framework's code the mistake must have been made, as ``file:line (function)``, where the mistake
    determines it. ``message`` holds the framework's own words where it declined or failed. Of wrong
    weights there is a ``picture``, of a wrong number what was ``logged``.
    """

    id: str
    depth: Depth = Depth.STEP
    verdict: Verdict
    error: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    tolerance: Annotated[float, Field(ge=0)] | None = None
    agreement: Annotated[float, Field(ge=0, le=1)] | None = None
    diagnosis: Diagnosis | None = None
    place: str | None = None
    message: str | None = None
    picture: Picture | None = None
    logged: Logged | None = None

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
        """What was looked at."""
        return self.identity.check

    @property
    def subject(self) -> str | None:
        """Which of a check's several things."""
        return self.identity.subject

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
        """The layout that it ran on."""
        return self.identity.layout
