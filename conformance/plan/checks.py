"""The checks: what each one has a framework train, and which numbers it reads.

A check is one line of the contract. It has an objective, which says what the ranks train, and the
cases that it takes to tell right from wrong; checks of one objective share a run.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING

from adapters.contract import Depth, Option
from adapters.contract.job import OVERFLOWS, Column, Place
from adapters.contract.objective import (
    CORRECTIONS,
    FROM_REWARDS,
    OF_CRITIC,
    OF_TEACHER,
    POLICY_LOSSES,
    WITH_REJECTION,
    Metric,
    Objective,
)
from conformance.corpus.cases import ALL_CASES, CORPUS, ORDERS, REJECTION
from conformance.corpus.rollouts import ROLLOUTS
from conformance.findings.finding import FindingId, slug
from conformance.findings.verdict import Check
from conformance.laws.law import LAWS
from conformance.laws.poison import POISONS
from reference.aggregation import Mode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from adapters.contract import Layout
    from conformance.corpus.cases import Case
    from conformance.laws.law import Law


def _cases(*names: str) -> tuple[Case, ...]:
    return tuple(case for case in (*CORPUS, *ROLLOUTS) if case.name in names)


TELLING = _cases("fully_masked_sample", "split_groups", "nine_samples", "ten_samples", "two_steps")
"""Empty samples, groups over several ranks and micro-batches, numbers of samples that are no
multiple of either, more than one step."""

ONE = _cases("fully_masked_sample")
OF_LOSSES = _cases("fully_masked_sample", "split_groups")
"""A step with a rare sample, and an ordinary one with groups larger than any number of ranks, so
that no count is another's."""

REJECTED_TOKENS = "rejected_tokens"

OF_ESTIMATORS = {
    Objective.GROUP_NORMALISED: _cases("split_groups"),
    Objective.GROUP_CENTRED: _cases("split_groups"),
    Objective.OVERLONG: _cases("fibonacci_lengths"),
    Objective.COMPLETE: _cases("split_groups"),
    Objective.WEIGHTED: _cases("split_groups"),
    Objective.MEAN_NORMALISED: _cases("split_groups"),
    Objective.LEAVE_ONE_OUT: _cases("split_groups"),
    Objective.OTHERS_NORMALISED: _cases("split_groups"),
    Objective.GROUP_WHITENED: _cases("split_groups", "two_steps"),
    Objective.REINFORCE_PP: _cases("fully_masked_sample", "short_responses", "long_prompts"),
    Objective.REINFORCE_PP_BASELINE: _cases("fully_masked_sample", "two_steps"),
    Objective.DISTILLED: _cases("split_groups"),
    Objective.GAE: _cases("short_responses", "long_prompts", "nine_samples"),
    Objective.PENALISED_GAE: _cases("long_prompts", "two_steps"),
}
"""Groups over several ranks, means over two steps, samples and slices without tokens, masks with
holes, ranks with unequal numbers of samples: each where an estimator, or a mean that is logged of
rollouts, can go wrong with it."""

IRREGULAR = {
    Objective.GROUP_NORMALISED: ROLLOUTS,
    Objective.GROUP_CENTRED: _cases(
        "missing_siblings", "lone_samples", "several_samples", "missing_rewards"
    ),
    Objective.MEAN_NORMALISED: _cases("lone_samples", "several_samples", "equal_rewards"),
    Objective.LEAVE_ONE_OUT: _cases(
        "missing_siblings", "lone_samples", "rejected_siblings", "missing_rewards"
    ),
    Objective.OTHERS_NORMALISED: ROLLOUTS,
    Objective.REINFORCE_PP_BASELINE: _cases("lone_samples"),
}
"""Irregular batches, all of them for a standard deviation of a prompt's rewards."""

LOGGED_OF_ROLLOUTS = {
    Objective.GROUP_CENTRED: (Metric.REWARD, Metric.ADVANTAGE),
    Objective.WEIGHTED: (Metric.REWARD,),
    Objective.REINFORCE_PP: (Metric.DIVERGENCE,),
    Objective.REINFORCE_PP_BASELINE: (Metric.REFERENCE_LOG_PROB,),
    Objective.GAE: (Metric.RESPONSE_LENGTH, Metric.ADVANTAGE, Metric.VALUE),
}
"""Numbers of rollouts, each with an estimator that needs it. A mean over tokens of whitened
advantages is 0, and so is one over samples of centred ones: together they show both."""

