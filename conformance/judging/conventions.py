"""Judges by a framework's conventions, both documented and assumed ones.

A better answer than the declared one is never a mismatch: a number that is pooled over a step
conforms wherever a mean of micro-batch means is declared. Where a framework documents nothing, a
mean of means is advice. So is every assumed convention that a step confirms, if frameworks and
versions differ on it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import combinations, product
from typing import TYPE_CHECKING, Any

import numpy as np

from adapters.contract import Assumed, Documented
from adapters.contract.batch.probed_batch import ProbedBatch
from adapters.contract.objective import (
    OF_GROUPS,
    OF_ROLLOUTS,
    OF_VALUES,
    SELECTING,
    Metric,
    Objective,
)
from conformance.expected import loss_terms
from conformance.expected.estimators import ESTIMATORS, estimator_conventions, rollouts_of
from conformance.explain.catalogue import groups
from conformance.explain.catalogue.advantages import OTHER_SET
from conformance.explain.catalogue.mistake import ASSUMED, MISTAKES, Kind, doubt
from conformance.findings.cause import UNEXPLAINED
from conformance.findings.finding import Diagnosis
from conformance.findings.verdict import Verdict
from conformance.judging.weights import Judgement, advice
from reference.aggregation import (
    AuxiliaryAggregation,
    ComparedTokens,
    DenominatorMask,
    EmptyUnits,
    MicroBatchWeight,
    Mode,
    SampleUnit,
)
from reference.weights import token_weights

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from enum import StrEnum

    from numpy.typing import NDArray

    from adapters.contract import Description
    from adapters.contract.description import Convention
    from conformance.judging.advice import Judge
    from conformance.judging.weights import Trained
    from conformance.plan.checks import CheckSpec
    from reference.aggregation import TokenSet

    Declared = Mapping[str, Convention]

MEAN_OF_MEANS = "mean_of_means"

OF_THE_STEP = {
    AuxiliaryAggregation.MICRO_BATCH_TOKEN_MEAN: AuxiliaryAggregation.TOKEN_MEAN,
    AuxiliaryAggregation.MICRO_BATCH_SAMPLE_MEAN: AuxiliaryAggregation.SAMPLE_MEAN,
}
"""The aggregation of the whole step that each mean of micro-batch means approximates."""

TOKENS = ("penalised", "transitions", "rewarded")
"""The sets of tokens that discounted returns and GAE depend on, in `EstimatorConventions`."""

OF_TRANSITIONS = (Objective.REINFORCE_PP, *OF_VALUES)

LOSSES = (Metric.POLICY_LOSS, Metric.LOSS)
"""Metrics that are reduced as the mode says, since they are the loss that is trained."""

ANSWERS: dict[str, tuple[StrEnum, ...]] = {
    "sample_unit": (*SampleUnit,),
    "empty_units": (*EmptyUnits,),
    "denominator_mask": (*DenominatorMask,),
    "selected": (*ComparedTokens,),
    "micro_batch_weight": (*MicroBatchWeight,),
    **{name: (*answers,) for name, answers in groups.ANSWERS.items()},
}
"""The conventions that weights and advantages depend on, each with all possible answers."""

TERMS = {
    Objective.ENTROPY: ("entropy",),
    Objective.KL: ("kl",),
    Objective.COMBINED: ("entropy", "kl"),
    Objective.REJECTION_COMBINED: ("entropy", "kl"),
}
"""The conventions by which the terms of an objective are aggregated."""

WEIGHTS_OF_MEANS = [f"weights_of_{mode}" for mode in (Mode.SAMPLE_MEAN, Mode.PROMPT_MEAN)]
"""The mistakes in which the loss averages the means of samples or of prompts."""

OF_LOGGED_ROLLOUTS = {Metric.ADVANTAGE: "logged_advantages", Metric.VALUE: "logged_values"}


def judge_by_conventions(judge: Judge, spec: CheckSpec, trained: Trained) -> Judgement:
    """Judge by the declared conventions, and by other conventions that may be right as well.

    Where no document says over which mask a term is averaged, both masks are accepted; a mask that
    known versions do not use is advice. A mismatch that is unexplained under the assumed tokens of
    an estimator may be a known mistake under other tokens.
    """
    declared = _Judged(judge, spec, trained)
    judgement = declared.judgement()
    found = [judgement]
    for masks in declared.other_masks():
        if judgement.verdict is not Verdict.MISMATCH:
            break
        other = declared.declaring(masks).judgement()
        if other.verdict is not Verdict.MISMATCH:
            advised = _mask_judgement(other, masks, trained.description)
            return replace(advised, expected=judgement.expected)
        found.append(other)
    if judgement.verdict is Verdict.MISMATCH and judgement.names == [UNEXPLAINED]:
        others = declared.tokens_of_estimators()
        found += [declared.declaring(tokens).judgement() for _, tokens in others]
    likeliest = min(found, key=_doubt)
    return judgement if likeliest is judgement else replace(likeliest, expected=judgement.expected)


def _mask_judgement(other: Judgement, masks: Declared, description: Description) -> Judgement:
    """The judgement under other masks; advice if it conforms and the adapter declares a mask."""
    changed = next((masks[name] for name in masks if name in description.declared), None)
    if changed is None or other.verdict is not Verdict.CONFORMS:
        return other
    return replace(
        other, verdict=Verdict.ADVICE, diagnosis=_answer_diagnosis("term_mask", changed.value)
    )


def _doubt(judgement: Judgement) -> tuple[int, float]:
    """A sort key: the least doubtful diagnosis first, then the one with the fewest mistakes."""
    name = UNEXPLAINED if judgement.diagnosis is None else judgement.diagnosis.name
    explanations = [] if judgement.clues is None else judgement.clues.explanations
    return doubt(name), min(map(len, explanations), default=math.inf)


def _answers_of_mask(name: str, description: Description) -> list[Declared]:
    """The possible masks of a term, the declared mask first; no other mask if it is documented."""
    declared = description.declared.get(name, Assumed(DenominatorMask.MODIFIED))
    if isinstance(declared, Documented):
        return [{}]
    masks = (declared.value, *(one for one in DenominatorMask if one is not declared.value))
    return [{name: Assumed(mask)} for mask in masks]


@dataclass(frozen=True)
class _Judged:
    """The observations of a check's job, with the judge of the check."""

    judge: Judge
    spec: CheckSpec
    trained: Trained

    @property
    def description(self) -> Description:
        """The description with the declared conventions."""
        return self.trained.description

    def declaring(self, declared: Declared) -> _Judged:
        """A copy with the same observations, in which other conventions are declared."""
        return replace(self, trained=self.trained.declaring(declared))

    def judged_by(self, declared: Declared) -> Judgement:
        """The judgement if other conventions are declared."""
        return self.judge(self.trained.declaring(declared))

    def verdict_by(self, declared: Declared) -> Verdict:
        """The verdict if other conventions are declared, without an explanation."""
        return self.judge(replace(self.trained.declaring(declared), explains=False)).verdict

    def judgement(self) -> Judgement:
        """The judgement by the declared conventions, or by others that may also be right."""
        judgement = self.judge(self.trained)
        if judgement.verdict is Verdict.CONFORMS:
            if not self.trained.explains:
                return judgement
            shown = self._shown_means() or self._shown_convention() or self._shown_selection()
            found = shown and replace(judgement, verdict=Verdict.ADVICE, diagnosis=shown)
            return found or judgement
        if judgement.verdict is Verdict.MISMATCH:
            return (
                _deliberate(judgement, self.description)
                or self._pooled(judgement)
                or self._other_answer(judgement)
                or judgement
            )
        return judgement

    def other_masks(self) -> Iterator[Declared]:
        """Yield the choices of undocumented masks of terms, except the declared choice."""
        spec = self.spec
        if spec.objective not in (Objective.REJECTION_OFF_POLICY, Objective.REJECTION_COMBINED):
            return
        terms = loss_terms.coefficients(spec.metric or Metric.LOSS, spec.objective)
        names = filter(None, {loss_terms.convention_of_mask(term) for term in terms})
        of_terms = [_answers_of_mask(name, self.description) for name in sorted(names)]
        for masks in [*product(*of_terms)][1:]:
            yield {name: answer for one in masks for name, answer in one.items()}

    def tokens_of_estimators(self) -> Iterator[tuple[dict[str, TokenSet], Declared]]:
        """Yield alternatives to an estimator's assumed token sets, the fewest changes first.

        Each comes with the convention that declares it.
        """
        name = "of_values" if self.spec.objective in OF_VALUES else "of_returns"
        convention = self.description.declared.get(name)
        if self.spec.objective not in OF_TRANSITIONS or not isinstance(convention, Assumed):
            return
        for size in range(1, len(TOKENS) + 1):
            for chosen in combinations(TOKENS, size):
                others = {one: OTHER_SET[getattr(convention.value, one)] for one in chosen}
                yield others, {name: Assumed(replace(convention.value, **others))}

    def _pooled(self, judgement: Judgement) -> Judgement | None:
        """The judgement of a pooled number where a mean of micro-batch means is declared.

        None if the number is not pooled.
        """
        for pooled in self._pooling():
            if self.verdict_by(pooled) is Verdict.CONFORMS:
                other = self.judged_by(pooled)
                return replace(other, expected=(*judgement.expected, *other.expected))
        return None

    def _pooling(self) -> Iterator[Declared]:
        """Yield the check's conventions with one or several of its means of means pooled."""
        cut = {
            name: convention
            for name in self._conventions()
            if (convention := self.description.declared.get(name))
            and convention.value in OF_THE_STEP
        }
        for size in range(1, len(cut) + 1):
            for names in combinations(cut, size):
                yield {
                    name: replace(cut[name], value=OF_THE_STEP[cut[name].value]) for name in names
                }

    def _conventions(self) -> Iterable[str]:
        """The conventions by which the terms of the check are aggregated."""
        if self.spec.metric is None or self.spec.metric is Metric.LOSS:
            return TERMS.get(self.spec.objective, ())
        return filter(None, [self._convention_of_log])

    @property
    def _convention_of_log(self) -> str | None:
        """The convention that aggregates the check's metric; None if the mode aggregates it."""
        metric = self.spec.metric
        assert metric is not None
        if metric in OF_ROLLOUTS:
            return OF_LOGGED_ROLLOUTS.get(metric)
        return loss_terms.convention_of_log(metric, self.description.conventions)

    @property
    def _is_undocumented_log(self) -> bool:
        """Whether the check looks at a number whose mean the framework does not document."""
        if self.spec.metric is None or self.spec.metric in LOSSES:
            return False
        convention = self.description.declared.get(self._convention_of_log or "")
        return not isinstance(convention, Documented)

    def _other_answer(self, judgement: Judgement) -> Judgement | None:
        """Advice that another answer than the assumed one holds, if all numbers conform to it.

        An undocumented mean of means is advice only if the adapter declares no mean of means. A
        number that differs from a declared mean of means is wrong, for example as padding is
        averaged in.
        """
        is_open = self._is_undocumented_log and not any(self._pooling())
        if is_open and _averages_means(judgement):
            return advice(_mean_diagnosis(judgement), judgement.expected)
        answers = (
            said for said, other in self._others() if self.verdict_by(other) is Verdict.CONFORMS
        )
        found = next(answers, None)
        return None if found is None else advice(found, judgement.expected)

    def _others(self) -> Iterator[tuple[Diagnosis, Declared]]:
        """Yield the alternatives to assumed answers, then to the assumed tokens of an estimator."""
        for name, other in _other_answers(self.description):
            yield _answer_diagnosis(name, other.value), {name: other}
        for tokens, declared in self.tokens_of_estimators():
            yield _token_set_diagnosis(tokens), declared

    def _shown_means(self) -> Diagnosis | None:
        """The diagnosis of an assumed mean of means, if a pooled number would differ from it."""
        pooling = self._pooling() if self._is_undocumented_log else ()
        wrong = (one for one in pooling if self.verdict_by(one) is Verdict.MISMATCH)
        return next((_mean_diagnosis(self.judged_by(one)) for one in wrong), None)

    def _shown_convention(self) -> Diagnosis | None:
        """The diagnosis of an assumed answer that the step confirms: another answer would not fit.

        The results that are compared are the weights of a plain policy loss, or the advantages of
        an estimator.
        """
        objective, declared = self.spec.objective, self.description.declared
        is_plain = objective in (Objective.POLICY, Objective.REJECTION)
        if self.spec.metric is not None or not (is_plain or objective in OF_GROUPS):
            return None
        right = None if is_plain else _estimated(self.trained)
        for name, other in _other_answers(self.description):
            changed = self.trained.declaring({name: other})
            if right is not None:
                if not np.allclose(_estimated(changed), right):
                    return _answer_diagnosis(name, declared[name].value)
            elif (ratios := _ratios(self.trained, changed)) is not None:
                return _answer_diagnosis(name, declared[name].value, ratios)
        return None

    def _shown_selection(self) -> Diagnosis | None:
        """The diagnosis of a selection of tokens in micro-batches, if the step confirms it."""
        convention = self.description.declared.get("selected")
        if self.spec.objective not in SELECTING or not isinstance(convention, Assumed):
            return None
        if self.verdict_by({"selected": Assumed(ComparedTokens.STEP)}) is Verdict.CONFORMS:
            return None
        return _answer_diagnosis("selected", convention.value)


