"""A step of ten active tokens, and the data about it that a judge gets."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adapters.contract import Description, Layout, Observation, PendingReduction
from conformance.expected.step_context import StepContext
from conformance.findings.finding import Diagnosis
from conformance.findings.verdict import Verdict
from conformance.judging.weights import Judgement, Trained, judge_weights
from reference.aggregation import DEFAULT_CONVENTIONS, Aggregation, Conventions, Mode
from reference.step import Sample, Step
from tests.declaring import assumed
from tests.jobs import job_of

ONE_RANK = Layout()

STEP = Step.of(
    [
        Sample(prompt_length=1, loss_mask=[1, 1, 0], group=0, rollout=0),
        Sample(prompt_length=2, loss_mask=[1], group=0, rollout=0),
        Sample(prompt_length=1, loss_mask=[0, 0], group=1, rollout=1),
        Sample(prompt_length=3, loss_mask=[1, 1, 1, 1, 0], group=1, rollout=2),
        Sample(prompt_length=1, loss_mask=[1, 1, 1], group=2, rollout=3),
    ]
)
"""Samples of 2, 1, 0, 4 and 3 active tokens; groups of 3, 4 and 3, rollouts of 3, 0, 4 and 3."""

REJECTED = Step.of(
    [
        Sample(prompt_length=1, loss_mask=[1, 1, 0], group=0, rollout=0, original_mask=[1, 1, 1]),
        Sample(prompt_length=2, loss_mask=[1], group=0, rollout=0),
        Sample(prompt_length=1, loss_mask=[0, 0], group=1, rollout=1, original_mask=[1, 0]),
        Sample(prompt_length=3, loss_mask=[1, 1, 1, 1, 0], group=1, rollout=2),
        Sample(prompt_length=1, loss_mask=[1, 1, 1], group=2, rollout=3),
        Sample(prompt_length=1, loss_mask=[0], group=3, rollout=4),
    ]
)
"""`STEP`, whose first and third sample each lost a token to rejection, and an empty sample."""

ALL = slice(None)


def passes(*of_ranks: Sequence[tuple[slice, int]]) -> NDArray[np.int32]:
    """The forward pass in which each rank held each token of `STEP`: [ranks, tokens]."""
    forward_pass_of_token = np.full((len(of_ranks), len(STEP.mask)), -1, np.int32)
    for rank, pairs in enumerate(of_ranks):
        for tokens, step_index in pairs:
            forward_pass_of_token[rank, tokens] = step_index
    return forward_pass_of_token


BY_SAMPLE = passes([(slice(4), 0), (slice(4, 6), 1)], [(slice(6, 11), 0), (slice(11, 14), 1)])
"""Two ranks of two micro-batches: samples 0 and 1, then 2; sample 3, then 4."""

SLICED = passes(
    [(slice(0, 4, 2), 0), (slice(4, 6), 1)],
    [(slice(1, 4, 2), 0)],
    [(slice(6, 9), 0), (slice(11, 12), 1)],
    [(slice(9, 11), 0), (slice(12, 14), 1)],
)
"""The micro-batches of `BY_SAMPLE`, each cut over two context-parallel ranks."""

SCATTERED = passes(
    [(slice(3), 0), (slice(4, 6), 0), (slice(3, 4), 1)], [(slice(6, 11), 0), (slice(11, 14), 1)]
)
"""Two ranks of two micro-batches: samples 0 and 2, then 1; sample 3, then 4."""

UNEVEN = passes([(slice(3), 0), (slice(3, 4), 1), (slice(4, 6), 2)], [(slice(6, 14), 0)])
"""Two ranks: the first has three micro-batches, the second has one."""


@dataclass(frozen=True, kw_only=True)
class Given:
    """The steps of a job, whose last step's weights are judged as if a framework returned them."""

    mode: Mode = Mode.TOKEN_MEAN
    steps: tuple[Step, ...] = (STEP,)
    layout: Layout = ONE_RANK
    forward_pass_of_token: NDArray[np.int32] | None = None
    conventions: Conventions = DEFAULT_CONVENTIONS
    divisor: float = 40.0

    @property
    def aggregation(self) -> Aggregation:
        return Aggregation(self.mode, self.divisor if self.mode is Mode.CONSTANT else None)

    @property
    def context(self) -> StepContext:
        return self._context(len(self.steps) - 1)

    @property
    def weights(self) -> NDArray[np.float64]:
        return self.context.expected

    def _context(self, step_index: int) -> StepContext:
        return StepContext(
            steps=self.steps,
            step_index=step_index,
            aggregation=self.aggregation,
            conventions=self.conventions,
            layout=self.layout,
            forward_pass_of_token=self.forward_pass_of_token,
        )

    def judged(
        self,
        *of_ranks: NDArray[np.float64],
        explains: bool = True,
        **observed: Any,
    ) -> Judgement:
        """The judgement of observations with these weights of ranks, and with other fields."""
        before = [self._context(step_index).expected for step_index in range(len(self.steps) - 1)]
        seen = (
            [()] * len(of_ranks)
            if self.forward_pass_of_token is None
            else [(forward_pass_of_token,) for forward_pass_of_token in self.forward_pass_of_token]
        )
        given = of_ranks * (len(seen) // len(of_ranks))
        job = job_of(*self.steps, aggregation=self.aggregation, layout=self.layout)
        observations = [
            Observation(
                token_weights=(*before, weights),
                forward_passes=tuple(forward_pass_of_token) * len(self.steps),
                **{"pending_reduction": PendingReduction.REPLICATED, **observed},
            )
            for weights, forward_pass_of_token in zip(given, seen, strict=True)
        ]
        description = Description(declared=assumed(self.conventions))
        return judge_weights(Trained(job, observations, description, explains))

    def diagnosis(self, *of_ranks: NDArray[np.float64]) -> Diagnosis:
        judgement = self.judged(*of_ranks)
        assert judgement.verdict is Verdict.MISMATCH
        assert judgement.diagnosis is not None
        return judgement.diagnosis


FILLED_UP = passes([(slice(6), 0)], [(slice(6, 11), 0), (slice(11, 14), 1)])
"""Two ranks: the first has samples 0 to 2 in one micro-batch; the second has 3, then 4."""

ROWS = np.array([[3, 0, 0], [2, 1, 1]], np.int32)
"""The rows of each pass of `FILLED_UP`. The second rank has two copies of samples: one beside
sample 3, and one alone in a third pass."""
