"""Columns of a batch that are poisoned, attached or painted.

A poison is a value that no loss may depend on. Paint is the only non-zero value of a column, such
as the advantage of one token, and is traced to the gradient or to a logged number. An attached
column requires a gradient, as if it had not been detached; the gradient must stay 0.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import numpy as np

from adapters.contract.batch.token_values import ADVANTAGES
from adapters.contract.job import Column, Place
from adapters.contract.objective import CONSTANTS, FROM_REWARDS
from reference.aggregation import AdvantageUnit

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from adapters.contract.batch.columns import Columns
    from adapters.contract.job import Job, Paint
    from reference.arrays import Mask, Values


PAINT = 4096.0
"""The advantage or entropy of a painted token; no other number of a step equals it."""

SHADE = 2.578125
"""A painted token's value in columns other than advantages and entropies, within all clipping
bounds of ratios, rewards and values."""

SELECTED = 8192.0
"""The factor on a painted token's gradient when the gradients of all other tokens are set to 0."""

PAINTED: ContextVar[Paint | None] = ContextVar("painted", default=None)


def painted_value(column: Column) -> float:
    """The size of a painted token's value in a column."""
    return PAINT if column in (Column.ADVANTAGES, Column.ENTROPIES) else SHADE


def sizes_given(column: Column) -> tuple[float, ...]:
    """The values that a painted token may have.

    Adapters of frameworks that train half of a critic's loss double returns, so a return has two.
    """
    size = painted_value(column)
    return (size, 2 * size) if column is Column.RETURNS else (size,)


@contextmanager
def painting(paint: Paint | None) -> Iterator[None]:
    """Set one token of a column to a value, and all others to 0, in batches made in the context.

    A painted advantage keeps the sign of the token's advantage, because clipping depends on signs.
    """
    reset = PAINTED.set(paint)
    try:
        yield
    finally:
        PAINTED.reset(reset)


COLUMNS = frozenset(Column)

OF_ADVANTAGES = (Column.REWARDS, Column.VALUES, Column.REFERENCE_LOG_PROBS)
"""The columns from which frameworks compute advantages."""


class Attached(list["Values"]):
    """Values of tokens, an array for each sample, that a framework must take as constants.

    The toolkit makes them require a gradient.
    """


class Surrounded(list["Values"]):
    """Values of tokens, an array for each sample, with poison at ids of prompts and padding."""

    def __init__(self, values: Sequence[Values], poison: Values) -> None:
        super().__init__(values)
        self.poison = poison


def elsewhere(values: Sequence[Values], ids: int, fill: float) -> Values:
    """The values at prompt and padding ids: `Surrounded.poison` if given, else ``fill``: [ids]."""
    if isinstance(values, Surrounded):
        return np.resize(values.poison, ids)
    return np.full(ids, fill)


def painted(batch: Columns, paint: Paint) -> dict[str, Any]:
    """The attributes of a `ProbedBatch` in which only one token of a column has a non-zero value.

    Nothing else adds to a loss: the other columns and the new log-probabilities are 0. A painted
    ratio is clipped, because the token has a negative advantage.
    """
    size, (sample, token) = painted_value(paint.column), paint[:2]
    [painted_id] = batch.responses[sample][token : token + 1]

    def one(value: float) -> list[Values]:
        values = [np.zeros(len(ids)) for ids in batch.responses]
        values[sample][token] = value
        return values

    def table(value: float) -> Values:
        return np.where(np.arange(batch.probe_size + 2) == painted_id, value, 0.0)

    if batch.objective in FROM_REWARDS and paint.column in OF_ADVANTAGES:
        return _reward_columns(batch, one(size), paint)
    neutral = {
        "raw_advantages": one(0.0),
        "entropies": one(0.0),
        "entropy_table": table(0.0),
        "old_values": one(0.0),
    }
    match paint.column:
        case Column.ADVANTAGES:
            advantages = one(np.copysign(size, ADVANTAGES[painted_id % len(ADVANTAGES)]))
            if paint.id is not None:  # all tokens of the sample share one advantage
                advantages[sample][:] = advantages[sample][token]
            return {**neutral, "raw_advantages": advantages, "reference_log_probs": batch.log_probs}
        case Column.RETURNS:
            return {**neutral, "raw_advantages": one(2 * size)}
        case Column.LOG_PROBS:
            return {**neutral, "log_probs": one(-size), "log_prob_table": table(-size)}
        case Column.ENTROPIES:
            painted_columns = {"entropies": one(size), "entropy_table": table(size)}
        case Column.OLD_LOG_PROBS:
            painted_columns = {"old_log_probs": one(size), "raw_advantages": one(-1.0)}
        case _:
            painted_columns = {paint.column: one(-size)}
    kept = {"old_log_probs": batch.log_probs, "reference_log_probs": batch.log_probs}
    return {**neutral, **kept, **painted_columns}


