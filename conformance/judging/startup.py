"""Judges whether a framework refuses a configuration, or which loss it trains with it.

Malformed logs of micro-batches must be refused as well, even under ``python -O``, which removes
asserts. Every log case therefore also runs under ``python -O``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from adapters.contract.job import DEFAULT_CONFIGURATION, REDUCER_DIVISOR
from adapters.contract.objective import ENTROPY_COEFFICIENT, KL_COEFFICIENT
from conformance.corpus.configurations import TRIALS, ConfigCase, Demand
from conformance.expected.loss_terms import plain_term
from conformance.explain.catalogue.mistake import INACTIVE
from conformance.explain.diagnosis import diagnose
from conformance.explain.engine import Explained
from conformance.explain.measurement import Measurement
from conformance.findings.agreement import agreement, direction
from conformance.findings.sanitize import first_line
from conformance.findings.verdict import Verdict
from conformance.judging.comparison import differing_gradients
from conformance.judging.picture import picture
from conformance.judging.weights import (
    Judgement,
    judge_weights,
    largest_error,
    mismatch,
    not_run,
    unjudged,
)
from conformance.ranks.messages import Declined
from conformance.ranks.pool import Crashed
from reference.aggregation import Aggregation, AuxiliaryAggregation, Mode
from reference.rounding import weight_bound

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from numpy.typing import NDArray

    from adapters.contract import Description, Job
    from adapters.contract.job import Setting
    from conformance.corpus.configurations import LogCase
    from conformance.expected.step_context import StepContext
    from conformance.judging.further_jobs import FurtherJobs
    from conformance.judging.weights import Trained
    from conformance.plan.matrix import StartupCell
    from conformance.ranks.log_process import LogOutcome
    from reference.step import Step

TERM_KL = ("KL", KL_COEFFICIENT)

NOT_BROKEN = frozenset(Verdict) - {Verdict.MISMATCH}
"""Verdicts that break no rule on configurations, such as the crash of an ordinary step."""

COMPARED = (Demand.SAME, Demand.DEFAULT)
"""Demands on configurations that must train like the default configuration."""


def judge_configuration(cell: StartupCell, jobs: FurtherJobs) -> Judgement:
    """Judge a configuration by the framework's rules, or an adapter that ignores its settings.

    A configuration that breaks no rule under the framework's conventions and permits is not run.
    """
    case, description = cell.config_case, jobs.description
    if not case.applies(description.conventions):
        words = f"by its conventions nothing is wrong with {case.says}"
        return unjudged(Verdict.UNSUPPORTED, words)
    if (permitted := description.permits.get(case.rule)) is not None:
        return unjudged(Verdict.UNSUPPORTED, f"{case.says}: allowed by {permitted}")
    judged = by_own_rules(judge_startup(case, cell.job, jobs), case, description)
    if judged.verdict in NOT_BROKEN:
        return judged
    ignored, settings = jobs.ignored_settings(cell.layout), case.configuration.settings
    if ignored and (settings & ignored or settings - TRIALS.keys()):
        return judge_ignored(ignored, judged.message)
    return judged


def by_own_rules(
    judgement: Judgement, case: ConfigCase | LogCase, description: Description
) -> Judgement:
    """The judgement, turned into advice if the framework does not state the rule itself.

    The explanation says where the framework states the rule, or which other framework states it.
    """
    if judgement.verdict in NOT_BROKEN:
        return judgement
    assert judgement.diagnosis is not None
    stated, advised = description.rules.get(case.rule), judgement
    source = f"the rule is stated in {stated}"
    if stated is None:
        source = f"the rule is {case.origin}'s, and this framework states none"
        advised = replace(judgement, verdict=Verdict.ADVICE)
    words = f"{judgement.diagnosis.explanation}; {source}"
    diagnosis = judgement.diagnosis.model_copy(update={"explanation": words})
    return replace(advised, diagnosis=diagnosis)


def judge_ignored(ignored: Collection[Setting], message: str | None = None) -> Judgement:
    """The mismatch of an adapter that does not pass on settings that it declares."""
    names = ", ".join(sorted(ignored))
    words = (
        f"the adapter is at fault: it declares that a configuration may set {names}, and tokens"
        " weigh the same whatever is set"
    )
    return replace(mismatch("configuration_ignored", words), message=message)


def judge_startup(case: ConfigCase, job: Job, jobs: FurtherJobs) -> Judgement:
    """Judge whether a framework refuses a configuration that it must refuse, or trains it rightly.

    If the default configuration does not run either, the default's crash or refusal is the verdict.
    """
    description, outcome = jobs.description, jobs.run(job)
    if isinstance(outcome, Crashed):
        if outcome.verdict is Verdict.NOT_DRIVEN:
            return not_run(outcome)
        default = jobs.run(replace(job, configuration=DEFAULT_CONFIGURATION))
        return not_run(default) if isinstance(default, Crashed) else judge_crash(case, outcome)
    if isinstance(outcome, Declined):
        is_refused = outcome.verdict == "refused"
        return judge_refusal(case, outcome.message, description) if is_refused else not_run(outcome)
    trained, plain = jobs.trained(job, outcome), None
    if case.demand in COMPARED:
        compared = jobs.run(compared_with(case, job, description))
        if isinstance(compared, Declined | Crashed):
            return not_run(compared)
        plain = jobs.trained(job, compared)
    return judge_acceptance(case, trained, plain)


def judge_crash(case: ConfigCase, crash: Crashed) -> Judgement:
    """Judge a configuration that the framework accepts at startup, but that crashes the run."""
    failure = first_line(crash.message)
    words = f"{case.says} passes startup validation, and the run fails later: {failure}"
    return replace(mismatch("fails_later", words), message=crash.message, place=crash.place)


def judge_refusal(case: ConfigCase, message: str, description: Description) -> Judgement:
    """Judge a framework's error message that refuses a configuration."""
    if case.demand in COMPARED:
        refused = mismatch("refused_what_it_supports", f"{case.says}, and it is refused")
        return replace(refused, message=message)
    by_setting = (description.configurations[one] for one in case.configuration.settings)
    names = sorted({name for names in by_setting for name in names})
    if any(name in message.lower() for name in names):
        return Judgement(verdict=Verdict.REFUSED, message=message)
    words = f"{case.says} is refused by an error that names none of {', '.join(names)}"
    return replace(mismatch("refused_without_naming", words), message=message)


