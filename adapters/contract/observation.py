"""What the ranks saw a framework do."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

    from adapters.contract.objective import Metric


class PendingReduction(StrEnum):
    """What the rest of a train step would do with the gradients the ranks hold."""

    REPLICATED = "replicated"
    """Nothing: every rank holds the final gradient."""

    SUM = "sum"
    MEAN = "mean"

    SUM_PER_COUNTED_TOKEN = "sum_per_counted_token"
    """Add up and divide by all the tokens that the framework counted on the ranks."""

    SUM_PER_TOKEN = "sum_per_token"
    """Add up and divide by the active tokens of the step."""

    SUM_PER_SAMPLE = "sum_per_sample"
    """Add up and divide by the samples of the step, in the unit of the conventions."""


@dataclass(frozen=True, kw_only=True)
class LogEntry:
    """What one micro-batch hands on to be logged: sums by name, and what each is divided by.

    ``count`` is the one divisor of all values; ``normalizers``, where a framework knows them, are
    divisors of their own.
    """

    keys: tuple[str, ...]
    values: tuple[float, ...]
    count: float = 1.0
    normalizers: tuple[float, ...] | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Observation:
    """What one rank saw the framework do.

    ``token_weights`` holds, for each step of the job, the weight of every response token, flat like
    ``Step.mask``, in float64.
    """

    token_weights: tuple[NDArray[np.float64], ...]
    pending_reduction: PendingReduction = PendingReduction.REPLICATED
    counted_tokens: tuple[float, ...] = ()
    """For each step, what the framework on this rank counted, for `SUM_PER_COUNTED_TOKEN`."""

    forward_passes: tuple[NDArray[np.int32], ...] = ()
    """For each step, the number of the forward pass in which this rank held each response token, -1
    where it did not: how the framework really cut the step. Empty if the adapter does not say."""

    reported: Mapping[Metric, tuple[float | None, ...]] = field(default_factory=dict)
    """For each step, what the framework logs on this rank, after its own reduction over
    micro-batches and ranks; None where this rank logs none. Empty below depth `step`, and without
    what the framework or the adapter does not tell."""
