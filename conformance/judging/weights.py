"""Judges observed token weights against derived bounds, and which rank trained on which tokens."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from adapters.contract import PendingReduction
from adapters.contract.batch.probed_batch import ProbedBatch
from conformance.expected import loss_terms
from conformance.expected.placement import forward_pass_of_token, rows_of_passes
from conformance.expected.step_context import ExpectedNumber, StepContext
from conformance.explain.clues import clues
from conformance.explain.diagnosis import diagnose
from conformance.explain.engine import Explained
from conformance.explain.measurement import Measurement
from conformance.findings.agreement import agreement, direction
from conformance.findings.finding import Diagnosis, Finding
from conformance.findings.verdict import Verdict
from conformance.judging.picture import picture
from conformance.judging.rescaling import rescalings
from conformance.ranks.pool import Crashed, Ran
from reference.aggregation import Mode, SampleUnit
from reference.rounding import weight_bound

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from adapters.contract import Depth, Description, Job, Layout, Observation
    from adapters.contract.description import Convention
    from adapters.contract.objective import Metric
    from conformance.findings.cause import Clues
    from conformance.findings.finding import Behaviour, Logged, Picture
    from conformance.judging.rescaling import Rescaling
    from conformance.ranks.messages import Declined
    from reference.aggregation import Conventions
    from reference.step import Step

    Array = NDArray[np.float64]
    ErrorOf = Callable[[Measurement], float | None]
    Wrong = Callable[[Explained], "Judgement"]
    Outcome = Ran | Declined | Crashed


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """The verdict on one cell, with the largest relative error found and the bound on the error.

    It has all fields of a finding except the name, and further fields that only the run needs.
    """

    verdict: Verdict
    error: float | None = None
    tolerance: float | None = 0.0
    """The bound on the error; None if nothing was measured."""

    agreement: float | None = None
    """The result of `conformance.findings.agreement.agreement`, for a mismatch."""

    scale: float | None = None
    cosine: float | None = None
    """With ``scale``, the result of `conformance.findings.agreement.direction`, for a wrong
    gradient."""

    diagnosis: Diagnosis | None = None
    message: str | None = None
    """The framework's own message, if it declined."""

    place: str | None = None
    """The line at which the framework raised, as ``file:line (function)``."""

    picture: Picture | None = None
    logged: Logged | None = None
    behaviour: Behaviour | None = None
    clues: Clues | None = None
    """The evidence of the observations on the known mistakes."""

    rescalings: tuple[Rescaling, ...] = ()
    """Rescalings of right gradients by the trainer; each alone explains the mismatch."""

    expected: tuple[ExpectedNumber, ...] = ()
    """Numbers that `conformance.runs.recorder` compares over the findings of a run."""

    @property
    def names(self) -> list[str]:
        """The names of all mistakes that explain a mismatch."""
        return [self.diagnosis.name, *self.diagnosis.also] if self.diagnosis else []

    def finding(self, id_: str, depth: Depth) -> Finding:
        """The finding for the journal, without clues, which are stored once for many findings."""
        kept = Finding.model_fields.keys() - {"id", "depth", "clues"}
        return Finding(id=id_, depth=depth, **{name: getattr(self, name) for name in kept})


def unjudged(verdict: Verdict, message: str, place: str | None = None) -> Judgement:
    """The judgement if a framework raised, declined or was not run: nothing was measured."""
    return Judgement(verdict=verdict, tolerance=None, message=message, place=place)


def not_run(outcome: Declined | Crashed) -> Judgement:
    """The judgement of a job that did not run, in the framework's own words."""
    place = outcome.place if isinstance(outcome, Crashed) else None
    return unjudged(Verdict(outcome.verdict), outcome.message, place)


def mismatch(name: str, explanation: str, error: float | None = None) -> Judgement:
    """A mismatch with a diagnosis."""
    diagnosis = Diagnosis(name=name, explanation=explanation)
    return Judgement(verdict=Verdict.MISMATCH, error=error, diagnosis=diagnosis)


def advice(diagnosis: Diagnosis, expected: tuple[ExpectedNumber, ...] = ()) -> Judgement:
    """Advice in place of a mismatch, without the mismatch's numbers."""
    return Judgement(verdict=Verdict.ADVICE, diagnosis=diagnosis, expected=expected)