def judge_acceptance(case: ConfigCase, trained: Trained, plain: Trained | None) -> Judgement:
    """Judge the step that the framework trained with an accepted configuration.

    ``plain`` is the step of the default configuration, if the case demands the same weights.
    """
    if plain is not None:
        return _same(case, plain, trained)
    if case.demand is Demand.REFUSE:
        return _accepted(case, trained)
    if case.demand is Demand.ONE_DIVISOR:
        return _divided(case, trained)
    return _reduced(case, trained)


def compared_with(case: ConfigCase, job: Job, description: Description) -> Job:
    """The job with the default configuration, whose weights the case's job must have."""
    mode = description.default_mode if case.demand is Demand.DEFAULT else job.aggregation.mode
    divisor = job.aggregation.divisor if mode is Mode.CONSTANT else None
    return replace(job, aggregation=Aggregation(mode, divisor), configuration=DEFAULT_CONFIGURATION)


def _accepted(case: ConfigCase, trained: Trained) -> Judgement:
    """The mismatch of a configuration that should be refused, with a diagnosis of its weights.

    Weights are not diagnosed if the configuration changes the job's steps.
    """
    configuration, words = case.configuration, f"{case.says} is accepted"
    if configuration.batch_size is not None or configuration.fault_injection is not None:
        return mismatch("accepted", f"{words} and trained on")
    if configuration.entropy or configuration.kl:
        return mismatch("accepted", f"{words}; then {_term_words(case, trained)}")
    judged = judge_weights(trained)
    if judged.diagnosis is None:
        mode = trained.job.aggregation.mode
        return mismatch("accepted", f"{words}; then weights are those of {mode}")
    words = f"{words}; then {judged.diagnosis.explanation}"
    return replace(mismatch("accepted", words, judged.error), agreement=judged.agreement)