WITHOUT_PAIRS = frozenset(
    {
        Objective.ENTROPY,
        Objective.KL,
        Objective.WITH_ENTROPY,
        Objective.WITH_VALUE,
        Objective.ADAPTIVE_KL,
        Objective.REJECTION_OFF_POLICY,
        Objective.REJECTION_COMBINED,
        Objective.SFT,
        *OF_CRITIC,
        *OF_TEACHER,
        *POLICY_LOSSES,
        *CORRECTIONS,
        Objective.GROUP_NORMALISED,
        Objective.GROUP_CENTRED,
        Objective.OVERLONG,
        Objective.COMPLETE,
        Objective.WEIGHTED,
        Objective.DISTILLED,
        Objective.MEAN_NORMALISED,
        Objective.LEAVE_ONE_OUT,
        Objective.OTHERS_NORMALISED,
    }
) - {
    Objective.VALUE,
    Objective.GSPO,
    Objective.GEO_MEAN,
    Objective.SEQUENCE_MASKED,
    Objective.TIS_SEQUENCE,
}
"""Objectives whose combinations of properties another objective already covers: `COMBINED` covers
its own terms and losses that are reduced like them, PPO's loss covers those in which a rank needs
nothing else from other tokens, and `VALUE`, which a trainer of its own computes, all of a critic.
Corrections of sequences are made where `SEQUENCE_MASKED` is, and tokens are compared in one place,
whatever the case has."""

SHARDED = _cases(
    "split_groups",
    "odd_groups",
    "unequal_shards",
    "unequal_groups",
    "fibonacci_lengths",
    "two_prompts",
    "one_prompt",
    "interleaved_groups",
    "dropped_rollouts",
    "two_steps",
)
"""Groups of every size and number, next to each other and not, on shards of unequal length."""


@dataclass(frozen=True, kw_only=True)
class CheckSpec:
    """One property that is looked at: weights, or a number that is logged."""

    check: Check
    name: str = ""
    objective: Objective = Objective.POLICY
    metric: Metric | None = None
    """The logged number that is compared; None if weights are compared."""

    cases: tuple[Case, ...] = CORPUS
    modes: tuple[Mode, ...] = tuple(Mode)
    is_logged: bool = False
    """Whether all logged numbers are compared where a column is poisoned, and not weights."""

    attached: Column | None = None
    """The column that must have no gradient."""

    law: Law | None = None
    """The change that must not matter."""

    is_of_defaults: bool = False
    """Whether options that its objective sets elsewhere have their defaults."""

    def takes(self, case: Case) -> bool:
        """Whether a case tells something here; of one that is not of the corpus, its masks say."""
        if case in ALL_CASES:
            return case in self.cases
        rejected = any(step.original_mask is not None for step in case.steps)
        return rejected == (self.objective in WITH_REJECTION)

    @property
    def is_looked_at_once(self) -> bool:
        """Whether it is looked at on one layout or two, and not wherever its objective is."""
        return self.attached is not None or self.law is not None or self.is_of_defaults

    @property
    def is_of_gradient(self) -> bool:
        """Whether it is of the gradient that its objective's job gives."""
        is_plain = self.metric is None and not self.is_looked_at_once
        return is_plain and self.check is not Check.SHARDING

    @property
    def is_of_advantages(self) -> bool:
        """Whether it is of advantages that the framework computes, looked at in one mode alone."""
        return self.objective in FROM_REWARDS

    @property
    def is_seen_in_every_mode(self) -> bool:
        """Whether modes may differ in what it looks at: in how they leave out masked tokens."""
        poison = self.law.poison if self.law else None
        is_elsewhere = poison is not None and poison.place is not Place.MASKED
        return not (self.is_of_advantages or is_elsewhere)

    def is_seen_on(self, layout: Layout) -> bool:
        """Whether a layout can tell right from wrong here.

        Auxiliary losses go wrong where micro-batches are averaged: on layouts
        that have one, only the policy loss is looked at. Where whole models are to be kept equal,
        what can go wrong is the same for every loss.
        """
        if self.objective is Objective.POLICY:
            return True
        if self.objective is Objective.ROUTER:
            return layout.tp == 1
        return layout.micro_batches != 1 and Option.NOT_SHARDED not in layout.options

    @property
    def slug(self) -> str:
        """The beginning of the ids of its findings."""
        return slug(self.check, self.name)

    def finding_id(self, mode: Mode, case: str, layout: Layout) -> str:
        """The id of its finding on one mode, case and layout."""
        return str(FindingId(self.check, self.name or None, mode, case, layout))

    def is_seen_at(self, depth: Depth) -> bool:
        """Whether a depth goes far enough.

        Below the whole step nothing is logged. A loss function is given other losses than the
        plain one and their terms, a reducer is not.
        """
        if depth is Depth.STEP:
            return True
        if self.objective is Objective.ROUTER:
            return False
        if depth is Depth.LOSS and self.check in (Check.OFF_POLICY, Check.AUXILIARY):
            return self.metric is None
        return self.objective is Objective.POLICY and self.check is Check.WEIGHTS


