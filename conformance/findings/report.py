"""The report: everything one run found, as one JSON document.

`Report.model_json_schema` is published as ``report.schema.json`` beside this module. What is
compared between runs holds no time stamps and no names of machines, and has one order.
"""

from __future__ import annotations

import json
from collections import Counter
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from adapters.contract import Departure, Depth, Layout
from conformance.ranks.hardware import ON_CPU
from reference.aggregation import Conventions, Mode

if TYPE_CHECKING:
    from collections.abc import Iterable

SCHEMA: Literal["rl-loss-conformance/report/3"] = "rl-loss-conformance/report/3"


FIELD_ORDER = (
    "schema",
    "adapter",
    "engine",
    "complete",
    "source",
    "environment",
    "conventions",
    "departures",
    "request",
    "selection",
    "summary",
    "findings",
)
"""Of a report's file: what it is about first, what there is most of last."""


class Verdict(StrEnum):
    """What became of one finding."""

    CONFORMS = "conforms"
    MISMATCH = "mismatch"
    REFUSED = "refused"
    UNSUPPORTED = "unsupported"
    CRASHED = "crashed"
    ADVICE = "advice"
    """Nothing that the framework promises is broken, and a user had better know."""


WRONG = (Verdict.MISMATCH, Verdict.CRASHED)

JUDGED = (Verdict.CONFORMS, Verdict.REFUSED, *WRONG)
"""Verdicts that say whether the framework keeps a promise: what totals of what is wrong are of."""


class Check(StrEnum):
    """A property that is looked at."""

    WEIGHTS = "weights"
    """What every token weighs in the gradient."""

    METRIC = "metric"
    """What the framework logs of the step: its losses, their terms, its diagnostics."""

    REJECTION = "rejection"
    """The policy loss's weights, and a log, where rejection sampling shrinks the mask."""

    AUXILIARY = "auxiliary"
    """Weights of the terms beside the policy loss, and of policy losses other than PPO's."""

    OTHER_LOSSES = "other_losses"
    """Weights of losses that are trained in the place of a policy loss."""

    SHARDING = "sharding"
    """Which rank trained on what."""

    ARGUMENTS = "arguments"
    """What startup validation refuses, and what it accepts as the same."""

    LOGGING = "logging"
    """What is refused of what micro-batches hand on to be logged."""


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class Diagnosis(_Model):
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


class PicturedSample(_Model):
    """A sample's response of so many ``tokens``; ``runs`` may end short of them."""

    sample: int
    group: int
    tokens: int
    runs: list[Run]


class Picture(_Model):
    """Expected and observed weights of one step of a job, of the samples that are most off."""

    step: int
    samples_of_step: int
    samples: list[PicturedSample]


class Logged(_Model):
    """A number that a framework logs, beside the reference's; None where it was not finite."""

    expected: float
    reported: Annotated[float | None, Field(allow_inf_nan=False)] = None


class Finding(_Model):
    """Verdict on one check of one mode, case and layout.

    ``subject`` says which of a check's several things was looked at. ``error`` is the largest
    relative error of a token weight, or of a logged number, ``tolerance`` the bound it was held
    against; ``agreement`` the smaller of observed and expected divided by the larger, where that is
    least, 0 where a weight is lost or has the wrong sign (of a mismatch); ``place`` is where in the
    framework's code the mistake must have been made, as ``file:line (function)``, where the mistake
    determines it. ``message`` holds the framework's own words where it declined or failed. Of wrong
    weights there is a ``picture``, of a wrong number what was ``logged``.
    """

    id: str
    check: Check
    subject: str | None = None
    mode: Mode
    case: str
    layout: Layout
    depth: Depth
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
        slug = f"{self.check}.{self.subject}" if self.subject else self.check
        named = f"{slug}/{self.mode}/{self.case}/{self.layout}"
        if self.id != named:
            raise ValueError(f"the id is {self.id!r}, but its fields are those of {named!r}")
        if self.verdict is Verdict.CONFORMS and (self.error or 0.0) > (self.tolerance or 0.0):
            raise ValueError(f"an error of {self.error} above {self.tolerance} does not conform")
        return self


class Provenance(_Model):
    """Where the framework's code came from: `adapters.source.Source` without its folder."""

    kind: Literal["builtin", "installed", "checkout", "git", "pypi"]
    revision: str | None
    version: str | None
    ref: str | None
    dirty: bool


