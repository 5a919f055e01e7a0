"""The finding that shows a cause best, and its step, reconstructed from report and case."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from adapters.contract.objective import (
    OF_ROLLOUTS,
    Metric,
)
from conformance.corpus.cases import CASES_BY_NAME
from conformance.expected import loss_terms
from conformance.expected.step_context import StepContext
from conformance.explain.causes import causes, is_worst
from conformance.explain.reach import MASKED_ROW, MASKED_SAMPLE, RARE, rare_of
from conformance.findings.cause import EMPTY_SAMPLE, Severity
from conformance.findings.groups import FindingGroup
from conformance.findings.verdict import Check
from conformance.plan.checks import CHECK_SPECS
from conformance.worked.factors import denominators, formula
from reference.aggregation import Mode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from conformance.corpus.cases import Case
    from conformance.expected.term import LossTerm
    from conformance.findings.cause import Cause
    from conformance.findings.finding import Finding, Picture, Run
    from conformance.findings.report import Report
    from conformance.plan.checks import CheckSpec
    from conformance.worked.factors import Denominator, Formula
    from reference.step import Step


OF_MASKED_SAMPLES = (EMPTY_SAMPLE, MASKED_SAMPLE, MASKED_ROW)
"""Rare facts about one sample, which do not affect the other samples of a step."""


class WorkedTerm:
    """One term of a step's loss, or of a logged number, with its right denominators."""

    def __init__(self, term: LossTerm, convention: str) -> None:
        self.term, self.name, self.convention = term, str(term.metric), convention
        self.context, self.mode = term.context, term.context.mode

    @property
    def is_known(self) -> bool:
        """Whether the right weights are known: they do not need the cut, or the cut is known."""
        return not self.context.per_micro_batch or self.context.placement is not None

    @cached_property
    def denominators(self) -> list[Denominator]:
        """The right denominators."""
        return [*denominators(self.context)]

    @property
    def addends(self) -> list[tuple[Denominator, float, float]]:
        """Each denominator with the sum of its tokens' values, and their share of the term."""
        term = self.term
        return [
            (one, math.fsum(term.factors[one.tokens]), math.fsum(term.products[one.tokens]))
            for one in self.denominators
        ]


class WorkedStep:
    """The step of a finding, reconstructed from case and report."""

    def __init__(self, report: Report, finding: Finding, spec: CheckSpec, case: Case) -> None:
        self.finding, self.spec = finding, spec
        aggregation = case.aggregation(finding.mode)
        if finding.mode is Mode.CONSTANT and report.request.divisor is not None:
            aggregation = replace(aggregation, divisor=report.request.divisor)
        contexts = [
            StepContext(
                steps=case.steps,
                step_index=index,
                aggregation=aggregation,
                conventions=report.conventions,
                layout=finding.layout,
                forward_pass_of_token=_passes(finding, index, step),
            )
            for index, step in enumerate(case.steps)
        ]
        if spec.metric in OF_ROLLOUTS:
            terms = [loss_terms.rollout_term(contexts, spec.objective, spec.metric)]
            self.context = terms[0].context
        else:
            self.context = next(filter(self._is_wrong, contexts), contexts[0])
            terms = self._terms(self.context)
        self.terms = [WorkedTerm(term, self._convention(term)) for term in terms]

    @property
    def step(self) -> Step:
        """The step itself."""
        return self.context.step

    @cached_property
    def formula(self) -> Formula | None:
        """The factors on weights; None if the factors are constant, or for a logged number."""
        if self.finding.logged is not None:
            return None
        return formula(self.terms[0].term, self.spec.objective)

    @cached_property
    def observed(self) -> NDArray[np.float64] | None:
        """The observed weights, NaN where unknown, infinite if not finite: [tokens].

        None if the finding has no picture.
        """
        if self.finding.picture is None:
            return None
        observed = np.full(len(self.step.mask), np.nan)
        for tokens, run in _spans(self.finding.picture, self.step):
            observed[tokens] = np.inf if run.observed is None else run.observed
        return observed

    def _convention(self, term: LossTerm) -> str:
        """The name of the convention that aggregates a term averaged over micro-batches."""
        if self.spec.metric in (None, Metric.LOSS):
            return str(term.metric)
        return str(loss_terms.convention_of_log(self.spec.metric, term.context.conventions))

    def _is_wrong(self, context: StepContext) -> bool:
        """Whether the finding is about this step of the batch."""
        if self.finding.picture is not None:
            return self.finding.picture.step == context.step_index
        logged, terms = self.finding.logged, self._terms(context)
        if logged is None or not all(WorkedTerm(term, "").is_known for term in terms):
            return False
        total = math.fsum(term.expected for term in terms)
        return math.isclose(total, logged.expected, rel_tol=1e-9)

    def _terms(self, context: StepContext) -> list[LossTerm]:
        """The loss terms that the check compares, with the factors on their weights."""
        objective = self.spec.objective
        if self.spec.metric is not None:
            return loss_terms.logged_terms(context, objective, self.spec.metric)
        return loss_terms.gradient_terms(context, objective)