@dataclass(frozen=True)
class Trained:
    """A trained job: the observations of its ranks, with the description to judge them by."""

    job: Job
    observations: Sequence[Observation]
    description: Description
    explains: bool = True
    """Whether a mismatch is explained, which takes most of the time."""

    def declaring(self, declared: Mapping[str, Convention]) -> Trained:
        """The same observations, to be judged by other conventions."""
        declared = {**self.description.declared, **declared}
        return replace(self, description=replace(self.description, declared=declared))

    def context(self, step_index: int) -> StepContext:
        """The context of one step, with the aggregation of the objective's only term."""
        return step_context(self.job, step_index, self.observations, self.description)

    @property
    def contexts(self) -> list[StepContext]:
        """The contexts of all steps."""
        return [*map(self.context, range(len(self.job.steps)))]

    def reports(self, metric: Metric) -> bool:
        """Whether at least one rank reports a metric in at least one step."""
        of_ranks = (rank.reported.get(metric, ()) for rank in self.observations)
        return any(value is not None for of_steps in of_ranks for value in of_steps)

    def steps(self) -> Iterator[tuple[StepContext, Array, list[Array]]]:
        """Yield each step, the derivatives of its losses and each rank's weights: [tokens]."""
        conventions = self.description.conventions
        batch = ProbedBatch.of(self.job, conventions)
        for index, derivatives in enumerate(batch.split(batch.dloss_dlogprob)):
            weights = final_weights(self.observations, index, self.job, conventions)
            yield self.context(index), derivatives, weights

    def judged(
        self, measurements: Sequence[Measurement], error_of: ErrorOf, wrong: Wrong
    ) -> Judgement:
        """Judge each rank's measurement of each step: the first wrong one, or the largest error.

        ``error_of`` returns an error on the tolerance's scale, or None if a value is not finite.
        ``wrong`` returns the mismatch, without its error.
        """
        judged = _judged(measurements)
        if not self.explains:
            return _worst(measurements, judged, error_of, _unexplained)
        judgement = _worst(measurements, judged, error_of, wrong)
        return replace(judgement, clues=clues(judged)) if judged else judgement


def _unexplained(_: Explained) -> Judgement:
    return Judgement(verdict=Verdict.MISMATCH)


def _judged(measurements: Sequence[Measurement]) -> list[Explained]:
    """The measurements to judge: all but those of skipped steps without active tokens.

    Diagnosis and clues share the returned explanations.
    """
    seen = {one.context for one in measurements if one.observed.any()}
    return [
        Explained(one, elsewhere=one.context in seen)
        for one in measurements
        if not one.context.is_skipped or one.context.step.mask.any()
    ]


def _worst(
    measurements: Sequence[Measurement],
    judged: Sequence[Explained],
    error_of: ErrorOf,
    wrong: Wrong,
) -> Judgement:
    worst = Judgement(verdict=Verdict.CONFORMS)
    for explained in judged:
        one = explained.measurement
        # If all advantages are 0, a skipped step has the right gradient only by accident.
        is_lost = one.context.is_skipped and one.is_per_token
        error = None if is_lost else error_of(one)
        if error is None or not error <= one.tolerance:
            worst = replace(
                wrong(explained),
                error=error,
                tolerance=one.tolerance,
                rescalings=tuple(rescalings([each.measurement for each in judged], one)),
            )
            break
        if worst.error is None or error > worst.error:
            worst = replace(worst, error=error, tolerance=one.tolerance)
    if worst.verdict is Verdict.CONFORMS and len(judged) < len(measurements):
        words = "the optimizer step is skipped, as its gradient is NaN or infinite; none of its"
        skipped = Diagnosis(name="step_skipped", explanation=f"{words} tokens is active")
        worst = advice(skipped)
    contexts = dict.fromkeys(term.context for one in measurements for term in one.terms)
    return replace(worst, expected=tuple(context.fingerprint for context in contexts))


def judge_weights(trained: Trained) -> Judgement:
    """Judge the observed weights of the objective's only term, in every step and on every rank.

    The error of an active token is relative and bounded; an inactive token must weigh exactly 0.
    """
    tolerance = weight_bound(trained.description.dtype)
    metric = loss_terms.trained_term(trained.job.objective)
    measurements = [
        Measurement(terms=[term], observed=weights, tolerance=tolerance, derivatives=derivatives)
        for context, derivatives, of_ranks in trained.steps()
        for term in [loss_terms.plain_term(context, metric)]
        for weights in of_ranks
    ]
    return trained.judged(measurements, _error, wrong_gradient)


def _error(measurement: Measurement) -> float | None:
    return largest_error(measurement.observed, measurement.context.expected)


def wrong_gradient(explained: Explained) -> Judgement:
    """The mismatch of a gradient, with its size, its direction and its picture."""
    measurement = explained.measurement
    observed, expected = measurement.observed, measurement.expected
    scale, cosine = direction(observed, expected)
    return Judgement(
        verdict=Verdict.MISMATCH,
        agreement=agreement(observed, expected, measurement.magnitude),
        scale=scale,
        cosine=cosine,
        diagnosis=diagnose(explained),
        picture=picture(measurement.context, observed, expected),
    )


def step_context(
    job: Job, step_index: int, observations: Sequence[Observation], description: Description
) -> StepContext:
    """The context of one step of a job, with the aggregation of the objective's only term."""
    context = StepContext(
        steps=job.steps,
        step_index=step_index,
        aggregation=job.aggregation,
        conventions=description.conventions,
        layout=job.layout,
        forward_pass_of_token=forward_pass_of_token(observations, step_index, job.layout),
        rows_of_passes=rows_of_passes(observations, step_index, job.layout),
        is_skipped=any(step_index in one.skipped_steps for one in observations),
    )
    term = loss_terms.trained_term(job.objective)
    return context.of_term(loss_terms.reducer(term, description.conventions))


