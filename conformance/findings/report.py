"""The report: everything one run found, as one JSON document.

`Report.model_json_schema` is published as ``report.schema.json`` beside this module. What is
compared between runs holds no time stamps and no names of machines, and has one order.
"""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

from pydantic import BaseModel, Field, model_validator

from adapters.contract import Departure
from conformance.findings.finding import Finding, Model
from conformance.findings.verdict import Verdict
from reference.aggregation import Conventions, Mode

if TYPE_CHECKING:
    from collections.abc import Iterable

SCHEMA: Literal["rl-loss-conformance/report/4"] = "rl-loss-conformance/report/4"


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


class Provenance(Model):
    """Where the framework's code came from: `adapters.toolkit.source.Source` without its folder."""

    kind: Literal["builtin", "installed", "checkout", "git", "pypi"]
    revision: str | None
    version: str | None
    ref: str | None
    dirty: bool


class Environment(Model):
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
        narrow = [] if self.dtype == "float32" else [self.dtype]
        return "/".join([self.device, self.backend, *narrow])


class Request(Model):
    """What of a run's options its findings follow from, and cannot be read off them."""

    divisor: float | None = None
    """L of `constant` where it replaced that of the cases."""

    examples: int = 0
    seed: str = "0"
    """How many steps were generated for each mode and layout, and what they follow from."""

    case: str | None = None
    """The name of the only case, where it was given as a file."""


class Selection(Model):
    """How much of the suite was asked for."""

    selected: int
    deselected: int


class Summary(Model):
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


class Header(Model):
    """What is known before the first finding."""

    adapter: str
    engine: str
    source: Provenance
    environment: Environment
    conventions: Conventions
    departures: list[Departure] = Field(default_factory=list)
    request: Request = Request()


class Report(Header):
    """One run. ``complete`` is False when it was stopped before its last finding."""

    schema_: Literal["rl-loss-conformance/report/4"] = Field(default=SCHEMA, alias="schema")
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
            json.dumps(finding.model_dump(mode="json", exclude_defaults=True), ensure_ascii=False)
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
