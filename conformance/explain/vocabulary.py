"""The words that causes are written in: the names of mistakes, and the facts of conditions."""

from __future__ import annotations

from functools import cache
from itertools import product

from adapters.contract import Layout, Option
from adapters.contract.objective import Metric
from conformance.explain.conditions import of_finding
from conformance.explain.step_conditions import OF_BATCHES, OF_CUTS, OF_STEPS
from conformance.findings.finding import Finding
from conformance.findings.verdict import Verdict
from conformance.plan.checks import CHECK_SPECS
from reference.aggregation import Mode

LAYOUTS = (
    Layout(),
    Layout(dp=2, cp=2, tp=2, pp=2, micro_batches=2, format="thd", options=tuple(sorted(Option))),
    Layout(micro_batches="uneven"),
    Layout(micro_batches="tokens"),
)
"""Layouts that together have every fact that a layout can have."""


@cache
def facts() -> frozenset[str]:
    """Returns all facts that a condition can be made of."""
    slugs = (spec.slug for spec in CHECK_SPECS)
    findings = (
        Finding(id=f"{slug}/{Mode.TOKEN_MEAN}/any/{layout}", verdict=Verdict.CONFORMS)
        for slug, layout in product(slugs, LAYOUTS)
    )
    modes = (f"{word} {mode}" for word in ("in", "except in") for mode in Mode)
    of_findings = {
        fact for finding, term in product(findings, Metric) for fact in of_finding(finding, term)
    }
    return frozenset({*of_findings, *modes, *OF_STEPS, *OF_BATCHES, *OF_CUTS})
