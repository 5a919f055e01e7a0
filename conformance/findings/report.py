"""The report: all findings of one run in one JSON document.

Its JSON Schema is published as ``report.schema.json`` next to this module. A report contains no
time stamps or host names and has a fixed order, so that reports can be compared.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import BaseModel, Field, field_serializer, model_validator

from adapters.contract import Convention, Departure, Documented
from conformance.findings.badness import failure
from conformance.findings.cause import Cause, Clues
from conformance.findings.finding import Finding, FrozenModel
from conformance.findings.verdict import Verdict, driven_instead
from reference.aggregation import Conventions, Mode

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

SCHEMA: Literal["rl-loss-conformance/report/6"] = "rl-loss-conformance/report/6"


FIELD_ORDER = (
    "schema",
    "adapter",
    "adapter_class",
    "engine",
    "complete",
    "fault",
    "source",
    "environment",
    "conventions",
    "documented",
    "departures",
    "versions",
    "chosen_by",
    "logged_as",
    "new_options",
    "request",
    "selection",
    "summary",
    "causes",
    "clues",
    "findings",
)
"""The order of the fields in a report's file."""


class Provenance(FrozenModel):
    """The source of the framework's code: `conformance.sources.source.Source` without its path."""

    kind: Literal["builtin", "installed", "checkout", "git", "pypi"]
    revision: str | None
    version: str | None
    ref: str | None
    dirty: bool


class Environment(FrozenModel):
    """The software and hardware that a result may depend on."""

    python: str
    torch: str
    backend: str
    device: str
    dtype: str = "float32"
    """Dtype of parameters and their gradients; losses are in float32."""

    platform: str
    dependencies: dict[str, str]
    stubs: list[str]

    @property
    def hardware(self) -> str:
        """The device and backend of the ranks, with the dtype if it is not float32."""
        narrow = [] if self.dtype == "float32" else [self.dtype]
        return "/".join([self.device, self.backend, *narrow])


class PlanSize(StrEnum):
    """The size of a run's plan."""

    QUICK = "quick"
    """A subset that detects the same mistakes."""

    FULL = "full"


class Request(FrozenModel):
    """Options that determine the findings of a run, but do not appear in the findings."""

    plan: PlanSize = PlanSize.FULL

    divisor: float | None = None
    """The divisor L of `constant`, if it replaced the cases' own divisors."""

    examples: int = 0
    seed: str = "0"
    """The seed of the steps that were generated for each mode and layout."""

    case: str | None = None
    """The name of the only case, if it was given as a file."""


class Selection(FrozenModel):
    """The number of findings that were selected and deselected."""

    selected: int
    deselected: int


class Summary(FrozenModel):
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
            verdicts=_ordered(total),
            modes={mode: _ordered(modes[mode]) for mode in Mode if mode in modes},
        )


class Header(FrozenModel):
    """The fields that are known before the first finding."""

    adapter: str
    adapter_class: str | None = None
    """The adapter, if it was named as ``module:Class``; otherwise left out of the document."""

    engine: str
    source: Provenance
    environment: Environment
    conventions: Conventions
    documented: dict[str, str] = Field(default_factory=dict)
    """The place where the framework states a convention, by the convention's name; conventions
    without an entry are assumed."""

    departures: list[Departure] = Field(default_factory=list)
    versions: str = ""
    """Versions of the framework that the adapter drives, in words."""

    chosen_by: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Options, as users type them, that choose a mode, an objective or a part of a layout."""

    logged_as: dict[str, str] = Field(default_factory=dict)
    """The name of each metric in the framework's own log."""

    new_options: list[str] | None = None
    """Options of this version that the adapter does not know, and choices of options as
    ``name=choice``. No finding is about these options. None in reports of earlier releases."""

    request: Request = Request()

    @property
    def answers(self) -> dict[str, str]:
        """Each convention in words, with the place that states it or a note that it is assumed."""
        return answers(self.conventions, self.documented)

    @field_serializer("conventions")
    def _declared(self, conventions: Conventions) -> dict[str, Any]:
        """The conventions that the adapter declares."""
        return {name: value for name, value in asdict(conventions).items() if value is not None}