def worked_step(report: Report, finding: Finding) -> WorkedStep | None:
    """Returns the step of a finding; None if its check or case is unknown."""
    slug = finding.identity.slug
    spec = next((one for one in CHECK_SPECS if one.slug == slug), None)
    case = CASES_BY_NAME.get(finding.case)
    if spec is None or case is None or report.request.case:
        return None
    return WorkedStep(report, finding, spec, case)


def _passes(finding: Finding, step_index: int, step: Step) -> NDArray[np.int32] | None:
    """The micro-batch in which each rank held each token, or -1: [ranks, tokens].

    None if the finding has no picture of the step.
    """
    picture, layout = finding.picture, finding.layout
    if picture is None or picture.step != step_index:
        return None
    held = np.full((layout.dp * layout.cp, len(step.mask)), -1, np.int32)
    for tokens, run in _spans(picture, step):
        if run.dp_rank is None or run.cp_rank is None or run.micro_batch is None:
            return None
        held[run.dp_rank * layout.cp + run.cp_rank, tokens] = run.micro_batch
    return held


def _spans(picture: Picture, step: Step) -> Iterator[tuple[slice, Run]]:
    """Yield the place of each run among all response tokens of a step."""
    for sample in picture.samples:
        start = int(step.offsets[sample.sample])
        for run in sample.runs:
            yield slice(start, start + run.tokens), run
            start += run.tokens


@dataclass(frozen=True)
class ShownCause:
    """A cause of a report, with the finding that shows it best."""

    report: Report
    cause: Cause

    @cached_property
    def group(self) -> FindingGroup:
        """The findings that the cause explains, the best examples first."""
        ids = {*self.cause.findings}
        found = sorted((one for one in self.report.findings if one.id in ids), key=self._size)
        return FindingGroup(cause=self.cause, findings=tuple(found), example=found[0])

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings that the cause explains, the best examples first."""
        return self.group.findings

    @cached_property
    def example(self) -> Finding:
        """The smallest of the plainest findings for which a run would report only this cause."""
        plainest = [
            one for one in self.findings if self._oddity(one) == self._oddity(self.findings[0])
        ]
        named = (one for one in plainest if self._named(one) == [self.cause.name])
        return next(named, plainest[0])

    @cached_property
    def named(self) -> list[str]:
        """The names of the causes that a run of only the example would report."""
        return self._named(self.example)

    @property
    def rare(self) -> list[str]:
        """The rare properties of the example's step."""
        return rare_of(self._rare(self.example))

    def _named(self, finding: Finding) -> list[str]:
        return [one.name for one in causes([finding], self.report.clues, {})]

    def _rare(self, finding: Finding) -> list[str]:
        clues = self.report.clues_of(finding)
        return [fact for fact in RARE if clues is not None and fact in clues.conditions]

    @cached_property
    def _other_findings(self) -> frozenset[str]:
        """The ids of the findings to which other causes contribute."""
        others = (one for one in self.report.causes if one is not self.cause)
        return frozenset(chain.from_iterable(one.findings for one in others))

    def _oddity(self, finding: Finding) -> tuple[bool, bool, int]:
        """A sort key: milder findings, shared ones and those with needless rare facts come last.

        A fully masked sample does not count as rare, since it makes a step no harder to read.
        """
        expected = (*self.cause.reach.rare, *OF_MASKED_SAMPLES)
        needless = [fact for fact in self._rare(finding) if fact not in expected]
        is_less = not is_worst(finding, self.cause)
        return is_less, finding.id in self._other_findings, len(needless)

    def _size(self, finding: Finding) -> tuple[bool, bool, int, bool, int, bool, int, int, str]:
        """A sort key: the plainest finding first, by ranks, tokens and check."""
        gradient = self.cause.severity is Severity.GRADIENT
        case = CASES_BY_NAME.get(finding.case)
        tokens = sum(len(step.mask) for step in case.steps) if case else 0
        check = [*Check].index(finding.check)
        is_sum = finding.subject in ("combined", "loss")
        size = finding.layout.world_size
        return (
            *self._oddity(finding),
            gradient and finding.picture is None,
            size,
            is_sum,
            tokens,
            check,
            finding.id,
        )
