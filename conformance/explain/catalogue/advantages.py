"""Known mistakes in the advantages that a framework computes from rewards.

Each is the estimator of `reference.advantages` on wrong rewards, groups, tokens or constants, or
whitened by the mean and variance of other tokens.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from adapters.contract.batch.token_values import PADDING_VALUE
from adapters.contract.objective import OF_GROUPS, OF_VALUES, PENALISING, Objective
from conformance.explain.catalogue.groups import wrong_groups
from conformance.explain.catalogue.mistake import Kind, known
from reference import advantages
from reference.aggregation import TokenSet

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from conformance.expected.advantages import BatchPlacement, Estimate

    Values = NDArray[np.float64]
    Wrong = tuple[str, Values]

PARTS_OF_A_BATCH = {
    "step": "optimizer step",
    "dp_rank": "data-parallel rank",
    "cp_slice": "context-parallel slice",
    "rank": "rank",
}

known(
    {
        "divergence_left_out": "rewards are not penalised by the divergence",
        "divergence_of_other_tokens": "the divergence of the wrong tokens is penalised",
        "discount_left_out": "later rewards are not discounted",
        "reward_at_another_token": "the reward is placed at the wrong token",
        "other_transitions": "advantages are accumulated over the wrong tokens",
        "trace_left_out": "advantages of later tokens are not multiplied by lambda",
        "padding_bootstrapped": "GAE bootstraps from padding values",
        "not_whitened": "advantages are not whitened",
        "whitened_by_other_tokens": "whitening takes mean and variance over the wrong tokens",
        "copies_whitened": "whitening counts a token once for each rank that holds a copy",
        "padding_whitened": "whitening counts padding in the mean",
        **{
            f"whitened_per_{name}": f"advantages are whitened in each {words} separately"
            for name, words in PARTS_OF_A_BATCH.items()
        },
    },
    rank=15,
    kind=Kind.ADVANTAGE,
)

OTHER_SET = {TokenSet.ACTIVE: TokenSet.RESPONSE, TokenSet.RESPONSE: TokenSet.ACTIVE}


def wrong_advantages(estimate: Estimate, placement: BatchPlacement) -> Iterator[Wrong]:
    """Yield names and advantages, [tokens], with each mistake that an estimator may have."""
    if estimate.objective in OF_GROUPS:
        yield from wrong_groups(estimate, placement)
    else:
        yield from _of_discounts(estimate)
    if estimate.objective in (*PENALISING, Objective.DISTILLED):
        yield from _of_penalties(estimate)
    if estimate.objective in OF_VALUES:
        yield from _of_values(estimate, placement)
    if estimate.estimator.whitens:
        yield from _of_whitening(estimate, placement)


def _of_penalties(estimate: Estimate) -> Iterator[Wrong]:
    yield "divergence_left_out", estimate.under(penalty=0.0)
    yield "divergence_of_other_tokens", _other_tokens(estimate, "penalised")


def _of_discounts(estimate: Estimate) -> Iterator[Wrong]:
    yield "discount_left_out", estimate.under(discount=1.0)
    yield "reward_at_another_token", _other_tokens(estimate, "rewarded")
    yield "other_transitions", _other_tokens(estimate, "transitions")
    yield "reward_at_a_masked_token_lost", estimate.having(rewards=_rewards_on(estimate))


def _other_tokens(estimate: Estimate, convention: str) -> Values:
    """The advantages if a convention of the estimator is about the other set of tokens."""
    other = OTHER_SET[getattr(estimate.conventions, convention)]
    return estimate.by(**{convention: other})


def _rewards_on(estimate: Estimate) -> Values:
    """The rewards of samples, 0 where the last rewarded token is none that is gone through: [N]."""
    rollouts = estimate.rollouts
    last = rollouts.last(estimate.conventions.rewarded)
    kept = np.zeros(len(rollouts.rewards), np.bool_)
    kept[rollouts.sample[last]] = estimate.path[last]
    return np.where(kept, rollouts.rewards, 0.0)


def _of_values(estimate: Estimate, placement: BatchPlacement) -> Iterator[Wrong]:
    yield "trace_left_out", estimate.under(trace=1.0)
    responses = np.bincount(estimate.rollouts.sample, minlength=len(estimate.rollouts.rewards))
    for starts, width in placement.rows(responses):
        found = _with_padding(estimate, width - starts - responses)
        yield "padding_bootstrapped", estimate.of(found)


def _with_padding(estimate: Estimate, paddings: NDArray[np.int64]) -> Values:
    """GAE that goes on over the padding behind each sample, [N], with the value of padding."""
    rollouts, constants, decay = estimate.rollouts, estimate.constants, estimate.decay
    path = rollouts.only(estimate.path)
    behind = np.zeros(len(path.mask))  # what the last token reads of padding
    for token in path.last(TokenSet.RESPONSE):
        padding = paddings[path.sample[token]]
        tail = 0.0
        for place in range(padding):
            next_value = PADDING_VALUE if place else 0.0
            tail = constants.discount * next_value - PADDING_VALUE + decay * tail
        behind[token] = decay * tail + constants.discount * PADDING_VALUE * bool(padding)
    found = estimate.raw.copy()
    found[estimate.path] += advantages.accumulated(behind, path.sample, decay)
    return found


def _of_whitening(estimate: Estimate, placement: BatchPlacement) -> Iterator[Wrong]:
    if not estimate.rollouts.tokens(estimate.conventions.whitened).any():
        return
    yield "not_whitened", estimate.raw
    yield "whitened_by_other_tokens", _other_tokens(estimate, "whitened")
    yield from _of_copies(estimate)
    yield from _of_padding(estimate)
    for name, part in placement.parts():
        yield f"whitened_per_{name}", _of_parts(estimate, part)


def _of_copies(estimate: Estimate) -> Iterator[Wrong]:
    """Yield advantages whose variance counts copies of tokens, which have the same mean.

    Rewards at masked tokens may be lost besides, which changes more.
    """
    lost = replace(estimate.rollouts, rewards=_rewards_on(estimate))
    is_lost = (lost.rewards != estimate.rollouts.rewards).any()
    for copies in (2, 4, 8):
        degrees = estimate.conventions.lost_degrees_of_freedom / copies
        counted = replace(estimate.conventions, lost_degrees_of_freedom=degrees)
        yield "copies_whitened", estimate.estimator(estimate.rollouts, counted)
        if is_lost:
            yield "reward_at_a_masked_token_lost", estimate.estimator(lost, counted)


def _of_padding(estimate: Estimate) -> Iterator[Wrong]:
    """Yield means over rows that are padded with zeros to the longest response."""
    raw, rollouts, conventions = estimate.raw, estimate.rollouts, estimate.conventions
    lengths, chosen = np.bincount(rollouts.sample), rollouts.tokens(conventions.whitened)
    name = "padding_whitened"
    mean = raw[chosen].sum() / (lengths.max() * len(lengths))
    around = raw[chosen] - mean
    for divisor in (len(around), max(len(around) - 1, 1)):
        variance = float((around**2).sum()) / divisor
        yield name, (raw - mean) / math.sqrt(variance + advantages.VARIANCE_EPSILON)


def _of_parts(estimate: Estimate, part: NDArray[np.int64]) -> Values:
    """The advantages whitened in each part of the batch alone."""
    found, raw, rollouts = np.zeros_like(estimate.raw), estimate.raw, estimate.rollouts
    for number in np.unique(part):
        outside = part != number
        mask = rollouts.tokens(estimate.conventions.whitened) & ~outside
        only = replace(estimate.conventions, whitened=TokenSet.ACTIVE)
        found = np.where(
            outside, found, advantages.whitened(raw, replace(rollouts, mask=mask), only)
        )
    return found