class Report(Header):
    """One run. ``complete`` is False if the run was stopped before its last finding.

    ``fault`` is the fault of the harness that stopped the run, which makes every verdict
    unreliable.
    """

    schema_: Literal["rl-loss-conformance/report/6"] = Field(default=SCHEMA, alias="schema")
    complete: bool
    fault: str | None = None
    selection: Selection
    findings: list[Finding]
    summary: Summary
    causes: list[Cause]
    """The causes of all wrong findings, the worst first."""

    clues: list[Clues]
    """The evidence of findings on the known mistakes, without duplicates; empty if all findings
    are right."""

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        ids = [finding.id for finding in self.findings]
        for former, latter in pairwise(ids):
            if former >= latter:
                raise ValueError(f"finding {latter!r} comes after {former!r}")
        if self.summary != Summary.of(self.findings):
            raise ValueError("the summary's counts are not those of the findings")
        if self.complete != (len(ids) == self.selection.selected):
            raise ValueError(
                f"complete is {self.complete} with {len(ids)} of {self.selection.selected} findings"
            )
        return self

    @property
    def not_driven(self) -> str | None:
        """The adapter's most frequent gap, and the versions that it supports; None if no gap."""
        reasons = Counter(
            failure(one) for one in self.findings if one.verdict is Verdict.NOT_DRIVEN
        )
        if not reasons:
            return None
        reason = reasons.most_common(1)[0][0]
        return "; ".join(filter(None, (reason, driven_instead(self.versions, reason))))

    def clues_of(self, finding: Finding) -> Clues | None:
        """The evidence of one finding on the known mistakes."""
        return None if finding.clues is None else self.clues[finding.clues]

    @classmethod
    def assemble(
        cls,
        header: Header,
        findings: Iterable[Finding],
        selection: Selection,
        causes: Sequence[Cause] = (),
        clues: Sequence[Clues] = (),
        fault: str | None = None,
    ) -> Report:
        """Make a report with findings in the order of their ids."""
        ordered = sorted(findings, key=lambda finding: finding.id)
        return cls(
            **dict(header),
            complete=len(ordered) == selection.selected,
            fault=fault,
            selection=selection,
            findings=ordered,
            summary=Summary.of(ordered),
            causes=[*causes],
            clues=[*clues],
        )

    def to_json(self) -> str:
        """The JSON text, with a line for each field, cause and finding, so that git can compare it.

        Default values of causes, clues and findings are left out, and so is ``fault`` if there is
        none.
        """
        lists: dict[str, Sequence[BaseModel]] = {
            "causes": self.causes,
            "clues": self.clues,
            "findings": self.findings,
        }
        fields = self.model_dump(mode="json", by_alias=True, exclude={*lists})
        texts = {
            name: json.dumps(value, ensure_ascii=False)
            for name, value in fields.items()
            if value is not None
        }
        texts |= {name: _lines(models) for name, models in lists.items()}
        lines = [f'"{name}": {texts[name]}' for name in FIELD_ORDER if name in texts]
        return "{\n " + ",\n ".join(lines) + "\n}\n"


def _lines(models: Iterable[BaseModel]) -> str:
    lines = [
        json.dumps(model.model_dump(mode="json", exclude_defaults=True), ensure_ascii=False)
        for model in models
    ]
    return "[\n  " + ",\n  ".join(lines) + "\n ]" if lines else "[]"


def _ordered(counts: Counter[Verdict]) -> dict[Verdict, int]:
    return {verdict: counts[verdict] for verdict in Verdict if counts[verdict]}


def json_schema(model: type[BaseModel], name: str) -> str:
    """The JSON Schema of a document, named after its field ``schema``."""
    dialect = "https://json-schema.org/draft/2020-12/schema"
    document = {"$schema": dialect, "$id": f"urn:{name.replace('/', ':')}"}
    return json.dumps(document | model.model_json_schema(), indent=1) + "\n"


if __name__ == "__main__":
    Path(__file__).with_suffix(".schema.json").write_text(json_schema(Report, SCHEMA))


def sources(declared: Mapping[str, Convention]) -> dict[str, str]:
    """Returns where each documented convention is stated."""
    return {
        name: convention.where
        for name, convention in declared.items()
        if isinstance(convention, Documented)
    }


def answers(conventions: Conventions, documented: Mapping[str, str]) -> dict[str, str]:
    """Returns each convention in words, with the place that states it or a note that none does."""
    return {
        name: f"{value} ({documented.get(name, 'assumed')})"
        for name, value in vars(conventions).items()
        if value is not None
    }
