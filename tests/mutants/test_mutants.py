"""Every mutant is killed by a mismatch, by the expected cases, and named."""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from adapters.native.adapter import NativeAdapter
from conformance.corpus.cases import CORPUS, Case
from conformance.findings.verdict import Check, Verdict
from conformance.plan.checks import ALL_SPECS, check_spec
from conformance.plan.matrix import MatrixCell
from conformance.ranks.pool import RankPool
from tests.mutants import (
    MUTANTS,
    advantages,
    auxiliary,
    counts,
    gradients,
    logging,
    metrics,
    off_policy,
    poison,
    rollouts,
    sharding,
    startup,
)
from tests.mutants.kills import cells_of, trials, trials_on
from tests.mutants.mutant import LARGEST, Mutant, MutantAdapter
from tests.mutants.table import killers, row
from tests.pools import pool_of

TABLE = Path(__file__).parents[2] / "reports" / "mutants.md"

TRIED = 1
"""The number of cells that are tried of each check that must not kill."""

EVERY = 32
"""One in this many cells is tried."""

BY_NAME = {mutant.__name__: mutant for mutant in MUTANTS}


pool = pool_of(MutantAdapter, LARGEST)


NAMES = [
    # Mutants with a step of 2^24 tokens take half a minute; `test_mistakes` has their prediction.
    pytest.param(name, marks=[pytest.mark.soak] if mutant.case else [])
    for name, mutant in BY_NAME.items()
]


@pytest.mark.parametrize("name", NAMES)
def test_mutant_is_killed_and_named(name: str, pool: RankPool) -> None:
    """Trials end at the first such kill; `test_mutant_is_killed_as_the_table_says` makes all."""
    mutant = BY_NAME[name]
    [line] = [one for one in _rows() if one.startswith(f"| {name} |")]
    killed_by = line.split("|")[5].strip()

    def killing(cells: Sequence[MatrixCell]) -> list[MatrixCell]:
        return [cell for cell in reversed(cells) if _kills(killed_by, cell.case.name)]

    kills = (trial for trial in trials(mutant, pool, killing) if trial.is_kill)

    assert any(kill.names(one) for kill in kills for one in (mutant.diagnosis, *mutant.as_well))


@pytest.mark.thorough
@pytest.mark.parametrize("name", NAMES)
def test_mutant_is_killed_as_the_table_says(name: str, pool: RankPool) -> None:
    """In `trials`, a crash, a time-out or a refusal fails the test; the table has all results."""
    mutant = BY_NAME[name]
    tried = [*trials(mutant, pool)]
    kills = [trial for trial in tried if trial.is_kill]

    assert kills
    assert row(mutant, tried) in TABLE.read_text().splitlines()
    named = sum(any(map(kill.names, (mutant.diagnosis, *mutant.as_well))) for kill in kills)
    assert named >= 0.9 * len(kills)
    assert any(kill.names_first(mutant.diagnosis) for kill in kills)


def test_nineteen_in_twenty_findings_name_the_mistake() -> None:
    """This is asserted by a column of the table, whose rows another test compares with runs."""
    counts = [line.split("|")[7].split() for line in _rows()]
    named = sum(int(words[0]) for words in counts)
    kills = sum(int(words[2].rstrip(",")) for words in counts)

    assert named >= 0.95 * kills


def test_all_but_few_mutants_are_one_cause_of_the_right_name() -> None:
    """This is asserted by the table's last column; another test compares its rows with runs."""
    right = 0
    for line in _rows():
        mutant, *_, causes = (cell.strip() for cell in line.strip("|").split("|"))
        names = re.findall(r"`(\w+)`", causes)
        right += len(names) == 1 and names[0].startswith(BY_NAME[mutant].diagnosis)

    assert right >= 0.97 * len(BY_NAME)


def test_table_is_of_this_catalogue_and_has_forty_at_least() -> None:
    assert [line.split("|")[1].strip() for line in _rows()] == list(BY_NAME)
    assert len(BY_NAME) >= 40


def test_every_mutant_tells_its_mistake() -> None:
    assert all("__doc__" in vars(mutant) and mutant.__doc__ for mutant in MUTANTS)


@pytest.mark.parametrize("case", CORPUS, ids=lambda case: case.name)
def test_no_case_lets_every_mutant_live(case: Case) -> None:
    """This is asserted by the table, whose rows another test compares with runs."""
    columns = [[column.strip() for column in line.split("|")] for line in _rows()]
    trying = [row for row in columns if case in BY_NAME[row[1]].corpus]

    assert any(_kills(row[5], case.name) for row in trying)


@pytest.mark.parametrize(
    "name", [mutant.__name__ for mutant in MUTANTS if mutant.spec.slug == "metric"]
)
def test_what_is_only_misreported_weighs_right(name: str, pool: RankPool) -> None:
    """The check of the gradient cannot see such a mutant; only that of the logged loss does."""
    mutant = BY_NAME[name]
    tried = trials_on(cells_of(check_spec("weights"), mutant)[::EVERY], mutant, pool)

    assert {trial.judgement.verdict for trial in tried} == {Verdict.CONFORMS}


SEEN_ON_NATIVE = [
    one
    for one in ALL_SPECS
    if one.objective in NativeAdapter().describe().objectives
    and one.check not in (Check.LAWS, Check.DEFAULTS)
]
"""The checks that can see mutants. Not among them are laws, as `native` logs no number without a
formula (`test_laws` breaks each), and defaults, as `native` has no options with defaults."""

SEEN_BY_ONE_CHECK = {
    Check.WEIGHTS: auxiliary.PlainPathUnscaled,
    Check.METRIC: metrics.LossWithoutEntropy,
    Check.REJECTION: counts.OriginalMaskCounted,
    Check.OFF_POLICY: off_policy.DualClipIgnored,
    Check.ADVANTAGES: advantages.StdForgotten,
    Check.ROLLOUTS: rollouts.LongSamplesCountMore,
    Check.AUXILIARY: auxiliary.EntropyAveragedOverDp,
    Check.OTHER_LOSSES: auxiliary.LikelihoodPerSample,
    Check.POISON: poison.SurrogateMultiplied,
    Check.NO_GRADIENT: gradients.OldPolicyRetained,
    Check.SHARDING: sharding.GroupsStriped,
    Check.ARGUMENTS: startup.DivisorOnlyCompared,
    Check.LOGGING: logging.KeysAsserted,
}


@pytest.mark.thorough
@pytest.mark.parametrize("check", SEEN_BY_ONE_CHECK)
def test_every_check_alone_kills_something(check: Check, pool: RankPool) -> None:
    """No other check sees this check's mutant; the table says that this check does."""
    mutant = SEEN_BY_ONE_CHECK[check]

    assert mutant.spec.check is check
    for other in (one for one in SEEN_ON_NATIVE if one.check is not check):
        cells = cells_of(other, mutant)[:TRIED]
        assert not killers([*trials_on(cells, mutant, pool)]), other.slug


def test_native_itself_is_killed_by_nothing(pool: RankPool) -> None:
    for seen in SEEN_ON_NATIVE:
        tried = [*trials_on(cells_of(seen, Mutant)[:TRIED], Mutant, pool)]

        assert tried
        assert not killers(tried)


def _rows() -> list[str]:
    lines = TABLE.read_text().splitlines()
    return lines[lines.index("|---|---|---|---|---|---|---|---|") + 1 :]


def _kills(killed_by: str, case: str) -> bool:
    if killed_by == "all":
        return True
    if killed_by.startswith("all but "):
        return case not in killed_by.removeprefix("all but ").split(", ")
    return case in killed_by.split(", ")