def largest_error(observed: NDArray[np.float64], expected: NDArray[np.float64]) -> float | None:
    """Largest relative error of a token's weight; None if a weight is not finite.

    The error of an inactive token is its weight relative to the step's largest expected weight, or
    its weight alone if no token is active. The error is at least 1 unless the weight is 0.
    """
    if not np.isfinite(observed).all():
        return None
    active = expected != 0
    off_active = np.abs(observed[active] - expected[active]) / expected[active]
    leaked = np.abs(observed[~active]).max(initial=0.0)
    if leaked:
        leaked = max(leaked / expected.max(initial=0.0), 1.0) if active.any() else max(leaked, 1.0)
    return float(max(off_active.max(initial=0.0), leaked))


def final_weights(
    observations: Sequence[Observation], step_index: int, job: Job, conventions: Conventions
) -> list[NDArray[np.float64]]:
    """The final weights of every rank, after the reductions that the train step has yet to do.

    Ranks whose weights are all 0 come last, as other ranks reveal more about a mistake. Each
    pipeline stage with a probe has the gradient of all tokens; pending reductions are applied to
    the last stage, where tokens are counted. Each tensor-parallel rank has the whole gradient too,
    so reductions go over the other dimensions.
    """
    tp, step = job.layout.tp, job.steps[step_index]
    holding = observations[job.layout.last_stage]
    if holding[0].pending_reduction is PendingReduction.REPLICATED:
        before = observations[: job.layout.last_stage.start]
        replicas = [rank.token_weights[step_index] for rank in before if rank.token_weights]
        replicas += [rank.token_weights[step_index] for rank in holding]
        return sorted(replicas, key=lambda weights: not weights.any())
    return [
        np.sum([rank.token_weights[step_index] for rank in ranks], axis=0)
        / _divisor(ranks, step_index, step, conventions)
        for ranks in (holding[tp_rank::tp] for tp_rank in range(tp))
    ]


def _divisor(
    ranks: Sequence[Observation], step_index: int, step: Step, conventions: Conventions
) -> float:
    """The divisor of the ranks' sum of weights in the pending reduction."""
    match ranks[0].pending_reduction:
        case PendingReduction.MEAN:
            return len(ranks)
        case PendingReduction.SUM_PER_COUNTED_TOKEN:
            return max(sum(rank.counted_tokens[step_index] for rank in ranks), 1)
        case PendingReduction.SUM_PER_TOKEN:
            return max(int(step.active_tokens.sum()), 1)
        case PendingReduction.SUM_PER_SAMPLE:
            by_rollout = conventions.sample_unit is SampleUnit.ROLLOUT
            return len(np.unique(step.rollouts)) if by_rollout else step.size
    return 1


def judge_sharding(trained: Trained) -> Judgement:
    """Judge whether every active token was trained on in its own step.

    If a framework documents that its `prompt_mean` needs all samples of a prompt on one
    data-parallel rank, that is judged too.
    """
    job, conventions = trained.job, trained.description.conventions
    whole = conventions.whole_groups and job.aggregation.mode is Mode.PROMPT_MEAN
    for step_index, step in enumerate(job.steps):
        passes = forward_pass_of_token(trained.observations, step_index, job.layout)
        if passes is None:
            words = f"the adapter is at fault: it recorded no forward passes of step {step_index}"
            return mismatch("forward_passes_not_recorded", words)
        fault = _untrained(step, passes)
        if fault is None and whole:
            fault = _scattered(step, passes, job.layout)
        if fault is not None:
            return Judgement(verdict=Verdict.MISMATCH, diagnosis=fault)
    return Judgement(verdict=Verdict.CONFORMS, error=0.0, tolerance=0.0)


def _untrained(step: Step, passes: NDArray[np.int32]) -> Diagnosis | None:
    lost = int((step.mask & (passes < 0).all(axis=0)).sum())
    if not lost:
        return None
    total = int(step.mask.sum())
    return Diagnosis(
        name="tokens_not_held",
        explanation=f"{lost} of {total} active tokens are on no rank in their optimizer step",
        numbers={"lost": lost, "tokens": total},
    )


def _scattered(step: Step, passes: NDArray[np.int32], layout: Layout) -> Diagnosis | None:
    of_token = np.repeat(step.groups, step.response_lengths)
    for group in np.unique(step.groups):
        ranks = np.flatnonzero((passes[:, of_token == group] >= 0).any(axis=1)) // layout.cp
        if len(np.unique(ranks)) > 1:
            places = " and ".join(map(str, np.unique(ranks)))
            return Diagnosis(
                name="group_on_several_ranks",
                explanation=f"the samples of prompt group {group} are on data-parallel ranks"
                f" {places}, and this prompt_mean needs them on one",
                numbers={"group": float(group), "ranks": float(len(np.unique(ranks)))},
            )
    return None