def _reward_columns(batch: Columns, values: list[Values], paint: Paint) -> dict[str, Any]:
    """The columns of a batch in which a single input of advantages is not 0.

    This input is a rollout's reward, a token's value, or a token's divergence from the reference
    policy.
    """
    is_reward, is_value = paint.column is Column.REWARDS, paint.column is Column.VALUES
    is_painted = is_reward & (batch.trajectories == batch.trajectories[paint.sample])
    alike = ("old_log_probs", "reference_log_probs", "teacher_log_probs")
    columns = {
        **dict.fromkeys(alike, batch.log_probs),
        "rewards": np.where(np.isnan(batch.rewards), np.nan, np.where(is_painted, SHADE, 0.0)),
        "values": values if is_value else [np.zeros(len(ids)) for ids in batch.responses],
    }
    if not is_reward and not is_value:
        columns[paint.column] = [-one for one in values]
    return columns


def altered(plain: Columns, column: Column, job: Job) -> list[Values]:
    """A column of a plain batch, altered if the job poisons or traces this column."""
    values: list[Values] = getattr(plain, column)
    if column is job.attached:
        return Attached(values)
    if job.poison is None or column is not job.poison.column:
        return values
    poison, place = np.array(job.poison.values), job.poison.place
    if place is Place.OUTSIDE:
        return Surrounded(values, poison)
    poisoned = POISONED[place](plain, column)
    return [
        np.where(replaced, poison[ids % len(poison)], of_sample)
        for replaced, of_sample, ids in zip(poisoned, values, plain.responses, strict=True)
    ]


def altered_table(plain: Values, batch: Columns, column: Column, job: Job) -> Values:
    """A table of the plain batch, cycled over ids, with poison if the column is poisoned."""
    if job.poison is None or column is not job.poison.column:
        return plain
    table = np.resize(plain, batch.probe_size + 2)
    table[np.concatenate(batch.responses)] = np.concatenate(getattr(batch, column))
    return table


def _masked(plain: Columns, column: Column) -> list[Mask]:
    """The tokens that are masked even before rejection sampling.

    An advantage per sample belongs to masked tokens only if the sample has no active token.
    """
    if column is Column.ADVANTAGES and plain.advantage_unit is AdvantageUnit.SAMPLE:
        return [np.full(len(mask), not mask.any()) for mask in plain.original_masks]
    return [~mask for mask in plain.original_masks]


def _rejected(plain: Columns, column: Column) -> list[Mask]:
    """The tokens that rejection sampling removes."""
    pairs = zip(plain.original_masks, plain.masks, strict=True)
    return [before & ~after for before, after in pairs]


def _clipped(plain: Columns, column: Column) -> list[Mask]:
    """The active tokens whose ratio to an earlier policy exceeds the upper clipping bound.

    A policy loss has no upper bound for tokens with a negative advantage.
    """
    if column is Column.ROLLOUT_LOG_PROBS:
        ratios = zip(plain.masks, plain.old_log_probs, plain.rollout_log_probs, strict=True)
        bound = np.log(CONSTANTS.truncation)
        return [mask & (old - rollout > bound) for mask, old, rollout in ratios]
    columns = plain.masks, plain.advantages, plain.log_probs, plain.old_log_probs
    bound = np.log1p(CONSTANTS.clip_high)
    return [
        mask & (advantages > 0) & (new - old > bound)
        for mask, advantages, new, old in zip(*columns, strict=True)
    ]


POISONED = {Place.MASKED: _masked, Place.REJECTED: _rejected, Place.CLIPPED: _clipped}
"""The function that selects the response tokens at each place, by sample."""