def _metric(metric: Metric, objective: Objective, cases: tuple[Case, ...] = TELLING) -> CheckSpec:
    return CheckSpec(
        check=Check.METRIC, name=metric, objective=objective, metric=metric, cases=cases
    )


OF_KEPT = (
    (
        "off_policy",
        Objective.REJECTION_OFF_POLICY,
        (Metric.POLICY_LOSS, Metric.CLIP_FRACTION, Metric.POLICY_KL, Metric.RATIO),
    ),
    ("combined", Objective.REJECTION_COMBINED, (Metric.ENTROPY, Metric.KL)),
)
"""Gradients and logged numbers with rejection sampling, of one of its two masks."""


def _rejection(name: str, metric: Metric | None, objective: Objective) -> CheckSpec:
    """A check with rejection sampling.

    Rows that fill up a batch are looked at in each term alone: in a sum of three, two of them over
    other masks, no mistake could be told from another.
    """
    is_sum = metric is None and objective is Objective.REJECTION_COMBINED
    left_out = {"rejected_of_ten"} if is_sum else set()
    if objective is not Objective.REJECTION or metric is not None:
        left_out.add("rejected_samples")
    cases = tuple(case for case in REJECTION if case.name not in left_out)
    return CheckSpec(
        check=Check.REJECTION, name=name, objective=objective, metric=metric, cases=cases
    )


def _of_estimator(objective: Objective) -> Iterator[CheckSpec]:
    """Yield what is looked at where a framework computes advantages: these, and what it logs."""
    plain = CheckSpec(
        check=Check.ADVANTAGES,
        name=objective,
        objective=objective,
        cases=OF_ESTIMATORS[objective],
        modes=(Mode.SAMPLE_MEAN,),
    )
    yield replace(plain, cases=(*plain.cases, *IRREGULAR.get(objective, ())))
    for metric in LOGGED_OF_ROLLOUTS.get(objective, ()):
        is_of_several = metric is Metric.ADVANTAGE or objective is Objective.WEIGHTED
        name = f"{objective}_{metric}" if is_of_several else metric
        yield replace(plain, check=Check.ROLLOUTS, name=name, metric=metric)
    if objective is Objective.GROUP_NORMALISED:
        rejecting = replace(plain, check=Check.REJECTION, cases=_cases("rejected_siblings"))
        for metric in (Metric.REWARD, Metric.RESPONSE_LENGTH):
            yield replace(rejecting, name=metric, metric=metric)


CHECK_SPECS = (
    CheckSpec(check=Check.WEIGHTS),
    CheckSpec(check=Check.METRIC, metric=Metric.POLICY_LOSS),
    CheckSpec(check=Check.SHARDING, cases=(*SHARDED, *ORDERS), modes=(Mode.PROMPT_MEAN,)),
    CheckSpec(check=Check.OFF_POLICY, objective=Objective.OFF_POLICY, cases=TELLING),
    _metric(Metric.CLIP_FRACTION, Objective.OFF_POLICY),
    _metric(Metric.POLICY_KL, Objective.OFF_POLICY),
    _metric(Metric.RATIO, Objective.OFF_POLICY),
    _rejection("", None, Objective.REJECTION),
    _rejection("metric", Metric.REJECTED, Objective.REJECTION),
    *(
        _rejection(metric or name, metric, objective)
        for name, objective, metrics in OF_KEPT
        for metric in (None, *metrics)
    ),
    *(
        CheckSpec(check=Check.AUXILIARY, name=objective, objective=objective, cases=TELLING)
        for objective in (Objective.ENTROPY, Objective.KL, Objective.COMBINED)
    ),
    _metric(Metric.LOSS, Objective.COMBINED),
    _metric(Metric.ENTROPY, Objective.COMBINED),
    _metric(Metric.KL, Objective.COMBINED),
    CheckSpec(
        check=Check.METRIC,
        name="policy_loss_with_entropy",
        objective=Objective.WITH_ENTROPY,
        metric=Metric.POLICY_LOSS,
        cases=(*OF_LOSSES, *_cases("two_steps")),
    ),
    CheckSpec(
        check=Check.METRIC,
        name=Metric.KL_COEFFICIENT,
        objective=Objective.ADAPTIVE_KL,
        metric=Metric.KL_COEFFICIENT,
        cases=(*OF_LOSSES, *_cases("uneven_lengths", "nine_samples")),
        modes=(Mode.TOKEN_MEAN,),
    ),
    CheckSpec(
        check=Check.AUXILIARY,
        name=Objective.WITH_VALUE,
        objective=Objective.WITH_VALUE,
        cases=(*ONE, *_cases("unequal_shards")),
    ),
    CheckSpec(
        check=Check.AUXILIARY,
        name=Objective.ROUTER,
        objective=Objective.ROUTER,
        cases=_cases("uneven_lengths"),
        modes=(Mode.SAMPLE_MEAN, Mode.TOKEN_MEAN),
    ),
    *(
        CheckSpec(check=Check.OFF_POLICY, name=objective, objective=objective, cases=OF_LOSSES)
        for objective in (*POLICY_LOSSES, *CORRECTIONS)
    ),
    *chain.from_iterable(map(_of_estimator, OF_ESTIMATORS)),
    *(
        CheckSpec(check=Check.OTHER_LOSSES, name=objective, objective=objective, cases=OF_LOSSES)
        for objective in (*OF_TEACHER, Objective.SFT, Objective.VALUE_CLIPPED, Objective.VALUE)
    ),
    _metric(Metric.VALUE_LOSS, Objective.VALUE, (*OF_LOSSES, *_cases("nine_samples"))),
)
"""All of them, those of one objective next to each other."""


