"""Makes steps and jobs from the fields that matter to a test."""

from collections.abc import Sequence
from typing import Any

from adapters.contract import Depth, Job, Layout
from reference.aggregation import Aggregation, Mode
from reference.step import Sample, Step


def step_of(
    *masks: Sequence[int],
    prompts: Sequence[int] = (),
    groups: Sequence[int] = (),
    rollouts: Sequence[int] = (),
) -> Step:
    """A step of samples with these loss masks.

    ``prompts`` are the lengths of the samples' prompts, by default 1. All samples are in one group,
    and each is a rollout of its own, unless ``groups`` and ``rollouts`` number them.
    """
    count = len(masks)
    samples = zip(
        masks,
        prompts or [1] * count,
        groups or [0] * count,
        rollouts or [None] * count,
        strict=True,
    )
    return Step.of(
        [
            Sample(prompt_length=length, loss_mask=mask, group=group, rollout=rollout)
            for mask, length, group, rollout in samples
        ]
    )


def job_of(*steps: Step, mode: Mode = Mode.TOKEN_MEAN, **fields: Any) -> Job:
    """A job at depth `step`, by default on one rank and in `token_mean`."""
    ordinary = {"aggregation": Aggregation(mode), "layout": Layout(), "depth": Depth.STEP}
    return Job(**{"steps": steps} | ordinary | fields)