def _deliberate(judgement: Judgement, description: Description) -> Judgement | None:
    """Advice on a mistake made on purpose; None if no such mistake explains the mismatch."""
    diagnosis = judgement.diagnosis
    for name in judgement.names:
        convention = description.deliberate.get(name)
        if diagnosis is not None and convention is not None:
            source = "documented nowhere"
            if isinstance(convention, Documented):
                source = f"documented in {convention.where}"
            words = f"{diagnosis.explanation}; on purpose, as {convention.value}, which is {source}"
            found = diagnosis.model_copy(update={"name": name, "explanation": words, "also": []})
            return advice(found, judgement.expected)
    return None


def _averages_means(judgement: Judgement) -> bool:
    """Whether a diagnosis says that means of a step's parts, samples or prompts are averaged.

    If a likelier mistake gives the same number, that mistake is the diagnosis instead.
    """
    name = judgement.diagnosis.name if judgement.diagnosis else ""
    is_of_parts = name in MISTAKES and MISTAKES[name].kind is Kind.PARTS
    return is_of_parts or name in WEIGHTS_OF_MEANS


def _mean_diagnosis(pooled: Judgement) -> Diagnosis:
    """The diagnosis of a mean of means, given its judgement against the pooled number."""
    logged = pooled.logged
    assert logged is not None
    assert logged.reported is not None
    return Diagnosis(
        name=MEAN_OF_MEANS,
        explanation=f"{logged.reported:.7g} is logged, and pooled over the step it is"
        f" {logged.expected:.7g}: {MISTAKES[MEAN_OF_MEANS].says}",
        numbers={"reported": logged.reported, "pooled": logged.expected},
    )


