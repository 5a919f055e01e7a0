"""verl's criteria of rejection, as its options name them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from adapters.verl.importing import module

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from adapters.contract import Job
    from reference.step import Step


def criterion(job: Job) -> str:
    """The criterion of rejection: each token's log-ratio, or its mean over a whole sample."""
    kept = [np.unique(step.mask[tokens]) for step in job.steps for tokens in _trained(step)]
    return "token_k1" if any(len(one) > 1 for one in kept) else "seq_mean_k1"


def _trained(step: Step) -> Iterator[NDArray[np.int64]]:
    """The tokens of each sample that are active before rejection sampling."""
    for response in step.responses:
        tokens = np.arange(len(step.mask))[response]
        yield tokens[step.mask_before_rejection[response]]


def all_criteria(job: Job) -> str:
    """All criteria of this version: the one that rejects, and those whose numbers are logged."""
    return ",".join(_criteria(job))


def bounds(job: Job) -> str:
    """The bounds of all criteria: no other one rejects anything."""
    others = _criteria(job)[1:]
    lax = ("1e-30_1e30" if one.endswith("k1") else "1e30" for one in others)
    return ",".join(["0.5_2.0", *lax])


def _criteria(job: Job) -> list[str]:
    helper = module("trainer.ppo.rollout_corr_helper")
    others = {*getattr(helper, "SUPPORTED_ROLLOUT_RS_OPTIONS", ())} - {criterion(job)}
    return [criterion(job), *sorted(others)]