def _term_words(case: ConfigCase, trained: Trained) -> str:
    """Describes the observed aggregation of the term that a configuration adds to the loss.

    The term's weights are the gradient minus the policy loss's gradient.
    """
    name, coefficient = ("entropy", -ENTROPY_COEFFICIENT) if case.configuration.entropy else TERM_KL
    policy, derivatives, (observed, *_) = next(trained.steps())
    left = (observed - policy.expected) * derivatives / coefficient
    context = policy.of_term(AuxiliaryAggregation.SAMPLE_MEAN)
    active = context.expected > 0
    amplified = np.abs(derivatives / coefficient)[active] * policy.expected[active]
    tolerance = weight_bound(trained.description.dtype, terms=2) * float(
        1 + (amplified / context.expected[active]).max(initial=0.0)
    )
    measurement = Measurement(terms=[plain_term(context)], observed=left, tolerance=tolerance)
    if measurement.is_given_by(context.expected):
        return f"its {name} term is a mean over samples"
    found = diagnose(Explained(measurement))
    if found.name in ("unexplained", INACTIVE, "not_finite"):
        return f"no known aggregation of its {name} term explains the gradient"
    return f"of its {name} term, which would be a mean over samples, {found.explanation}"


def _same(case: ConfigCase, plain: Trained, configured: Trained) -> Judgement:
    """Judge whether weights equal those of the default configuration, bit for bit."""
    pair = differing_gradients(plain, configured, 0.0)
    if pair is None:
        return Judgement(verdict=Verdict.CONFORMS, error=0.0, tolerance=0.0)
    other, mine = pair
    error = largest_error(mine, np.abs(other))
    wrong = mismatch("not_the_same", f"{case.says}, and some weights differ", error)
    return replace(wrong, agreement=agreement(mine, other))


def _divided(case: ConfigCase, trained: Trained) -> Judgement:
    """Judge a divisor that the framework chooses: all active tokens of a step must share it."""
    tolerance, worst = weight_bound(trained.description.dtype), 0.0
    for context, observed in _weights_of_ranks(trained):
        of_sums = observed[context.step.mask] * context.step.size
        smallest, largest = float(of_sums.min()), float(of_sums.max())
        if not smallest > 0:
            return mismatch("tokens_missing", f"{case.says}, and some active tokens weigh 0")
        worst = max(worst, largest / smallest - 1)
        if largest / smallest - 1 > 2 * tolerance:
            divisors = f"{1 / largest:.6g} to {1 / smallest:.6g}"
            words = f"{case.says}, and tokens of one step are divided by {divisors}"
            middle = Aggregation(Mode.CONSTANT, 1 / float(of_sums.mean()))
            term = plain_term(replace(context, aggregation=middle))
            measurement = Measurement(terms=[term], observed=observed, tolerance=tolerance)
            found = diagnose(Explained(measurement))
            wrong = mismatch("several_divisors", words, largest / smallest - 1)
            if found.name != "unexplained":
                rule = found.explanation.partition(": ")[0]
                wrong = mismatch(found.name, f"{words}: {rule}", largest / smallest - 1)
            return _measured(wrong, context, observed, measurement.expected)
    return Judgement(verdict=Verdict.CONFORMS, error=worst, tolerance=2 * tolerance)


