"""The laws, one record each.

A law changes the rows of each step, or the job that trains them. Gradients are held against the
reference after the change as before it. Every number that is logged must stay what it was, whether
or not a check knows it, except times and counts, which no value of a batch moves.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from adapters.contract.batch.token_values import NEW_NAME
from conformance.laws.rows import Row, rows_of, step_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from adapters.contract import Job, Layout

    Rows = Sequence[Row]
    Change = Callable[[Rows], Rows]

Given = TypeVar("Given")


def unchanged(given: Given) -> Given:
    """No change."""
    return given


@dataclass(frozen=True, kw_only=True)
class Law:
    """A change that must not matter."""

    name: str
    mistake: str
    """The name in the catalogue of a number that changes with it."""

    says: str
    """The change, in words that complete "changes when ..."."""

    change: Change = unchanged
    """How the rows of each step change."""

    before: Callable[[Layout], Layout] = unchanged
    """The layout before the change, given that after it."""

    is_of_cuts: bool = False
    """Whether it is seen where a step is cut, and not where it is whole."""

    @property
    def is_repetition(self) -> bool:
        """Whether nothing changes but what was trained before."""
        return self.change is unchanged and self.before is unchanged

    def changed(self, job: Job) -> Job:
        """The job after the change."""
        return job if self.change is unchanged else _with_rows(job, self.change)

    def job_before(self, job: Job) -> Job:
        """The job before the change."""
        return replace(job, layout=self.before(job.layout))


LAWS: dict[str, Law] = {}


def _law(mistake: str, says: str, *, is_of_cuts: bool = False) -> Callable[[Change], Change]:
    """Record a change of rows under the name of its function."""

    def record(change: Change) -> Change:
        name = change.__name__
        LAWS[name] = Law(
            name=name, mistake=mistake, says=says, change=change, is_of_cuts=is_of_cuts
        )
        return change

    return record


def _whole(layout: Layout) -> Layout:
    return replace(layout, dp=1, cp=1, tp=1, pp=1, micro_batches=1, options=())


LAWS["cut"] = Law(
    name="cut",
    mistake="depends_on_cut",
    says="the step is cut",
    before=_whole,
    is_of_cuts=True,
)


@_law("depends_on_order", "samples are in the opposite order", is_of_cuts=True)
def sample_order(rows: Rows) -> Rows:
    """The last sample first; prompts that were next to each other still are."""
    return rows[::-1]


@_law("depends_on_ids", "prompts and rollouts have other ids")
def other_ids(rows: Rows) -> Rows:
    """New ids, in the opposite order."""
    return [replace(row, group=900 - row.group, rollout=900 - row.rollout) for row in rows]


@_law("depends_on_prompts", "a prompt is longer by three tokens")
def longer_prompt(rows: Rows) -> Rows:
    """The first sample's prompt, longer than any other where rows are padded to one width."""
    longest = max(row.prompt_length for row in rows)
    return [replace(rows[0], prompt_length=longest + 3), *rows[1:]]


@_law("depends_on_masked_tokens", "a masked token is put before a response")
def masked_token_first(rows: Rows) -> Rows:
    """As where a tool answers before the policy does."""
    return _with_masked_token(rows, lambda row: 0)


@_law("depends_on_masked_tokens", "a masked token is put into a response")
def masked_token_within(rows: Rows) -> Rows:
    """As where a tool answers between two turns."""
    return _with_masked_token(rows, lambda row: int(np.flatnonzero(row.mask)[-1]))


@_law("depends_on_masked_tokens", "a masked token is appended to a response")
def masked_token_last(rows: Rows) -> Rows:
    """As where a sample ends with an answer that is not trained on."""
    return _with_masked_token(rows, lambda row: len(row.mask))


def _with_masked_token(rows: Rows, place_in: Callable[[Row], int]) -> Rows:
    """One more masked token in the sample with most active ones, with values of its own.

    It has no advantage, which some frameworks are given as its reward.
    """
    counts = [int(row.mask.sum()) for row in rows]
    index = int(np.argmax(counts))
    if not counts[index]:
        return rows
    row, place = rows[index], place_in(rows[index])
    longer = replace(
        row,
        tokens=np.insert(row.tokens, place, NEW_NAME + index),
        mask=np.insert(row.mask, place, False),
        original_mask=np.insert(row.original_mask, place, False),
    )
    return [*rows[:index], longer, *rows[index + 1 :]]


LAWS["again"] = Law(
    name="again",
    mistake="depends_on_steps_before",
    says="the same step is trained again, after others",
)


def with_other_values(job: Job) -> Job:
    """The job with other values at every token and sample: what stays the same is a count.

    Rewards keep their signs, by which some counts and lengths choose samples.
    """
    return _with_rows(job, _other_values)


def _other_values(rows: Rows) -> Rows:
    return [
        replace(row, name=row.name + 1, tokens=row.tokens + 1, reward=1.5 * row.reward)
        for row in rows
    ]


@lru_cache(maxsize=256)  # steps are equal if they are the same
def _with_rows(job: Job, change: Change) -> Job:
    is_rejecting = job.rejects
    changed = [change(rows) for rows in rows_of(job.steps)]
    return replace(job, steps=tuple(step_of(rows, is_rejecting=is_rejecting) for rows in changed))
