"""Writes reports/mutants.md."""

from pathlib import Path

from conformance.ranks.pool import RankPool
from tests.mutants import MUTANTS
from tests.mutants.kills import trials
from tests.mutants.mutant import LARGEST, MutantAdapter
from tests.mutants.table import HEAD, row

if __name__ == "__main__":
    with RankPool(MutantAdapter(), None, LARGEST) as pool:
        rows = [row(mutant, [*trials(mutant, pool)]) for mutant in MUTANTS]
    Path("reports/mutants.md").write_text(HEAD + "\n".join(rows) + "\n", encoding="utf-8")
