"""The checks: for each, the objective that a framework trains, and the numbers that are compared.

A check is one line of the contract. It has an objective, which says what the ranks train, and the
cases that distinguish right from wrong results; checks with the same objective share jobs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING

from adapters.contract import Depth, Option
from adapters.contract.job import OVERFLOWS, Place
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
from conformance.laws.altered import CONSTANTS, POISONS
from conformance.laws.law import DEFAULTS, LAWS
from reference.aggregation import Mode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from adapters.contract import Layout
    from conformance.corpus.cases import Case
    from conformance.laws.law import Law


def _cases(*names: str) -> tuple[Case, ...]:
    return tuple(case for case in (*CORPUS, *ROLLOUTS) if case.name in names)


TELLING = _cases("fully_masked_sample", "split_groups", "nine_samples", "ten_samples", "two_steps")
"""Cases with empty samples, with groups over several ranks and micro-batches, with numbers of
samples that neither ranks nor micro-batches divide, and with more than one step."""

ONE = _cases("fully_masked_sample")
OF_LOSSES = _cases("fully_masked_sample", "split_groups")
"""Cases with an empty sample, and with groups larger than any number of ranks, so that no two
counts are equal."""

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
"""The cases for each estimator: those in which the estimator, or a logged mean over rollouts, can
go wrong. They have groups over several ranks, two steps, samples and slices without tokens, masks
with holes, or ranks with unequal numbers of samples."""

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
"""Irregular batches for some estimators; estimators that divide by a standard deviation of rewards
have all irregular batches."""

LOGGED_OF_ROLLOUTS = {
    Objective.GROUP_CENTRED: (Metric.REWARD, Metric.ADVANTAGE),
    Objective.WEIGHTED: (Metric.REWARD,),
    Objective.REINFORCE_PP: (Metric.DIVERGENCE,),
    Objective.REINFORCE_PP_BASELINE: (Metric.REFERENCE_LOG_PROB,),
    Objective.GAE: (Metric.RESPONSE_LENGTH, Metric.ADVANTAGE, Metric.VALUE),
}
"""Logged numbers of rollouts that are checked in the batches of each estimator. The token mean of
whitened advantages is 0, and so is the sample mean of centred advantages. Both estimators are
therefore needed to show errors in the mean advantage."""

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
"""Objectives whose pairs of properties another objective covers: `COMBINED` covers its own terms
and losses that are reduced like them, PPO's loss covers losses in which each token depends only on
itself, and `VALUE` covers all losses of a critic. Corrections of sequences share the code of
`SEQUENCE_MASKED`, and losses that compare tokens compare them in one function, for every case."""

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
"""Cases with groups of every size and number, adjacent or not, and shards of unequal length."""


@dataclass(frozen=True, kw_only=True)
class CheckSpec:
    """One checked property: weights, or a logged number."""

    check: Check
    name: str = ""
    objective: Objective = Objective.POLICY
    metric: Metric | None = None
    """The logged number that is compared; None if weights are compared."""

    cases: tuple[Case, ...] = CORPUS
    modes: tuple[Mode, ...] = tuple(Mode)
    is_logged: bool = False
    """Whether a check with a poisoned column compares all logged numbers instead of weights."""

    law: Law | None = None
    """The change that must not matter."""

    def takes(self, case: Case) -> bool:
        """Whether the check uses a case; for a case outside the corpus, its masks decide."""
        if case in ALL_CASES:
            return case in self.cases
        rejected = any(step.original_mask is not None for step in case.steps)
        return rejected == (self.objective in WITH_REJECTION)

    @property
    def is_of_gradient(self) -> bool:
        """Whether the check compares the gradient of an unchanged job of its objective."""
        return self.metric is None and self.law is None and self.check is not Check.SHARDING

    @property
    def is_of_advantages(self) -> bool:
        """Whether the framework computes the advantages; such checks run in one mode only."""
        return self.objective in FROM_REWARDS

    @property
    def is_seen_in_every_mode(self) -> bool:
        """Whether the result may depend on how a mode leaves out masked tokens."""
        poison = self.law.poison if self.law else None
        is_elsewhere = poison is not None and poison.place is not Place.MASKED
        return not (self.is_of_advantages or is_elsewhere)

    def is_seen_on(self, layout: Layout) -> bool:
        """Whether a layout can distinguish right from wrong results of the check.

        Auxiliary losses go wrong where micro-batches are averaged, so on layouts with one
        micro-batch only the policy loss is checked. On layouts with whole models on each rank,
        every loss shows the same mistakes.
        """
        if self.objective is Objective.POLICY:
            return True
        if self.objective is Objective.ROUTER:
            return layout.tp == 1
        return layout.micro_batches != 1 and Option.NOT_SHARDED not in layout.options

    @property
    def slug(self) -> str:
        """The first part of the ids of the check's findings."""
        return slug(self.check, self.name)

    def finding_id(self, mode: Mode, case: str, layout: Layout) -> str:
        """The id of the check's finding for one mode, case and layout."""
        return str(FindingId(self.check, self.name or None, mode, case, layout))

    def is_seen_at(self, depth: Depth) -> bool:
        """Whether the check can run at a depth.

        Only the whole step logs numbers. A loss function computes off-policy losses and auxiliary
        terms; a reducer has only the plain loss.
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
"""Objectives and metrics that are compared after rejection sampling."""


def _rejection(name: str, metric: Metric | None, objective: Objective) -> CheckSpec:
    """A check with rejection sampling.

    Rows that pad a batch are checked in each term separately: in a sum of three terms, two of them
    over other masks, mistakes could not be distinguished.
    """
    is_sum = metric is None and objective is Objective.REJECTION_COMBINED
    left_out = {"rejected_of_ten"} if is_sum else set()
    if objective is not Objective.REJECTION or metric is not None:
        left_out.add("rejected_samples")
    cases = tuple(case for case in REJECTION if case.name not in left_out)
    return CheckSpec(
        check=Check.REJECTION, name=name, objective=objective, metric=metric, cases=cases
    )


def _estimator_checks(objective: Objective) -> Iterator[CheckSpec]:
    """Yield the checks of an estimator: of its advantages, and of logged numbers of rollouts."""
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
    *chain.from_iterable(map(_estimator_checks, OF_ESTIMATORS)),
    *(
        CheckSpec(check=Check.OTHER_LOSSES, name=objective, objective=objective, cases=OF_LOSSES)
        for objective in (*OF_TEACHER, Objective.SFT, Objective.VALUE_CLIPPED, Objective.VALUE)
    ),
    _metric(Metric.VALUE_LOSS, Objective.VALUE, (*OF_LOSSES, *_cases("nine_samples"))),
)
"""All checks of the matrix, those with the same objective adjacent."""


def usual_case(objective: Objective) -> Case:
    """A batch that every framework can train on."""
    name = REJECTED_TOKENS if objective in WITH_REJECTION else "split_groups"
    return next(case for case in ALL_CASES if case.name == name)


def _specs_of_column(law: Law) -> Iterator[CheckSpec]:
    """Yield the checks of an altered column: of gradients, and of logged numbers if poisoned.

    Ratios that overflow at kept tokens may be logged as they are, so their logs are not checked.
    """
    [objective] = law.objectives
    cases = _cases("uneven_lengths") if law.attached or objective in FROM_REWARDS else ONE
    if objective in WITH_REJECTION:
        cases = (usual_case(objective),)
    check = Check.NO_GRADIENT if law.attached else Check.POISON
    plain = CheckSpec(check=check, name=law.name, objective=objective, cases=cases, law=law)
    yield plain
    if law.poison and law.poison.values != OVERFLOWS:
        yield replace(plain, name=f"logged_{law.name}", is_logged=True)


ALTERED = tuple(chain.from_iterable(map(_specs_of_column, (*POISONS, *CONSTANTS))))
"""Checks of each altered column: poison in gradients and in logged numbers, and gradients of
constants. They run on one layout; a full plan adds a layout with context parallelism."""


def _usual(check: Check, name: str, objective: Objective, law: Law) -> CheckSpec:
    return CheckSpec(
        check=check, name=name, objective=objective, cases=(usual_case(objective),), law=law
    )


LAWFUL = tuple(
    _usual(Check.LAWS, f"{law.name}_{objective}", objective, law)
    for objective in dict.fromkeys(chain(*(law.objectives for law in LAWS.values())))
    for law in LAWS.values()
    if objective in law.objectives
)
"""Checks of each law, for every objective that it concerns; one objective's laws share steps."""

DEFAULTED = tuple(_usual(Check.DEFAULTS, one, one, DEFAULTS) for one in DEFAULTS.objectives)
"""A check for each objective, run if the framework documents defaults of its options."""

ALL_SPECS = (*CHECK_SPECS, *ALTERED, *LAWFUL, *DEFAULTED)


def check_spec(slug: str) -> CheckSpec:
    """The check whose finding ids begin with a slug."""
    return next(one for one in ALL_SPECS if one.slug == slug)
