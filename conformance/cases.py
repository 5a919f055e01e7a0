"""The corpus: named steps, each with the mistake it is meant to catch.

Masks are written out, one digit per response token, so that a case reads as a table.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import cycle
from typing import TYPE_CHECKING

from reference.aggregation import Aggregation, Mode
from reference.step import Sample, Step

if TYPE_CHECKING:
    from collections.abc import Sequence

DIVISOR = 40.0
"""L of `constant` unless a case says otherwise: no count in the corpus, so never hit by chance."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One batch of rollouts: the optimizer steps made of it, and what it is meant to catch."""

    name: str
    catches: str
    steps: tuple[Step, ...]
    divisor: float = DIVISOR

    def aggregation(self, mode: Mode) -> Aggregation:
        """The mode, with this case's divisor if it takes one."""
        return Aggregation(mode, self.divisor if mode is Mode.CONSTANT else None)

    @property
    def fewest_samples(self) -> int:
        """Samples of the smallest step, of which every micro-batch of every rank needs one."""
        return min(step.size for step in self.steps)


def _step(
    masks: Sequence[str], *, group_sizes: Sequence[int], prompts: Sequence[int] = (3, 5, 2, 4)
) -> Step:
    """A step of samples in adjacent groups; prompt lengths and group sizes repeat as needed."""
    groups = [
        group for group, size in zip(range(len(masks)), cycle(group_sizes)) for _ in range(size)
    ]
    return Step.of(
        [
            Sample(prompt_length=prompt, loss_mask=[int(digit) for digit in mask], group=group)
            for mask, prompt, group in zip(masks, cycle(prompts), groups)
        ]
    )


UNEVEN = ["1", "11", "101", "11111", "11101111", "1111111111111", "0111", "110"]

CORPUS = (
    Case(
        name="uneven_lengths",
        catches="a mean over samples, groups or tokens put in the place of another",
        steps=(_step(UNEVEN, group_sizes=[2]),),
    ),
    Case(
        name="fully_masked_sample",
        catches="a sample without active tokens that counts as one token, or no longer as a sample",
        steps=(
            _step(["111", "0000", "11", "11111", "1101", "1", "111111", "00111"], group_sizes=[2]),
        ),
    ),
    Case(
        name="fully_masked_group",
        catches="a group without active tokens that drops out of P, or divides by zero",
        steps=(_step(["111", "1111", "000", "00", "11011", "1", "11", "111111"], group_sizes=[2]),),
    ),
    Case(
        name="one_token",
        catches="denominators of ranks and micro-batches that hold no active token at all",
        steps=(_step(["000", "00", "0000", "0", "00100", "000", "00", "000000"], group_sizes=[2]),),
    ),
    Case(
        name="no_active_token",
        catches="NaN from a denominator of 0, or a gradient where there is nothing to learn from",
        steps=(_step(["00", "000", "0", "00", "0000", "0", "00", "000"], group_sizes=[2]),),
    ),
    Case(
        name="long_prompts",
        catches="response offsets lost where whole context-parallel chunks are prompt",
        steps=(
            _step(
                ["11", "1011", "111", "1", "11110", "111", "11", "1111"],
                group_sizes=[4],
                prompts=[41, 29, 53, 37],
            ),
        ),
    ),
    Case(
        name="short_responses",
        catches="context-parallel ranks that hold no response token of a sample",
        steps=(
            _step(
                ["1", "11", "1", "01", "11", "1", "10", "1"],
                group_sizes=[2],
                prompts=[9, 17, 3, 12],
            ),
        ),
    ),
    Case(
        name="split_groups",
        catches="group totals of what one rank or micro-batch holds of a prompt group",
        steps=(
            _step(
                ["1" * (1 + 5 * i % 7) + "01" * (i % 3 == 0) for i in range(24)], group_sizes=[8]
            ),
        ),
    ),
    Case(
        name="odd_groups",
        catches="a factor of the group size, which even sizes hide behind those of a layout",
        steps=(_step(["1" * (1 + 4 * i % 9) for i in range(24)], group_sizes=[3]),),
    ),
    Case(
        name="unequal_shards",
        catches="a mean over ranks of what is a mean over each rank's own tokens",
        steps=(
            _step(["1", "1", "11", "1", "1" * 19, "1" * 23, "1" * 17, "1" * 29], group_sizes=[4]),
        ),
    ),
    Case(
        name="unequal_groups",
        catches="one group size taken for all, where multi-turn rollouts make several samples each",
        steps=(
            Step.of(
                [
                    Sample(prompt_length=4, loss_mask=[1] * length, group=group, rollout=rollout)
                    for length, group, rollout in [
                        (3, 0, 0),
                        (1, 0, 0),
                        (5, 0, 1),
                        (2, 1, 2),
                        (7, 1, 3),
                        (4, 2, 4),
                        (6, 2, 4),
                        (1, 2, 4),
                        (2, 2, 5),
                        (8, 3, 6),
                        (3, 3, 7),
                    ]
                ]
            ),
        ),
    ),
    Case(
        name="two_steps",
        catches="denominators of the whole batch of rollouts, or of the step before",
        steps=(
            _step(UNEVEN, group_sizes=[2]),
            _step([mask + "11" for mask in reversed(UNEVEN)], group_sizes=[2]),
        ),
    ),
)