def _token_set_diagnosis(others: dict[str, TokenSet]) -> Diagnosis:
    names = [f"{name}_{tokens}" for name, tokens in others.items()]
    said = [MISTAKES[name].says.removesuffix(f", {ASSUMED}") for name in names]
    return Diagnosis(name=names[0], explanation=f"{'; '.join(said)}, {ASSUMED}")


def _other_answers(description: Description) -> Iterator[tuple[str, Convention]]:
    """Yield the name of each assumed convention in `ANSWERS`, with each of its other answers."""
    for name, answers in ANSWERS.items():
        convention = description.declared.get(name)
        if isinstance(convention, Assumed):
            yield from (
                (name, Assumed(answer)) for answer in answers if answer is not convention.value
            )


def _estimated(trained: Trained) -> NDArray[np.float64]:
    """The advantages of a batch's active tokens under the declared conventions."""
    job, conventions = trained.job, trained.description.conventions
    rollouts = rollouts_of(ProbedBatch.of(job, conventions))
    of_estimator = estimator_conventions(job.objective, conventions)
    return ESTIMATORS[job.objective](rollouts, of_estimator)[rollouts.mask]


def _ratios(trained: Trained, changed: Trained) -> tuple[float, float] | None:
    """The range of the ratios of weights under two answers; None if all ratios are 1."""
    declared, others = (
        np.concatenate(
            [
                token_weights(step, one.job.aggregation, one.description.conventions)
                for step in one.job.steps
            ]
        )
        for one in (trained, changed)
    )
    if np.array_equal(declared, others):
        return None
    ratios = declared[others > 0] / others[others > 0]
    return float(ratios.min()), float(ratios.max())


def _answer_diagnosis(
    name: str, answer: Any, ratios: tuple[float, float] | None = None
) -> Diagnosis:
    if name in groups.ANSWERS:
        found = groups.ANSWERS[name][answer]
        return Diagnosis(name=found, explanation=f"{MISTAKES[found].says}, {ASSUMED}")
    found = f"{name}_{answer}"
    if ratios is None:
        return Diagnosis(name=found, explanation=MISTAKES[found].says)
    low, high = ratios
    span = f"{low:.4g}" if low == high else f"{low:.4g} to {high:.4g}"
    return Diagnosis(
        name=found,
        explanation=f"{MISTAKES[found].says}; a token weighs {span} times what it would otherwise",
        numbers={"lowest_ratio": low, "highest_ratio": high},
    )