class Environment(_Model):
    """What a result may depend on besides the framework."""

    python: str
    torch: str
    backend: str
    device: str
    dtype: str = "float32"
    """Of parameters and their gradients; losses are in float32."""

    platform: str
    dependencies: dict[str, str]
    stubs: list[str]

    @property
    def hardware(self) -> str:
        """What ranks computed on, in a word; of precision only what is not ordinary."""
        narrow = [] if self.dtype == ON_CPU.dtype else [self.dtype]
        return "/".join([self.device, self.backend, *narrow])


class Request(_Model):
    """What of a run's options its findings follow from, and cannot be read off them."""

    divisor: float | None = None
    """L of `constant` where it replaced that of the cases."""

    examples: int = 0
    seed: str = "0"
    """How many steps were generated for each mode and layout, and what they follow from."""

    case: str | None = None
    """The name of the only case, where it was given as a file."""


class Selection(_Model):
    """How much of the suite was asked for."""

    selected: int
    deselected: int


class Summary(_Model):
    """Counts of verdicts."""

    verdicts: dict[Verdict, int]
    modes: dict[Mode, dict[Verdict, int]]

    @classmethod
    def of(cls, findings: Iterable[Finding]) -> Summary:
        """Count every verdict that occurs."""
        modes: dict[Mode, Counter[Verdict]] = {}
        for finding in findings:
            modes.setdefault(finding.mode, Counter())[finding.verdict] += 1
        total = sum(modes.values(), Counter[Verdict]())
        return cls(
            verdicts=_in_order(total),
            modes={mode: _in_order(modes[mode]) for mode in Mode if mode in modes},
        )


class Header(_Model):
    """What is known before the first finding."""

    adapter: str
    engine: str
    source: Provenance
    environment: Environment
    conventions: Conventions
    departures: list[Departure] = []
    request: Request = Request()


class Report(Header):
    """One run. ``complete`` is False when it was stopped before its last finding."""

    schema_: Literal["rl-loss-conformance/report/3"] = Field(default=SCHEMA, alias="schema")
    complete: bool
    selection: Selection
    findings: list[Finding]
    summary: Summary

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        ids = [finding.id for finding in self.findings]
        for former, latter in pairwise(ids):
            if former >= latter:
                raise ValueError(f"finding {latter!r} stands behind {former!r}")
        if self.summary != Summary.of(self.findings):
            raise ValueError("the summary does not count what the findings say")
        if self.complete != (len(ids) == self.selection.selected):
            raise ValueError(
                f"complete is {self.complete} with {len(ids)} of {self.selection.selected} findings"
            )
        return self

    @classmethod
    def assemble(cls, header: Header, findings: Iterable[Finding], selection: Selection) -> Report:
        """Put the parts together, findings in the order of their ids."""
        ordered = sorted(findings, key=lambda finding: finding.id)
        return cls(
            **dict(header),
            complete=len(ordered) == selection.selected,
            selection=selection,
            findings=ordered,
            summary=Summary.of(ordered),
        )

    def to_json(self) -> str:
        """The document: a line for each field and each finding, so that git compares them.

        What a finding says nothing of is left out.
        """
        fields = self.model_dump(mode="json", by_alias=True, exclude={"findings"})
        texts = {name: json.dumps(value, ensure_ascii=False) for name, value in fields.items()}
        findings = [
            json.dumps(finding.model_dump(mode="json", exclude_none=True), ensure_ascii=False)
            for finding in self.findings
        ]
        texts["findings"] = "[\n  " + ",\n  ".join(findings) + "\n ]" if findings else "[]"
        return "{\n " + ",\n ".join(f'"{name}": {texts[name]}' for name in FIELD_ORDER) + "\n}\n"


def _in_order(counts: Counter[Verdict]) -> dict[Verdict, int]:
    return {verdict: counts[verdict] for verdict in Verdict if counts[verdict]}


def json_schema(model: type[BaseModel], name: str) -> str:
    """The JSON Schema of a document, to be published under the name in its field ``schema``."""
    dialect = "https://json-schema.org/draft/2020-12/schema"
    document = {"$schema": dialect, "$id": f"urn:{name.replace('/', ':')}"}
    return json.dumps(document | model.model_json_schema(), indent=1) + "\n"


if __name__ == "__main__":
    Path(__file__).with_suffix(".schema.json").write_text(json_schema(Report, SCHEMA))
