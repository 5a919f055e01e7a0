"""The laws, one record each.

A law changes the rows of each step, or the job that trains on the rows. Gradients are compared with
the reference both before and after the change. Every logged number must keep its value, whether or
not a check knows the number. Times and counts are exempt, since they do not depend on the values of
a batch; so are numbers of rewards if the law changes rewards. `conformance.laws.altered` has the
laws of columns.
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
"""Objectives that together log all kinds of numbers of losses: terms, corrections and rejection."""

OF_ROLLOUTS = (Objective.GROUP_NORMALISED, Objective.REINFORCE_PP, Objective.GAE)
"""Objectives that together log all kinds of numbers of rewards, advantages and a critic."""

OF_ALL = (*OF_LOSSES, *OF_ROLLOUTS)

OF_REWARDS = (
    Objective.GROUP_NORMALISED,
    Objective.GROUP_CENTRED,
    Objective.LEAVE_ONE_OUT,
    Objective.OTHERS_NORMALISED,
)
"""Estimators that depend on a mean or a standard deviation of rewards."""

TWIN = 1000
"""The number added to the ids of a prompt and its rollouts to get the ids of their copies."""


def unchanged(job: Job) -> Job:
    """The job without any change."""
    return job


def _any(layout: Layout) -> bool:
    return True


def _is_cut(layout: Layout) -> bool:
    return layout.dp > 1 and layout.micro_batches != 1


@dataclass(frozen=True, kw_only=True)
class Law:
    """A change of a job that must not change gradients or logged numbers."""

    name: str
    mistake: str
    """The catalogue's name of the mistake by which a number changes."""

    says: str
    """The change, in words that complete "changes when ..."."""

    after: Callable[[Job], Job] = unchanged
    """Returns the job after the change, given the job of a cell."""

    before: Callable[[Job], Job] = unchanged
    """Returns the job before the change, given the job of a cell."""

    fits: Fits = _any
    """Whether the change has an effect on a layout."""

    objectives: tuple[Objective, ...] = OF_ALL
    """The objectives that the law is tested with."""

    mode: Mode | None = None
    """The only mode in which the law holds; None if it holds in all modes."""

    adds_rewards: bool = False
    """Whether the change adds rewards, so that logged numbers of rewards may change."""

    is_invariance: bool = True
    """Whether gradients and logged numbers stay equal; if not, a formula says how they change."""

    poison: Poison | None = None
    """The values that the change puts into a column at places that must not matter."""

    attached: Column | None = None
    """The column that the change makes differentiable; its gradient must stay 0."""


@lru_cache(maxsize=256)  # the cache compares steps by identity
def _with_rows(job: Job, change: Change) -> Job:
    changed = (change(rows) for rows in rows_of(job.steps))
    return replace(job, steps=tuple(step_of(rows, is_rejecting=job.rejects) for rows in changed))


def with_other_values(job: Job) -> Job:
    """The job with other values at every token and sample; counts keep their logged values.

    Rewards keep their signs, since some counts and lengths are taken over samples of one sign. If
    tokens are rejected, one more token is rejected, in a sample without rejected tokens.
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
    """The job with other rewards of the same signs, and unchanged values of tokens."""
    return _with_rows(job, _other_rewards)


LAWS: dict[str, Law] = {}


def _cut(name: str, says: str, fits: Fits, objectives: tuple[Objective, ...], **uncut: Any) -> None:
    """Record a law on cutting; ``uncut`` are the sizes of the layout that is not cut."""
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
    """Record a change of rows as a law named after its function; ``others`` are further fields."""

    def record(change: Change) -> Change:
        name, after = change.__name__, partial(_with_rows, change=change)
        LAWS[name] = Law(name=name, mistake=mistake, says=says, after=after, **others)
        return change

    return record


@_law("depends_on_order", "samples are in the opposite order", fits=_is_cut)
def sample_order(rows: Rows) -> Rows:
    """The samples in reverse order, so that samples of a prompt stay adjacent."""
    return rows[::-1]


@_law("depends_on_ids", "prompts and rollouts have other ids")
def other_ids(rows: Rows) -> Rows:
    """Prompts and rollouts get new ids, in the opposite order."""
    return [replace(row, group=900 - row.group, rollout=900 - row.rollout) for row in rows]


@_law("depends_on_prompts", "a prompt is longer by three tokens")
def longer_prompt(rows: Rows) -> Rows:
    """The first sample's prompt becomes the longest, so that rows padded to one width get wider."""
    longest = max(row.prompt_length for row in rows)
    return [replace(rows[0], prompt_length=longest + 3), *rows[1:]]


@_law("depends_on_masked_tokens", "a masked token is put before a response")
def masked_token_first(rows: Rows) -> Rows:
    """A response begins with a masked token, as if a tool answered before the policy did."""
    return _with_masked_token(rows, lambda row: 0)


@_law("depends_on_masked_tokens", "a masked token is put into a response")
def masked_token_within(rows: Rows) -> Rows:
    """A response has one more masked token inside, as if a tool answered between two turns."""
    return _with_masked_token(rows, _last_active)


@_law("depends_on_masked_tokens", "a masked token is appended to a response")
def masked_token_last(rows: Rows) -> Rows:
    """A response ends with a masked token, as if it ended with an answer that is not trained on."""
    return _with_masked_token(rows, lambda row: len(row.tokens))


PLACEHOLDERS = 16
"""The number of placeholders of a small image: 112 x 112 pixels, one placeholder per 28 x 28."""


@_law(
    "depends_on_masked_tokens",
    "an image is put into a response",
    fits=lambda layout: layout.micro_batches != "tokens" and not layout.options,
    objectives=OF_LOSSES,
)
def image_within(rows: Rows) -> Rows:
    """A response has an image inside, as if a tool returned one: one token id, repeated.

    The image's placeholders are masked, and their log-probabilities under the policy mean nothing.
    The law leaves out layouts that cut or distribute samples by length, as the sample gets longer.
    """
    return _with_masked_token(rows, _last_active, PLACEHOLDERS)


def _with_masked_token(rows: Rows, place_in: Callable[[Row], int], times: int = 1) -> Rows:
    """The longest response with active tokens gets ``times`` equal masked tokens with new values.

    Where rows are padded to one width, all other rows get more padding. The masked tokens have no
    advantage, since some frameworks are given advantages as per-token rewards.
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
    """Each sample gets a fully masked copy, as frameworks mask truncated or failed samples."""
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
    """Rewards are points of a large score: float32 holds their sums exactly, not their squares."""
    return [replace(row, reward=row.reward + 1024.0) for row in rows]


@_law(
    "depends_on_reward_level",
    "all rewards are divided by 64",
    objectives=OF_REWARDS,
    is_invariance=False,
)
def rewards_scaled(rows: Rows) -> Rows:
    """Rewards are so small that an epsilon added to their variance matters."""
    return [replace(row, reward=row.reward / 64.0) for row in rows]


DEFAULTS = Law(
    name="defaults",
    mistake="another_default",
    says="documented defaults are left out",
    before=partial(replace, defaults=Defaults.TYPED),
    after=partial(replace, defaults=Defaults.LEFT_OUT),
    objectives=tuple(Objective),
)
"""The law that documented defaults are the actual defaults, if a framework documents defaults."""

AGAIN = Law(
    name="again",
    mistake="depends_on_steps_before",
    says="the same step is trained again after others",
)
LAWS[AGAIN.name] = AGAIN
