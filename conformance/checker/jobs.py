"""Jobs in which all active tokens weigh the same in every mode, so the right weight is known."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from adapters.contract import Depth, Job, Layout
from adapters.contract.batch.probed_batch import ProbedBatch
from conformance.judging.weights import final_weights, largest_error
from reference.aggregation import Aggregation, Mode
from reference.rounding import weight_bound
from reference.step import Sample, Step
from reference.weights import token_weights

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from adapters.contract import Description, Observation

DIVISOR = 64.0
"""The divisor L of mode `constant`."""


def _sample(index: int, prompt_length: int, length: int, active: int) -> Sample:
    """A sample whose inactive tokens have other positions than in the sample before."""
    mask = np.roll(np.arange(length) < active, index + 1)
    return Sample(prompt_length=prompt_length, loss_mask=mask, group=index // 2)


EQUAL = Step.of([_sample(index, 3, 10, 8) for index in range(8)])
"""Samples of equal length, which need no padding."""

PADDED = Step.of(
    [
        _sample(index, prompt, length, 4)
        for index, (prompt, length) in enumerate(
            [(1, 4), (6, 25), (2, 7), (1, 5), (9, 19), (1, 6), (3, 11), (2, 16)]
        )
    ]
)
"""Samples of very different lengths, all with the same number of active tokens."""


def job(layout: Layout, depth: Depth, mode: Mode, *steps: Step) -> Job:
    """The job that trains the given steps."""
    divisor = DIVISOR if mode is Mode.CONSTANT else None
    return Job(steps=steps, aggregation=Aggregation(mode, divisor), layout=layout, depth=depth)


def described(ran: Job) -> str:
    """The words by which a complaint names a job."""
    return f"{ran.aggregation.mode}, depth {ran.depth}, {ran.layout}"


@dataclass(frozen=True, kw_only=True, eq=False)
class StepWeights:
    """The token weights of one step, as observed and as expected: float64 [tokens].

    ``dloss_dlogprob`` is the derivative of each token's loss by its log-probability: [tokens].
    ``tolerance`` bounds the relative error of a weight.
    """

    step: Step
    observed: NDArray[np.float64]
    expected: NDArray[np.float64]
    dloss_dlogprob: NDArray[np.float64]
    vocabulary: int
    """Number of token ids of the job."""

    tolerance: float

    @property
    def are_right(self) -> bool:
        """Whether all weights are within the bound."""
        error = largest_error(self.observed, self.expected)
        return error is not None and error <= self.tolerance

    @cached_property
    def gradient(self) -> NDArray[np.float64]:
        """The probe's gradient: the observed weights times the derivative that divided them."""
        return self.observed * self.dloss_dlogprob

    @cached_property
    def expected_gradient(self) -> NDArray[np.float64]:
        """The gradient that the probe should have."""
        return self.expected * self.dloss_dlogprob


def weights_of_steps(
    ran: Job, observations: Sequence[Observation], description: Description
) -> list[StepWeights]:
    """The weights of every step of a job, on the first rank that has any."""
    batch = ProbedBatch.of(ran, description.conventions)
    derivatives = batch.split(batch.dloss_dlogprob)
    return [
        StepWeights(
            step=step,
            observed=final_weights(observations, index, ran, description.conventions)[0],
            expected=token_weights(step, ran.aggregation, description.conventions),
            dloss_dlogprob=derivatives[index],
            vocabulary=batch.probe_size,
            tolerance=weight_bound(description.dtype),
        )
        for index, step in enumerate(ran.steps)
    ]
