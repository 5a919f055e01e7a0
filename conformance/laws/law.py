"""The laws, one record each.

A law changes the rows of each step, or the job that trains them. Gradients are held against the
reference after the change as before it. Every number that is logged must stay what it was, whether
or not a check knows it, except times and counts, which no value of a batch moves, and rewards where
these are what changes. `conformance.laws.altered` has the laws of columns.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from adapters.contract.batch.token_values import NEW_NAME
from adapters.contract.job import Defaults
from adapters.contract.objective import Objective
from conformance.laws.rows import Row, rows_of, step_of
from reference.aggregation import Mode

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from adapters.contract import Job, Layout
    from adapters.contract.job import Column, Poison

    Rows = Sequence[Row]
    Change = Callable[[Rows], Rows]
    Fits = Callable[[Layout], bool]

OF_LOSSES = (
    Objective.OFF_POLICY,
    Objective.COMBINED,
    Objective.TIS_TOKEN,
    Objective.SEQUENCE_MASKED,
    Objective.REJECTION_OFF_POLICY,
)
"""Every kind of numbers that frameworks log of losses: their terms, corrections and rejection."""

OF_ROLLOUTS = (Objective.GROUP_NORMALISED, Objective.REINFORCE_PP, Objective.GAE)
"""Numbers that frameworks log of rewards, advantages and a critic."""

OF_ALL = (*OF_LOSSES, *OF_ROLLOUTS)

OF_REWARDS = (
    Objective.GROUP_NORMALISED,
    Objective.GROUP_CENTRED,
    Objective.LEAVE_ONE_OUT,
    Objective.OTHERS_NORMALISED,
)
"""Estimators that a mistake in a mean or a deviation of rewards shows in."""

TWIN = 1000
"""The distance of ids of a second copy."""


def unchanged(job: Job) -> Job:
    """No change."""
    return job


def _any(layout: Layout) -> bool:
    return True


def _is_cut(layout: Layout) -> bool:
    return layout.dp > 1 and layout.micro_batches != 1


@dataclass(frozen=True, kw_only=True)
class Law:
    """A change that must not matter."""

    name: str
    mistake: str
    """The name in the catalogue of a number that changes with it."""

    says: str
    """The change, in words that complete "changes when ..."."""

    after: Callable[[Job], Job] = unchanged
    """The job after the change, given that of a cell."""

    before: Callable[[Job], Job] = unchanged
    """The job before the change."""

    fits: Fits = _any
    """The layouts that it can be seen on."""

    objectives: tuple[Objective, ...] = OF_ALL
    """The objectives that are trained to look at it."""

    mode: Mode | None = None
    """The only mode that it holds in."""

    adds_rewards: bool = False
    """Whether there are other rewards after it, so that what is logged of rewards may change."""

    is_invariance: bool = True
    """Whether gradients and logged numbers stay; else a formula says how the change moves them."""

    poison: Poison | None = None
    """The values that the change puts into a column where nothing may depend on them."""

    attached: Column | None = None
    """The column to which the change gives a gradient, that must stay 0."""


@lru_cache(maxsize=256)  # steps are equal if they are the same
def _with_rows(job: Job, change: Change) -> Job:
    changed = (change(rows) for rows in rows_of(job.steps))
    return replace(job, steps=tuple(step_of(rows, is_rejecting=job.rejects) for rows in changed))


def with_other_values(job: Job) -> Job:
    """The job with other values at every token and sample: what stays the same is a count.

    Rewards keep their signs, by which some counts and lengths choose samples. Where tokens are
    rejected, one more is, of a sample that had none.
    """
    return _with_rows(job, _other_values)


def _other_values(rows: Rows) -> Rows:
    others = _one_more_rejected(_other_rewards(rows))
    return [replace(row, name=row.name + 1, tokens=row.tokens + 1) for row in others]


def _one_more_rejected(rows: Rows) -> Rows:
    """Rows with one more rejected token, if any are rejected."""
    whole = [one for one in rows if np.array_equal(one.loss_mask, one.original_mask)]
    row = next((one for one in whole if one.loss_mask.sum() > 1), None)
    if row is None or len(whole) == len(rows):
        return rows
    mask = row.loss_mask.copy()
    mask[_last_active(row)] = False
    return [replace(one, loss_mask=mask) if one is row else one for one in rows]


def _last_active(row: Row) -> int:
    return int(np.flatnonzero(row.loss_mask)[-1])


def _other_rewards(rows: Rows) -> Rows:
    return [replace(row, reward=row.reward * (1.0 + abs(row.reward))) for row in rows]


def with_other_rewards(job: Job) -> Job:
    """The job with other rewards of the same signs, and the same values of tokens."""
    return _with_rows(job, _other_rewards)


LAWS: dict[str, Law] = {}


def _cut(name: str, says: str, fits: Fits, objectives: tuple[Objective, ...], **uncut: Any) -> None:
    """Record a law of cuts, with the sizes of a layout without its own cut."""
    LAWS[name] = Law(
        name=name,
        mistake="depends_on_cut",
        says=says,
        before=lambda job: replace(job, layout=replace(job.layout, options=(), **uncut)),
        fits=fits,
        objectives=objectives,
    )


OF_SEQUENCES = (Objective.OFF_POLICY, Objective.SEQUENCE_MASKED)
OF_MODELS = (Objective.OFF_POLICY, Objective.COMBINED)

_cut("cut", "the step is cut", _is_cut, OF_ALL, dp=1, cp=1, tp=1, pp=1, micro_batches=1)
_cut("cut_sequences", "sequences are cut", lambda one: one.cp > 1, OF_SEQUENCES, cp=1)
_cut("cut_model", "the model is cut", lambda one: one.tp * one.pp > 1, OF_MODELS, tp=1, pp=1)


def _law(mistake: str, says: str, **others: Any) -> Callable[[Change], Change]:
    """Record a change of rows under the name of its function, with what else a law has."""

    def record(change: Change) -> Change:
        name, after = change.__name__, partial(_with_rows, change=change)
        LAWS[name] = Law(name=name, mistake=mistake, says=says, after=after, **others)
        return change

    return record


@_law("depends_on_order", "samples are in the opposite order", fits=_is_cut)
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
    return _with_masked_token(rows, _last_active)


@_law("depends_on_masked_tokens", "a masked token is appended to a response")
def masked_token_last(rows: Rows) -> Rows:
    """As where a sample ends with an answer that is not trained on."""
    return _with_masked_token(rows, lambda row: len(row.tokens))


PLACEHOLDERS = 16
"""The placeholders of a small image: of 112 by 112 pixels where each stands for 28 by 28."""


@_law(
    "depends_on_masked_tokens",
    "an image is put into a response",
    fits=lambda layout: layout.micro_batches != "tokens" and not layout.options,
    objectives=OF_LOSSES,
)
def image_within(rows: Rows) -> Rows:
    """As where a tool returns an image between two turns: one token id, many times.

    Placeholders are masked, and the policy's log-probabilities of them mean nothing. As the sample
    is much longer then, it would be cut and dealt otherwise where its length decides that.
    """
    return _with_masked_token(rows, _last_active, PLACEHOLDERS)


def _with_masked_token(rows: Rows, place_in: Callable[[Row], int], times: int = 1) -> Rows:
    """One more masked token in the longest response of those with active ones, with its own values.

    It may be there several ``times`` in a row. Where rows are padded to one width, all others have
    more padding. It has no advantage, which some frameworks are given as its reward.
    """
    row = max(rows, key=lambda one: len(one.tokens) if one.loss_mask.any() else 0)
    if not row.loss_mask.any():
        return rows
    place = place_in(row)
    longer = replace(
        row,
        tokens=np.insert(row.tokens, place, [NEW_NAME + rows.index(row)] * times),
        loss_mask=np.insert(row.loss_mask, place, [False] * times),
        original_mask=np.insert(row.original_mask, place, [False] * times),
    )
    return [longer if one is row else one for one in rows]


@_law(
    "depends_on_masked_samples",
    "each prompt is there again with all of its samples masked",
    objectives=OF_LOSSES,
    mode=Mode.TOKEN_MEAN,
    adds_rewards=True,
)
def masked_twins(rows: Rows) -> Rows:
    """As where a framework masks samples that are cut short, or that an environment failed."""
    return [*rows, *(_masked_twin(row) for row in rows)]


def _masked_twin(row: Row) -> Row:
    masked = np.zeros(len(row.loss_mask), dtype=bool)
    group, rollout = row.group + TWIN, row.rollout + TWIN
    return replace(row, group=group, rollout=rollout, loss_mask=masked, original_mask=masked)


@_law(
    "depends_on_reward_level",
    "all rewards are larger by 1024",
    objectives=OF_REWARDS,
    is_invariance=False,
)
def rewards_shifted(rows: Rows) -> Rows:
    """As of a score that counts points: float32 has sums of these rewards, not of their squares."""
    return [replace(row, reward=row.reward + 1024.0) for row in rows]


@_law(
    "depends_on_reward_level",
    "all rewards are divided by 64",
    objectives=OF_REWARDS,
    is_invariance=False,
)
def rewards_scaled(rows: Rows) -> Rows:
    """As where rewards are so small that an epsilon in a variance is large beside them."""
    return [replace(row, reward=row.reward / 64.0) for row in rows]


DEFAULTS = Law(
    name="defaults",
    mistake="another_default",
    says="documented defaults are left out",
    before=partial(replace, defaults=Defaults.TYPED),
    after=partial(replace, defaults=Defaults.LEFT_OUT),
    objectives=tuple(Objective),
)
"""A law for records of frameworks that document defaults of options."""

AGAIN = Law(
    name="again",
    mistake="depends_on_steps_before",
    says="the same step is trained again after others",
)
LAWS[AGAIN.name] = AGAIN
