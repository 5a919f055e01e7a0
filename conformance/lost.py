"""Tokens that weigh nothing or twice what they should, while all others are right."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from conformance.mistakes import Mistake
from conformance.report import Diagnosis

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from conformance.mistakes import Situation

    Matches = Callable[[NDArray[np.float64]], bool]


def diagnoses(
    situation: Situation, observed: NDArray[np.float64], matches: Matches
) -> Iterator[Diagnosis]:
    """What was lost, if something was and ``matches`` says that the rest is right."""
    active = situation.expected > 0
    gone = active & np.equal(observed, 0)
    if gone.any() and matches(np.where(gone, 0, situation.expected)):
        name, words = _whose(situation, gone)
        yield _diagnosis(situation, gone, name, f"weigh nothing, all others are right: {words}")
    twice = active & (observed > 1.5 * situation.expected)
    if twice.any() and _is_made_of(twice, active, situation.sample):
        yield from _repeated(situation, twice, matches)


def shares(situation: Situation) -> Iterator[Mistake]:
    """The weights that are left where only some ranks or micro-batches are heard of."""
    cut = situation.cut
    if cut is None:
        return
    last = cut.micro_batch == cut.micro_batches - 1
    for name, words, kept in (
        (
            "not_reduced_over_dp",
            "the other data-parallel ranks' share is missing",
            cut.dp_rank == 0,
        ),
        (
            "not_reduced_over_cp",
            "the other context-parallel ranks' share is missing",
            cut.cp_rank == 0,
        ),
        (
            "not_reduced_over_ranks",
            "the other ranks' share is missing",
            (cut.dp_rank == 0) & (cut.cp_rank == 0),
        ),
        ("micro_batches_lost", "it is that of the last micro-batch", last),
        ("micro_batches_lost", "it is that of the first micro-batch", cut.micro_batch == 0),
    ):
        if not kept.all():
            yield Mistake(name=name, words=words, weights=np.where(kept, situation.expected, 0))


def _whose(situation: Situation, gone: NDArray[np.bool_]) -> tuple[str, str]:
    """What the tokens have in common that were lost, and the tokens that were not have not."""
    active, cut = situation.expected > 0, situation.cut
    if cut is not None and not gone[active].all():
        for name, words, part in (
            ("not_reduced_over_dp", "those of other data-parallel ranks", cut.dp_rank),
            ("not_reduced_over_cp", "those of other context-parallel ranks", cut.cp_rank),
            (
                "not_reduced_over_ranks",
                "those of all other ranks",
                cut.dp_rank * situation.layout.cp + cut.cp_rank,
            ),
        ):
            kept = np.unique(part[active & ~gone])
            if len(kept) == 1 and np.array_equal(gone, active & (part != kept[0])):
                return name, f"{words} were not added"
        if _is_made_of(gone, active, cut.micro_batch_number):
            return "micro_batches_lost", "those of whole micro-batches"
    if _is_made_of(gone, active, situation.sample):
        return "samples_lost", "those of whole samples"
    return "tokens_lost", "their gradient was lost"


def _is_made_of(
    gone: NDArray[np.bool_], active: NDArray[np.bool_], part: NDArray[np.int64]
) -> bool:
    """Whether it is all active tokens of some parts, and not of all."""
    lost = np.unique(part[gone])
    whole = np.array_equal(gone, active & np.isin(part, lost))
    return whole and len(lost) < len(np.unique(part[active]))


def _repeated(
    situation: Situation, twice: NDArray[np.bool_], matches: Matches
) -> Iterator[Diagnosis]:
    """Some samples came twice, as those do that fill a batch up, and may be counted twice too."""
    doubled = np.where(twice, 2.0, 1.0) * situation.expected
    samples = len(np.unique(situation.sample[twice]))
    size = situation.step.size
    for words, factor in (("", 1.0), (" and are counted so", size / (size + samples))):
        if matches(doubled * factor):
            yield _diagnosis(situation, twice, "samples_repeated", f"weigh twice as much{words}")


def _diagnosis(situation: Situation, tokens: NDArray[np.bool_], name: str, words: str) -> Diagnosis:
    samples = len(np.unique(situation.sample[tokens]))
    return Diagnosis(
        name=name,
        explanation=f"{tokens.sum()} active tokens of {samples} samples {words}",
        numbers={"tokens": int(tokens.sum()), "samples": samples},
    )
