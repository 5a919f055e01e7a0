"""What a framework's options set once for all steps of a job, and how numbers are spelled."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from adapters.contract import Unsupported
from adapters.contract.objective import Objective

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from adapters.contract import Job
    from reference.step import Step


def has_kl_term(job: Job) -> bool:
    """Whether the divergence from the reference policy is in the loss."""
    return job.configuration.kl or job.objective in (Objective.KL, Objective.COMBINED)


def prompts_per_step(steps: Sequence[Step]) -> int:
    """The number of prompt groups of every step; `Unsupported` if they differ."""
    return _only((len(np.unique(step.groups)) for step in steps), "prompts in steps")


def samples_per_step(steps: Sequence[Step]) -> int:
    """The number of samples of every step; `Unsupported` if they differ."""
    return _only((step.size for step in steps), "samples in steps")


def rollouts_per_step(steps: Sequence[Step]) -> int:
    """The number of rollouts of every step; `Unsupported` if they differ."""
    return _only((len(np.unique(step.rollouts)) for step in steps), "rollouts in steps")


def rollouts_per_prompt(steps: Sequence[Step]) -> int:
    """The number of rollouts of every prompt; `Unsupported` if they differ."""
    counts = (
        len(np.unique(step.rollouts[step.groups == group]))
        for step in steps
        for group in np.unique(step.groups)
    )
    return _only(counts, "rollouts of prompts")


def token_budget(steps: Sequence[Step], ranks: int) -> int:
    """A token budget of micro-batches: about a third of a data-parallel rank's tokens.

    Ranks then differ in the number of micro-batches, and micro-batches in size. The budget exceeds
    the longest sample by at least a quarter: frameworks do not split samples, and align the numbers
    of micro-batches only if some hold several samples.
    """
    shares = [int((step.prompt_lengths + step.response_lengths).sum()) // ranks for step in steps]
    longest = max(int((step.prompt_lengths + step.response_lengths).max()) for step in steps)
    return max(max(shares) // 3 + 1, longest * 5 // 4)


def _only(counts: Iterable[int], what: str) -> int:
    different = sorted(set(counts))
    if len(different) > 1:
        raise Unsupported(f"no different numbers of {what}: {different}")
    return different[0]


def yaml(text: str) -> str:
    """A number, or any other text, as YAML spells it."""
    return {"nan": ".nan", "inf": ".inf", "-inf": "-.inf"}.get(text, text)