def _poison_specs(law: Law) -> Iterator[CheckSpec]:
    """Yield the checks of a poisoned column: of gradients, and of logged numbers.

    Ratios that overflow where tokens are kept may be logged as they are.
    """
    assert law.poison is not None
    [objective] = law.objectives
    cases = _cases("uneven_lengths") if objective in FROM_REWARDS else ONE
    if objective in WITH_REJECTION:
        cases = (usual_case(objective),)
    plain = CheckSpec(check=Check.POISON, name=law.name, objective=objective, cases=cases, law=law)
    yield plain
    if law.poison.values != OVERFLOWS:
        yield replace(plain, name=f"logged_{law.name}", is_logged=True)


ATTACHED = tuple(
    CheckSpec(
        check=Check.NO_GRADIENT,
        name=name,
        objective=objective,
        cases=_cases("uneven_lengths"),
        attached=column,
    )
    for name, objective, column in (
        ("old_log_probs", Objective.OFF_POLICY, Column.OLD_LOG_PROBS),
        ("advantages", Objective.OFF_POLICY, Column.ADVANTAGES),
        ("rollout_log_probs", Objective.TIS_TOKEN, Column.ROLLOUT_LOG_PROBS),
        ("reference_log_probs", Objective.KL, Column.REFERENCE_LOG_PROBS),
        ("reference_log_probs_in_rewards", Objective.REINFORCE_PP, Column.REFERENCE_LOG_PROBS),
        ("values", Objective.GAE, Column.VALUES),
        ("teacher_log_probs", Objective.GROUP_CENTRED, Column.TEACHER_LOG_PROBS),
    )
)
"""Each column that a model computes where a loss or an estimator reads it."""


def usual_case(objective: Objective) -> Case:
    """A batch that every framework can train on."""
    name = REJECTED_TOKENS if objective in WITH_REJECTION else "split_groups"
    return next(case for case in ALL_CASES if case.name == name)


POISONED = tuple(chain.from_iterable(map(_poison_specs, POISONS)))
"""Each poison, in gradients and in logged numbers: on one layout, and on one with context
parallelism."""


LAWFUL = tuple(
    CheckSpec(
        check=Check.LAWS,
        name=f"{law.name}_{objective}",
        objective=objective,
        cases=(usual_case(objective),),
        law=law,
    )
    for objective in dict.fromkeys(chain(*(law.objectives for law in LAWS.values())))
    for law in LAWS.values()
    if objective in law.objectives
)
"""Each law with every kind of numbers that it is about; those of one objective share steps."""


DEFAULTED = tuple(
    CheckSpec(
        check=Check.DEFAULTS,
        name=objective,
        objective=objective,
        cases=(usual_case(objective),),
        is_of_defaults=True,
    )
    for objective in Objective
)
"""Each objective, for records of frameworks that document defaults of its options."""


ALL_SPECS = (*CHECK_SPECS, *POISONED, *ATTACHED, *LAWFUL, *DEFAULTED)


def check_spec(slug: str) -> CheckSpec:
    """The one whose findings have ids that begin so."""
    return next(one for one in ALL_SPECS if one.slug == slug)
