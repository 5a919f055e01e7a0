"""The corpus: named steps, each with the mistake that it catches and the source of the rule.

Masks have one digit per response token, with an ``x`` for a token that rejection sampling removed;
``rl-loss-conformance cases`` prints them. Names are part of finding ids and never change their
meaning.

A case does not say how its steps are cut: it runs on every layout for which it has at least one
sample per micro-batch. Losses and advantages at masked positions come from the probe and are never
0.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import cycle
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

from adapters.contract import Layout
from conformance.corpus.case import DIVISOR as DIVISOR
from conformance.corpus.case import Case as Case
from conformance.corpus.case import fewest_micro_batches as fewest_micro_batches
from conformance.corpus.rollouts import ROLLOUTS
from conformance.findings.finding import PRODUCTION
from reference.step import Sample, Step

if TYPE_CHECKING:
    from collections.abc import Sequence


def _rollouts(masks: str, *, groups: str, rollouts: str) -> Step:
    """A step from masks separated by spaces; each sample has a digit in groups and rollouts."""
    step = _step(masks, groups=groups)
    return replace(step, rollouts=np.array([int(digit) for digit in rollouts], np.int64))


def _step(
    masks: str, *, groups: str = "", group_size: int = 2, prompts: Sequence[int] = (3, 5, 2, 4)
) -> Step:
    """A step from masks separated by spaces; prompt lengths repeat as needed.

    ``groups`` has a digit for the prompt group of each sample; without it, groups are adjacent.
    """
    samples = masks.split()
    return Step.of(
        [
            Sample(
                prompt_length=prompt,
                loss_mask=[token == "1" for token in mask],
                original_mask=[token in "1x" for token in mask] if "x" in masks else None,
                group=int(groups[i]) if groups else i // group_size,
            )
            for i, (mask, prompt) in enumerate(zip(samples, cycle(prompts)))
        ]
    )


LONGEST_RESPONSE = 8192
"""Longer responses of the production step are truncated to this length and not trained on."""


def _production_step() -> Step:
    """64 prompts × 8 samples with log-normal lengths; every fifth sample has tool output.

    Lengths are the quantiles of their distribution, in an order that mixes long with short, so no
    random number generator is needed.
    """
    size, stride = 64 * 8, 29
    log_length = NormalDist(math.log(512), 1.2)
    samples = []
    for index in range(size):
        quantile = (index * stride % size + 0.5) / size
        length = math.ceil(math.exp(log_length.inv_cdf(quantile)))
        mask = np.full(min(length, LONGEST_RESPONSE), length <= LONGEST_RESPONSE)
        if index % 5 == 0:
            mask[length // 3 : length // 2] = False
        group = index // 8
        samples.append(Sample(prompt_length=32 + group * 37 % 481, loss_mask=mask, group=group))
    return Step.of(samples)


UNEVEN = "1 11 101 11111 11101111 1111111111111 0111 110"

CORPUS = (
    Case(
        name="uneven_lengths",
        catches="a mean over samples, groups or tokens instead of another of these",
        source="the table of modes of slime pull request 2090; ScaleRL, arXiv:2510.13786",
        steps=(_step(UNEVEN),),
    ),
    Case(
        name="fully_masked_sample",
        catches="a sample without active tokens that counts as one token, or not as a sample",
        source="design: a unit without active tokens adds 0 and counts",
        steps=(_step("111 0000 11 11111 1101 1 111111 00111"),),
    ),
    Case(
        name="fully_masked_group",
        catches="a group without active tokens that drops out of P, or divides by zero",
        source="review of SkyRL pull request 1718: clamp(min=1)",
        steps=(_step("111 1111 000 00 11011 1 11 111111"),),
    ),
    Case(
        name="one_token",
        catches="denominators of ranks and micro-batches without active tokens",
        source="design: no weight depends on the cut",
        steps=(_step("000 00 0000 0 00100 000 00 000000"),),
    ),
    Case(
        name="no_active_token",
        catches="NaN from a denominator of 0, or a gradient although no token is active",
        source="design: refused, or a gradient of exactly 0",
        steps=(_step("00 000 0 00 0000 0 00 000"),),
    ),
    Case(
        name="long_prompts",
        catches="response offsets lost when whole context-parallel chunks are prompt",
        source="review of miles pull request 1328: chunk offsets",
        steps=(_step("11 1011 111 1 11110 111 11 1111", group_size=4, prompts=[41, 29, 53, 37]),),
    ),
    Case(
        name="short_responses",
        catches="context-parallel ranks that hold no response token of a sample",
        source="miles pull request 1328: CP ranks add up to one rank's value",
        steps=(_step("1 11 1 01 11 1 10 1", prompts=[9, 17, 3, 12]),),
    ),
    Case(
        name="split_groups",
        catches="group totals of a single rank or micro-batch when a prompt group is split",
        source="review of miles pull request 1498: groups split over shards",
        steps=(
            _step(
                " ".join("1" * (1 + 5 * i % 7) + "01" * (i % 3 == 0) for i in range(24)),
                group_size=8,
            ),
        ),
    ),
    Case(
        name="odd_groups",
        catches="a factor of the group size, which even sizes hide behind the layout's factors",
        source="slime pull request 2090: the factor n_samples_per_prompt",
        steps=(_step(" ".join("1" * (1 + 4 * i % 9) for i in range(24)), group_size=3),),
    ),
    Case(
        name="unequal_shards",
        catches="a mean over ranks of each rank's own token mean",
        source="slime pull request 2090: reducer and train step's divisor compose",
        steps=(_step(f"1 1 11 1 {19 * '1'} {23 * '1'} {17 * '1'} {29 * '1'}", group_size=4),),
    ),
    Case(
        name="unequal_groups",
        catches="one group size assumed for all, although multi-turn rollouts have several samples",
        source="slime pull request 2090: N counts rollouts, M_i a rollout's tokens",
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
        name="nine_samples",
        catches="padding of ranks or micro-batches: 9 samples of 4 rollouts",
        source="part of every multi-turn batch; SkyRL's step-wise trajectories",
        steps=(
            _rollouts(
                "111 11011 1 1111111 11 0000 11111 1101 111111",
                groups="000011111",
                rollouts="000122333",
            ),
        ),
    ),
    Case(
        name="ten_samples",
        catches="padding of ranks or micro-batches: 10 samples of 8 rollouts",
        source="part of every multi-turn batch; SkyRL's step-wise trajectories",
        steps=(
            _rollouts(
                "11 1111 1 00111 111111 11101 1 1111111 111 1110111",
                groups="0011122233",
                rollouts="0123345567",
            ),
        ),
    ),
    Case(
        name="two_steps",
        catches="denominators of the whole batch of rollouts, or of the previous step",
        source="miles pull request 1350: several training steps per rollout",
        steps=(_step(UNEVEN), _step(" ".join(mask + "11" for mask in reversed(UNEVEN.split())))),
    ),
    Case(
        name="worked_example",
        catches="a hard-coded divisor: 1000 for L = 4 makes 0.006 of x = [1, 2, 3] instead of 1.5",
        source="miles pull request 1328: the worked example",
        steps=(_step("111", group_size=1, prompts=[1]),),
        divisor=4.0,
    ),
    Case(
        name="fibonacci_lengths",
        catches="means over ranks or micro-batches of unequal numbers of samples: 6 on 4 ranks",
        source="slime pull request 2090: prompt_mean is one token mean per group",
        steps=(_step("1 11 111 11111 11111111 1111111111111"),),
    ),
    Case(
        name="two_prompts",
        catches="samples striped over 2 ranks, so that each counts half of the groups 0 0 1 1",
        source="review of miles pull request 1498: [0, 0, 1, 1] on two ranks",
        steps=(_step("1 1111 11 0111111"),),
    ),
    Case(
        name="one_prompt",
        catches="prompts counted per rank when there are more ranks than prompts",
        source="miles pull request 1498: groups that do not share out evenly",
        steps=(_step(UNEVEN, group_size=8),),
    ),
    Case(
        name="interleaved_groups",
        catches="prompt groups assumed adjacent: samples left out, or groups counted twice",
        source="review of SkyRL pull request 1718: prompt groups whose boundaries have gaps",
        steps=(_step(UNEVEN, groups="01230123"),),
    ),
    Case(
        name="dropped_rollouts",
        catches="P computed as N / n_samples_per_prompt after filtering left groups of 1, 2 and 5",
        source="slime pull request 2090: P = N / G",
        steps=(_step(UNEVEN, groups="01122222"),),
    ),
    Case(
        name="padded_widths",
        catches="chunks cut from a sample's own length, or from another micro-batch's width",
        source="review of miles pull request 1328: bshd cuts the padded width",
        steps=(
            _step(
                "10 110111011100111101111 111 01 1111111011111110111111101111111011 1"
                " 0110111101 11111"
            ),
        ),
    ),
    Case(
        name="masked_chunk_borders",
        catches="masks sliced differently from tokens when tool output crosses chunk borders",
        source="miles pull request 1328: CP ranks add up to one rank's value",
        steps=(
            _step(
                "111110001111100011111000111111 111110000000000011111111111111"
                " 111111111111100000000000111111 111110000000000000000000111111"
                " 111111111111100011111111111111 011110001111111111111000111110"
                " 001110001111100011111111111100 111111111111111111111000011111",
                prompts=[2],
            ),
        ),
    ),
    Case(
        name="empty_cp_ranks",
        catches="denominators of context-parallel ranks without response tokens of any sample",
        source="design: no weight depends on the cut",
        steps=(_step("1 11 1 01 1 10 1 11", prompts=[31, 30]),),
    ),
    Case(
        name=PRODUCTION,
        catches="errors of large counts: low precision, or one token too many in 400,000",
        source="design: one token too many in a hundred thousand; L of miles pull request 1328",
        steps=(_production_step(),),
        divisor=40_960.0,
        layouts=(
            Layout(dp=2, cp=2, micro_batches=2, format="thd"),
            Layout(dp=4, micro_batches=2, format="thd"),
        ),
    ),
)

REJECTION = (
    Case(
        name="rejected_tokens",
        catches="denominators of the original mask instead of the modified one, or the reverse",
        source="miles pull request 1498: TIS and RS reduce with the modified mask",
        steps=(_step("1x1 1 x11x1 1111 11x x1 110x11 1xx0x111"),),
    ),
    Case(
        name="rejected_sample",
        catches="a rejected sample that no longer counts, or that divides by zero",
        source="miles pull request 1498: TIS and RS reduce with the modified mask",
        steps=(_step("111 xxxx 11 11111 11x1 x 111111 00111"),),
    ),
    Case(
        name="rejected_of_ten",
        catches="rejected tokens and padding counted together: 10 samples of 8 rollouts",
        source="miles pull request 1498: TIS and RS reduce with the modified mask",
        steps=(
            _rollouts(
                "1x 1111 1 001x1 1xx111 11101 x 1111111 x11 111x111",
                groups="0011122233",
                rollouts="0123345567",
            ),
        ),
    ),
    Case(
        name="rejected_group",
        catches="a rejected prompt group that drops out of P, or divides by zero",
        source="miles pull request 1498: TIS and RS reduce with the modified mask",
        steps=(_step("111 1111 xxx xx 11x11 1 x1 111111"),),
    ),
    Case(
        name="rejected_samples",
        catches="samples that are rejected by the ratio of a whole sequence, and counted",
        source="verl's docs/algo/rollout_corr.md: seq_mean_k1",
        steps=(_step("111 xxxx 11 11111 1101 xx 111111 00111"),),
    ),
    Case(
        name="rejected_of_five",
        catches="micro-batches of padding that fill up ranks, counted in means of rejected tokens",
        source="design: no weight depends on the cut",
        steps=(_step("1x11 11x1 1111 xx11 11x1", group_size=1, prompts=[4]),),
    ),
)
"""Steps from which rejection sampling has removed tokens, whole samples and a whole group."""

ORDERS = (
    Case(
        name="shuffled_groups",
        catches="prompt groups dealt by position after a shuffle has scattered them",
        source="review of miles pull request 1498: complete groups on a shard",
        steps=(_step(UNEVEN, groups="31020213"),),
    ),
    Case(
        name="longest_last",
        catches="groups split to give every rank the same number of tokens",
        source="review of miles pull request 1498: complete groups on a shard",
        steps=(_step(" ".join(sorted(UNEVEN.split(), key=len))),),
    ),
)
"""Cases in which samples come in another order."""

ALL_CASES = (*CORPUS, *REJECTION, *ORDERS, *ROLLOUTS)
"""The cases of all checks."""

CASES_BY_NAME = {case.name: case for case in ALL_CASES}
