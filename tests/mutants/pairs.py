"""Two mutants at once: does a report have a cause for each?

``python -m tests.mutants.pairs [--pairs=200] [--seed=0]`` prints the share of pairs for which it
does, and the causes of the others.
"""

import argparse
import inspect
import random
from collections.abc import Sequence
from itertools import combinations

from adapters.contract import Depth
from adapters.native.trainer import Trainer
from conformance.explain.catalogue.mistake import MISTAKES
from conformance.findings.cause import Cause
from conformance.plan.matrix import MatrixCell
from tests.mutants import MUTANTS
from tests.mutants.kills import Trial, cells_of, trials_on
from tests.mutants.mutant import EVERYDAY, Mutant
from tests.mutants.one_process import OneProcess, is_seen
from tests.mutants.table import found

DECLARED = {"diagnosis", "spec", "modes", "corpus", "case", "conventions", "dtype"}
"""What a mutant declares about itself, without changing the trainer."""

Pair = tuple[type[Mutant], type[Mutant]]


def changed(mutant: type[Mutant]) -> set[str]:
    """The parts of the trainer that a mutant replaces."""
    own = [base for base in mutant.__mro__ if not issubclass(Trainer, base) and base is not Mutant]
    return {name for base in own for name in vars(base) if not name.startswith("__")} - DECLARED


def pairs(count: int, seed: int) -> list[Pair]:
    """Some pairs of mutants of the weights that change different parts and share a mode."""
    alone = [
        mutant
        for mutant in MUTANTS
        if is_seen(mutant) and mutant.spec.slug == "weights" and mutant.corpus == EVERYDAY
        if mutant.case is None
    ]
    possible = [
        (one, other)
        for one, other in combinations(alone, 2)
        if not changed(one) & changed(other) and {*one.modes} & {*other.modes}
    ]
    return random.Random(seed).sample(possible, min(count, len(possible)))


def joined(pair: Pair) -> type[Mutant]:
    """A trainer with both mistakes."""
    one, other = pair
    modes = tuple(mode for mode in one.modes if mode in other.modes)
    return type(f"{one.__name__}And{other.__name__}", pair, {"modes": modes})


def tried(mutant: type[Mutant], cells: Sequence[MatrixCell]) -> list[Trial]:
    """The trials of a mutant in some cells."""
    return [*trials_on(cells, mutant, OneProcess(), Depth.LOSS)]


def hides_one(pair: Pair, cells: Sequence[MatrixCell], both: Sequence[Trial]) -> bool:
    """Whether one mistake hides the other: both together give what one gives alone."""
    errors = [trial.judgement.error for trial in both]
    return any([trial.judgement.error for trial in tried(one, cells)] == errors for one in pair)


def are_one_other(causes: Sequence[Cause]) -> bool:
    """Whether both together equal one other known mistake, number for number, where they act."""
    return [(one.condition, MISTAKES[one.name].is_read_off) for one in causes] == [([], False)]


def is_named(mutant: type[Mutant], causes: list[Cause]) -> bool:
    """Whether a cause names the mutant's mistake."""
    return any(cause.name.startswith(mutant.diagnosis) for cause in causes)


def main() -> None:
    """Print the share and the other pairs."""
    parser = argparse.ArgumentParser(description=inspect.getdoc(main))
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    chosen = pairs(options.pairs, options.seed)
    right, hidden, one_other = 0, 0, 0
    for pair in chosen:
        both = joined(pair)
        cells = cells_of(both.spec, both)
        trials = tried(both, cells)
        causes = found(both, trials)
        named = all(is_named(mutant, causes) for mutant in pair)
        right += named
        if not named and hides_one(pair, cells, trials):
            hidden += 1
        elif not named and are_one_other(causes):
            one_other += 1
        elif not named:
            print(" and ".join(mutant.__name__ for mutant in pair), flush=True)
            for cause in causes:
                print(f"  {len(cause.findings)} {', '.join([cause.name, *cause.condition])}")
    print(
        f"{right} of {len(chosen) - hidden - one_other} pairs have both causes;"
        f" in {hidden} one hides the other, and {one_other} together equal one other known mistake"
    )


if __name__ == "__main__":
    main()
