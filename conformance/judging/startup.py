"""Judges what a framework makes of a configuration: whether it refuses it, or what it then does."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from adapters.contract.configuration import DEFAULT_CONFIGURATION, REDUCER_DIVISOR
from adapters.contract.objective import ENTROPY_COEFFICIENT, KL_COEFFICIENT
from adapters.contract.probed_batch import ProbedBatch
from conformance.corpus.configurations import ConfigCase, Demand
from conformance.diagnosis.explain import Evidence, diagnose
from conformance.findings.badness import agreement
from conformance.findings.finding import Diagnosis
from conformance.findings.sanitize import last_line
from conformance.findings.verdict import Verdict
from conformance.judging.weights import (
    Judgement,
    combined,
    judge_weights,
    largest_error,
    step_context,
)
from reference.aggregation import Aggregation, AuxiliaryAggregation, Mode
from reference.rounding import weight_bound

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from adapters.contract import Description, Job, Observation
    from conformance.corpus.log_cases import LogCase
    from reference.step import Step


TERM_KL = ("KL", KL_COEFFICIENT)

KEPT = (Verdict.CONFORMS, Verdict.REFUSED)
"""Verdicts that keep a rule, whoever states it."""


def by_own_rules(
    judgement: Judgement, case: ConfigCase | LogCase, description: Description
) -> Judgement:
    """A verdict against a framework only where it states the rule itself; else advice.

    The rule's own framework, or the place where this one states it, is added to the words.
    """
    if judgement.verdict in KEPT:
        return judgement
    stated = description.rules.get(case.rule)
    if stated is not None:
        return _with_words(judgement, f"; the rule is stated in {stated}")
    advice = replace(judgement, verdict=Verdict.ADVICE)
    return _with_words(advice, f"; the rule is {case.origin}'s, and this framework states none")


def _with_words(judgement: Judgement, words: str) -> Judgement:
    assert judgement.diagnosis is not None
    explanation = f"{judgement.diagnosis.explanation}{words}"
    diagnosis = judgement.diagnosis.model_copy(update={"explanation": explanation})
    return replace(judgement, diagnosis=diagnosis)


def judge_crash(case: ConfigCase, message: str) -> Judgement:
    """A configuration that the framework neither refuses nor can be trained with."""
    words = f"{case.says} passes startup validation, and the run fails later: {last_line(message)}"
    return replace(_mismatch("fails_later", words), message=message)


def judge_refusal(case: ConfigCase, message: str) -> Judgement:
    """Hold an error of the framework's own against what is demanded."""
    if case.demand not in (Demand.REFUSE, Demand.REDUCER):
        refused = _mismatch("refused_what_it_supports", f"{case.says}, and it is refused")
        return replace(refused, message=message)
    if any(option in message.lower() for option in case.options):
        return Judgement(verdict=Verdict.REFUSED, error=None, tolerance=0.0, message=message)
    words = f"{case.says} is refused by an error that names none of {', '.join(case.options)}"
    return replace(_mismatch("refused_without_naming", words), message=message)


def judge_acceptance(
    case: ConfigCase,
    job: Job,
    observations: Sequence[Observation],
    description: Description,
    plain: Sequence[Observation],
) -> Judgement:
    """Hold what the framework then trained against what is demanded.

    ``plain`` is what it did with the ordinary configuration that the case is compared with.
    """
    if case.demand is Demand.REFUSE:
        return _accepted(case, job, observations, description)
    if case.demand in (Demand.SAME, Demand.DEFAULT):
        return _same(case, observations, plain)
    return _reduced(case, job, observations, description)


def compared_with(case: ConfigCase, job: Job, description: Description) -> Job:
    """The job of ordinary configuration that a case is to be the same as."""
    mode = description.default_mode if case.demand is Demand.DEFAULT else job.aggregation.mode
    divisor = job.aggregation.divisor if mode is Mode.CONSTANT else None
    return replace(job, aggregation=Aggregation(mode, divisor), configuration=DEFAULT_CONFIGURATION)


def _accepted(
    case: ConfigCase, job: Job, observations: Sequence[Observation], description: Description
) -> Judgement:
    """What is trained then, in the words of the diagnosis if it can be named.

    Where the configuration makes other steps of the job's, the reference says nothing of them.
    """
    if case.configuration.batch_size is not None or case.configuration.fault_injection is not None:
        return _mismatch("accepted", f"{case.says} is accepted and trained on")
    if case.configuration.entropy or case.configuration.kl:
        words = f"{case.says} is accepted; then {_term_words(case, job, observations, description)}"
        return _mismatch("accepted", words)
    judged = judge_weights(job, observations, description)
    if judged.diagnosis is None:
        words = f"{case.says} is accepted; then weights are those of {job.aggregation.mode}"
        return _mismatch("accepted", words)
    words = f"{case.says} is accepted; then {judged.diagnosis.explanation}"
    return replace(_mismatch("accepted", words, judged.error), agreement=judged.agreement)


