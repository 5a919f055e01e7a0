"""The users whom a cause reaches: those who set certain options, or train batches with rare facts.

Options and facts count only if all findings of the cause share them: it needs no others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import reduce
from itertools import chain
from operator import or_
from typing import TYPE_CHECKING

from adapters.contract.framework import parts_of
from adapters.contract.objective import FROM_REWARDS, Objective
from conformance.explain.conditions.wording import OBJECTIVES, PARALLELISM
from conformance.explain.evidence import Evidence
from conformance.findings.cause import EMPTY_SAMPLE, Reach, Severity

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from conformance.explain.conditions.wording import ChosenBy
    from conformance.explain.cover import Table
    from conformance.findings.cause import Cause
    from conformance.findings.finding import Finding

NO_ACTIVE_TOKEN = "where no token is active"
MASKED_SAMPLE = "where all tokens of a sample are masked"
MASKED_ROW = "where all tokens of a row are masked"

RARE = (
    EMPTY_SAMPLE,
    MASKED_SAMPLE,
    NO_ACTIVE_TOKEN,
    MASKED_ROW,
    "where there are fewer active tokens than data-parallel ranks",
    "where prompt groups differ in size",
    "where a batch is no multiple of the data-parallel ranks",
    "where micro-batches differ in their number of samples",
    "where rows are repeated to fill up a batch",
    "where a rollout has several samples",
    "where a reward is compared with no other",
    "where a sample has no reward",
    "where rewards are large",
    "where rewards of a prompt hardly differ",
    "where a rewarded response ends with a masked token",
)
"""Facts that an ordinary batch does not have."""

IMPLIED = {NO_ACTIVE_TOKEN: (EMPTY_SAMPLE, MASKED_SAMPLE), MASKED_SAMPLE: (EMPTY_SAMPLE,)}
"""For each rare fact, the rare facts that it implies."""

OF_EVERY_STEP = ("dp", "mb")
"""Parts of layouts whose options every user sets."""

NAMED_CHOICES = 3
"""The most alternatives that a reach names; further alternatives are only counted."""

Need = Callable[["Collection[str]", int], bool]
"""`Evidence.needs_layout` or `Evidence.needs_loss`."""

Choice = tuple[str, ...]
"""The options that a user types to choose a mode, an objective or a layout."""


class Reaching:
    """Determines the users whom causes reach."""

    def __init__(self, table: Table, findings: Iterable[Finding], chosen_by: ChosenBy) -> None:
        self._table = table
        self._chosen_by = chosen_by
        self._holds: dict[Choice, int] = defaultdict(int)
        """The terms of the findings that set each choice of options, and each single option."""
        for finding in findings:
            bits = table.bits.get(finding.id, 0)
            choices = (*_of_the_loss(finding, chosen_by), _of_the_layout(finding, chosen_by))
            parts = {(option,) for choice in choices for option in choice}
            for choice in {*choices} | parts:
                self._holds[choice] |= bits

    def of(self, cause: Cause, findings: Sequence[Finding]) -> Reach:
        """The options and rare facts that all findings of a cause share.

        If findings share no option but each sets at least one, users must set one of the
        alternatives.
        """
        claims = sum(self._table.bits.get(finding.id, 0) for finding in findings)
        is_failure = cause.severity is Severity.NOT_TRAINED
        absent = self._table.trained if is_failure else self._table.right
        evidence = Evidence(self._table, claims, absent, self._chosen_by)
        needs: dict[str, bool] = {}
        of_losses = zip(*(_of_the_loss(one, self._chosen_by) for one in findings), strict=True)
        for choices in of_losses:
            needs |= self._needed(choices, evidence.needs_loss)
        layouts = [_of_the_layout(one, self._chosen_by) for one in findings]
        for option in _shared(layouts):
            needs |= self._needed([(option,)], evidence.needs_layout)
        # If the condition has rare facts, other rare facts of its steps may just accompany them.
        rare = rare_of(supposed_of(cause)) or rare_of(evidence.shown())
        return Reach(
            options=[*needs],
            rare=rare,
            untested=[
                *(option for option, is_needed in needs.items() if not is_needed),
                *(fact for fact in rare if fact in cause.untested),
            ],
        )

    def _needed(self, choices: Sequence[Choice], needs: Need) -> dict[str, bool]:
        """Whether each shared option is needed, or, without any, whether the alternatives are."""
        common = _shared(choices)
        if not common and all(choices):
            several = sorted({*choices}, key=lambda choice: (len(choice), choice))
            holds = reduce(or_, (self._holds[choice] for choice in several))
            options = {*chain.from_iterable(several)}
            return {_either(several): needs(options, holds)}
        return {option: needs([option], self._holds[option,]) for option in common}


def supposed_of(cause: Cause) -> list[str]:
    """The facts of a cause's condition, both shown and untested."""
    return [*cause.condition, *cause.untested]


def rare_of(facts: Iterable[str]) -> list[str]:
    """The rare facts among some facts, each once, without facts that another rare fact implies."""
    rare = [fact for fact in dict.fromkeys(facts) if fact in RARE]
    implied = {*chain.from_iterable(IMPLIED.get(fact, ()) for fact in rare)}
    return [fact for fact in rare if fact not in implied]


def _shared(choices: Sequence[Choice]) -> list[str]:
    """The options that all choices share, in the order of the first choice."""
    first, *others = choices
    return [option for option in first if all(option in each for each in others)]


def _either(choices: Sequence[Choice]) -> str:
    """The alternatives among several choices, in words."""
    named = [" ".join(choice) for choice in choices[:NAMED_CHOICES]]
    more = len(choices) - len(named)
    return " or ".join([*named, *([f"{more} more"] if more else [])])


def options(finding: Finding, chosen_by: ChosenBy) -> list[str]:
    """The options that train a finding's step, without options that every user sets."""
    choices = (*_of_the_loss(finding, chosen_by), _of_the_layout(finding, chosen_by))
    return [*dict.fromkeys(chain.from_iterable(choices))]


def _of_the_loss(finding: Finding, chosen_by: ChosenBy) -> tuple[Choice, Choice]:
    """The options of the mode, and the options of the objective.

    The mode is left out for computed advantages, which do not depend on it. The clipped policy loss
    is left out as an objective, since ratios differ from 1 whatever its options are.
    """
    objective = OBJECTIVES.get(finding.identity.slug, Objective.POLICY)
    modes = () if objective in FROM_REWARDS else (finding.mode,)
    objectives = () if objective is Objective.OFF_POLICY else (objective,)
    return _typed(modes, chosen_by), _typed(objectives, chosen_by)


def _of_the_layout(finding: Finding, chosen_by: ChosenBy) -> Choice:
    """The options of the layout."""
    layout = finding.layout
    used = [part for part in PARALLELISM if getattr(layout, part) > 1]
    others = sorted(parts_of(layout) - {*PARALLELISM, *OF_EVERY_STEP})
    return _typed((*used, *others), chosen_by)


def _typed(parts: Iterable[str], chosen_by: ChosenBy) -> Choice:
    """The options that choose parts, without options that every user sets.

    A kind of parallelism that only such options choose is given in words.
    """
    of_every_step = {
        option
        for part, typed in chosen_by.items()
        if part.partition("-")[0] in OF_EVERY_STEP
        for option in typed
    }
    found: list[str] = []
    for part in parts:
        named = PARALLELISM.get(part, [])
        own = [one for one in chosen_by.get(part, named) if one not in of_every_step]
        found += own or named
    return tuple(found)
