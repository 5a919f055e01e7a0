"""Explanations of gradients by `check-adapter`, without an adapter."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from adapters.contract import Depth, Description, Job, Layout, Observation
from conformance.checker import explanations, jobs
from conformance.checker.explanations import EXAMPLES, WORDS
from reference.aggregation import Mode
from reference.weights import token_weights
from tests import command
from tests.tables import table

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Array = NDArray[np.float64]

JOB = jobs.job(Layout(), Depth.STEP, Mode.TOKEN_MEAN, jobs.EQUAL)


def step_weights(observed: Array | None = None, job: Job = JOB) -> jobs.StepWeights:
    """The weights ``observed`` of a step; by default the right ones."""
    [step] = job.steps
    right = token_weights(step, job.aggregation)
    seen = Observation(token_weights=(right if observed is None else observed,))
    [weights] = jobs.weights_of_steps(job, [seen], Description())
    return weights


RIGHT = step_weights()

RISES = RIGHT.dloss_dlogprob < 0
"""Whether a token has a positive advantage."""


def test_active_tokens_weigh_the_same_in_every_mode() -> None:
    for steps in (jobs.EQUAL, jobs.PADDED):
        every = [jobs.job(Layout(), Depth.STEP, mode, steps) for mode in Mode]
        expected = [token_weights(steps, job.aggregation) for job in every]

        assert all(len(np.unique(one[one > 0])) == 1 for one in expected)
        assert len({float(one.max()) for one in expected[:3]}) == 1, "all but constant"


def test_examples_are_lines_of_the_complete_adapter() -> None:
    page = (command.ROOT / "docs" / "adapters.md").read_text()

    assert {*EXAMPLES} <= {*WORDS}
    assert [line for line in EXAMPLES.values() if line not in page] == []


def test_right_weights_are_right() -> None:
    assert explanations.explain_weights(RIGHT) is None
    assert explanations.explain_padding(RIGHT) is None
    assert explanations.explain_repetition(RIGHT, RIGHT) is None


BEFORE = np.roll(RIGHT.expected_gradient, 1) / RIGHT.dloss_dlogprob
"""Weights that give each token the gradient of the token before it."""

NOISE = 1 + np.random.default_rng(0).random(len(RIGHT.expected))


@pytest.mark.parametrize(
    ("change", "name", "words"),
    [
        (lambda w: w * np.nan, "not_finite", "token 1 of sample 0: nan and not 0.015625"),
        (lambda w: w * 3, "factor", "every weight is 3 times as large"),
        (lambda w: w * 64 / 65, "factor", "every weight is 0.9846154 times"),
        (lambda w: w * (1 - 1 / 4096), "derivative_not_one", "= 1 - 1/4096"),
        (lambda w: w * RISES * RIGHT.dloss_dlogprob, "gradients_returned", "not the weights"),
        (lambda w: BEFORE, "probe_of_another_token", "of the token before it"),
        (lambda w: w * RISES / 2, "ratio_not_one", "is 0.5 and not exactly 1, so that tokens with"),
        (lambda w: w * ~RISES * 2, "ratio_not_one", "positive advantages are clipped"),
        (lambda w: w * NOISE, "unexplained", "64 of 80 tokens have another weight"),
    ],
)
def test_weights_are_explained(change: Callable[[Array], Array], name: str, words: str) -> None:
    cause = explanations.explain_weights(step_weights(change(RIGHT.expected)))

    assert cause.name == name
    assert words in cause.words


def test_a_token_too_many_is_no_vocabulary() -> None:
    """A framework that counts 65 tokens instead of 64 gives a factor of 1 - 1/65."""
    cause = explanations.explain_weights(step_weights(RIGHT.expected * (1 - 1 / 65)))

    assert cause.name == "factor"


def test_a_factor_of_whole_samples_is_left_to_findings() -> None:
    job = jobs.job(Layout(), Depth.STEP, Mode.SAMPLE_MEAN, jobs.PADDED)
    right = step_weights(job=job)
    of_samples = np.repeat(np.arange(1.0, 9.0), jobs.PADDED.response_lengths)
    hit = right.expected.copy()
    hit[3] += 0.5

    assert (
        explanations.explain_padding(replace(right, observed=right.expected * of_samples)) is None
    )
    cause = explanations.explain_padding(replace(right, observed=hit))
    assert cause.words.startswith("where samples are equally long")
    assert "1 of 93 tokens" in cause.words


def test_every_cause_is_shown_by_a_test() -> None:
    here = {"not_finite", "factor", "unexplained"}

    assert (
        WORDS.keys() - {name for name, _ in table("conformance/complaints.toml").values()} == here
    )