def _term_words(
    case: ConfigCase, job: Job, observations: Sequence[Observation], description: Description
) -> str:
    """How the term that a configuration adds to the policy loss is seen to be aggregated.

    Its weights are what is left of the gradient once the policy loss's share is taken off.
    """
    name, coefficient = ("entropy", -ENTROPY_COEFFICIENT) if case.configuration.entropy else TERM_KL
    policy = step_context(job, 0, observations, description)
    dloss_dlogprob = ProbedBatch(job.steps, job.objective).dloss_dlogprob
    observed = combined(observations, 0, job, description.conventions)[0]
    left = (observed - policy.expected) * dloss_dlogprob / coefficient
    context = policy.of_term(AuxiliaryAggregation.SAMPLE_MEAN)
    active = context.expected > 0
    amplified = np.abs(dloss_dlogprob / coefficient)[active] * policy.expected[active]
    tolerance = weight_bound(description.dtype, terms=2) * float(
        1 + (amplified / context.expected[active]).max(initial=0.0)
    )
    evidence = Evidence(context=context, observed=left, tolerance=tolerance)
    if evidence.matches(context.expected):
        return f"its {name} term is a mean over samples"
    found = diagnose(evidence)
    if found.name in ("unexplained", "inactive_tokens_weigh", "not_finite"):
        return f"no known aggregation of its {name} term explains the gradient"
    return f"of its {name} term, which would be a mean over samples, {found.explanation}"


def _same(
    case: ConfigCase, observations: Sequence[Observation], plain: Sequence[Observation]
) -> Judgement:
    pairs = [
        (mine, other)
        for ours, theirs in zip(observations, plain, strict=True)
        for mine, other in zip(ours.token_weights, theirs.token_weights, strict=True)
    ]
    if all(np.array_equal(mine, other) for mine, other in pairs):
        return Judgement(verdict=Verdict.CONFORMS, error=0.0, tolerance=0.0)
    mine, other = (np.concatenate(weights) for weights in zip(*pairs, strict=True))
    error = largest_error(mine, np.abs(other))
    wrong = _mismatch("not_the_same", f"{case.says}, and some weights differ", error)
    return replace(wrong, agreement=agreement(mine, other))


def _reduced(
    case: ConfigCase, job: Job, observations: Sequence[Observation], description: Description
) -> Judgement:
    """The custom reducer's sums, over what the train step divides by: its tokens or its samples."""
    tolerance = weight_bound(description.dtype)
    worst = 0.0
    for step_index, step in enumerate(job.steps):
        expected = _reducer_weights(step, job.aggregation.mode)
        for observed in combined(observations, step_index, job, description.conventions):
            error = largest_error(observed, expected)
            if error is None or error > tolerance:
                mode = judge_weights(job, observations, description)
                wrong = _not_reduced(case, mode, observed, expected)
                return replace(wrong, error=error, agreement=agreement(observed, expected))
            worst = max(worst, error)
    return Judgement(verdict=Verdict.CONFORMS, error=worst, tolerance=tolerance)


def _not_reduced(
    case: ConfigCase,
    mode: Judgement,
    observed: NDArray[np.float64],
    expected: NDArray[np.float64],
) -> Judgement:
    """A custom reducer that is not used, or whose result is then divided by another number.

    ``mode`` is the judgement of the weights against those of the mode, as if there were no reducer.
    """
    if mode.verdict is Verdict.CONFORMS:
        return _mismatch("reducer_ignored", f"{case.says}, and it is not used")
    ratios = observed[expected > 0] / expected[expected > 0]
    if np.isfinite(ratios).all() and np.ptp(ratios) <= weight_bound("float32") * ratios.max():
        words = f"{case.says}, and every weight is {ratios[0]:.6g} times what it makes it"
        return _mismatch("reducer_rescaled", words)
    return _mismatch("reducer_ignored", f"{case.says}, and weights are not what it makes them")


def _reducer_weights(step: Step, mode: Mode) -> NDArray[np.float64]:
    units = step.active_tokens.sum() if mode is Mode.TOKEN_MEAN else step.size
    return step.mask / (REDUCER_DIVISOR * float(units))


def _mismatch(
    name: str, explanation: str, error: float | None = None, tolerance: float = 0.0
) -> Judgement:
    return Judgement(
        verdict=Verdict.MISMATCH,
        error=error,
        tolerance=tolerance,
        diagnosis=Diagnosis(name=name, explanation=explanation),
    )