def _reduced(case: ConfigCase, trained: Trained) -> Judgement:
    """Judge whether a custom reducer's sums are divided by the step's tokens or samples."""
    tolerance, worst = weight_bound(trained.description.dtype), 0.0
    for context, observed in _weights_of_ranks(trained):
        expected = reducer_weights(context.step, trained.job.aggregation.mode)
        error = largest_error(observed, expected)
        if error is None or error > tolerance:
            wrong = _not_reduced(case, judge_weights(trained), observed, expected)
            return replace(_measured(wrong, context, observed, expected), error=error)
        worst = max(worst, error)
    return Judgement(verdict=Verdict.CONFORMS, error=worst, tolerance=tolerance)


def _weights_of_ranks(trained: Trained) -> Iterator[tuple[StepContext, NDArray[np.float64]]]:
    """Yield each step with the weights of each rank: [tokens]."""
    for context, _, of_ranks in trained.steps():
        yield from ((context, observed) for observed in of_ranks)


def _measured(
    wrong: Judgement,
    context: StepContext,
    observed: NDArray[np.float64],
    expected: NDArray[np.float64],
) -> Judgement:
    """The mismatch with its effect on the gradient, relative to the right gradient."""
    scale, cosine = direction(observed, expected)
    return replace(
        wrong,
        agreement=agreement(observed, expected),
        scale=scale,
        cosine=cosine,
        picture=picture(context, observed, expected),
    )


def _not_reduced(
    case: ConfigCase,
    mode: Judgement,
    observed: NDArray[np.float64],
    expected: NDArray[np.float64],
) -> Judgement:
    """The mismatch of a custom reducer that is ignored or whose result is rescaled.

    ``mode`` is the judgement of the weights by the mode, as if no reducer were given.
    """
    if mode.verdict is Verdict.CONFORMS:
        return mismatch("reducer_ignored", f"{case.says}, and it is not used")
    ratios = observed[expected > 0] / expected[expected > 0]
    if np.isfinite(ratios).all() and np.ptp(ratios) <= weight_bound("float32") * ratios.max():
        words = f"{case.says}, and every weight is {ratios[0]:.6g} times the reducer's"
        return mismatch("reducer_rescaled", words)
    return mismatch("reducer_ignored", f"{case.says}, and the weights are not the reducer's")


def reducer_weights(step: Step, mode: Mode) -> NDArray[np.float64]:
    """The expected weights under a custom reducer, which divides sums: [tokens]."""
    units = step.active_tokens.sum() if mode is Mode.TOKEN_MEAN else step.size
    return step.mask / (REDUCER_DIVISOR * float(units))


def judge_logs(
    case: LogCase, outcome: LogOutcome, optimized: LogOutcome, description: Description
) -> Judgement:
    """Judge by the framework's rules whether it logs only well-formed entries.

    ``optimized`` is the outcome under ``python -O``.
    """
    if outcome.kind in (Verdict.UNSUPPORTED, Verdict.CRASHED):
        return unjudged(Verdict(outcome.kind), outcome.message)
    judgement = by_own_rules(judge_log(case, outcome, optimized), case, description)
    return replace(judgement, tolerance=None, message=outcome.message or None)


def judge_log(case: LogCase, outcome: LogOutcome, optimized: LogOutcome) -> Judgement:
    """Judge whether a framework logs a well-formed case and refuses a malformed one.

    ``optimized`` is the outcome under ``python -O``.
    """
    if case.is_well_formed:
        if outcome.kind == "logged":
            return Judgement(verdict=Verdict.CONFORMS)
        return mismatch("refused_what_it_supports", f"{case.says} are refused")
    if outcome.kind == "raised" and optimized.kind == "logged":
        words = f"{case.says}: an assert alone refuses them; under python -O they are logged, as"
        return mismatch("refused_by_an_assert", f"{words} {_numbers(optimized)}")
    if outcome.kind == "raised":
        return Judgement(verdict=Verdict.REFUSED)
    return mismatch("accepted", f"{case.says}: logged all the same, as {_numbers(outcome)}")


def _numbers(outcome: LogOutcome) -> str:
    return ", ".join(f"{key} = {value:.7g}" for key, value in outcome.log.items()) or "nothing"
