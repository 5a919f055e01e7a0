"""Tells a trainer that was given something else than the step's from one that counts wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from adapters.contract.batch.probed_batch import ProbedBatch
from conformance.judging.weights import final_weights, step_context

if TYPE_CHECKING:
    from collections.abc import Sequence

    from adapters.contract import Description, Job, Observation

SAME = 1e-3
"""The largest relative difference of numbers that count as equal here."""


def misuse(job: Job, observations: Sequence[Observation], description: Description) -> str | None:
    """What to change if the step was not used as it has to be; None if it was."""
    return None
