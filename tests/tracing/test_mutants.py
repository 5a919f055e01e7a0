"""The line of a mutant is suspected, also where plain Python made its counts.

The mutants below were chosen because their lines were found, so the tests notice if a line is no
longer found. `tests.tracing.traced_mutants` and `tests.suspects_benchmark` measure how often the
line of any mutant is found.
"""

import pytest

from conformance.ranks.pool import RankPool
from tests.mutants import MUTANTS
from tests.mutants.mutant import LARGEST, MutantAdapter
from tests.pools import pool_of
from tests.tracing.traced_mutants import place

FOUND = (
    "DividedByMicroBatches",
    "MaskIgnored",
    "ReportedSumOverStages",
    "EmptySamplesClamped",
    "PackedWidthAsDivisor",
    "TokensCountedAsUnits",
    "LoggedByTheFirstStage",
    "LowerBoundForgotten",
    "TokensDropped",
    "BoundsOnDividedAdvantages",
    "RejectedTokensInTheLog",
)


pool = pool_of(MutantAdapter, LARGEST)


@pytest.mark.thorough
def test_lines_that_are_found_stay_found(pool: RankPool) -> None:
    by_name = {mutant.__name__: mutant for mutant in MUTANTS}

    places = [place(by_name[name], pool) for name in FOUND]

    assert len(places) - places.count(None) >= 0.9 * len(places)


def test_a_weight_of_0_that_is_right_alone_is_traced_without_an_error(pool: RankPool) -> None:
    """The clipping that makes the weight 0 depends on values that are 0 in a traced job."""
    [mutant] = [one for one in MUTANTS if one.__name__ == "ValuesOnlyBounded"]

    assert place(mutant, pool) is None
