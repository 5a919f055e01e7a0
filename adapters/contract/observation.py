"""Observations of a framework by the ranks."""

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
    """The reduction that the rest of a train step would apply to the ranks' gradients."""

    REPLICATED = "replicated"
    """None: every rank holds the final gradient."""

    SUM = "sum"
    MEAN = "mean"

    SUM_PER_COUNTED_TOKEN = "sum_per_counted_token"
    """Sum, divided by all tokens that the framework counted on the ranks."""

    SUM_PER_TOKEN = "sum_per_token"
    """Sum, divided by the active tokens of the step."""

    SUM_PER_SAMPLE = "sum_per_sample"
    """Sum, divided by the samples of the step, in the unit of the conventions."""


@dataclass(frozen=True, kw_only=True)
class LogEntry:
    """The log entry of one micro-batch: sums by name, and their divisors.

    ``count`` divides all values, unless ``normalizers`` has a divisor for each.
    """

    keys: tuple[str, ...]
    values: tuple[float, ...]
    count: float = 1.0
    normalizers: tuple[float, ...] | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Observation:
    """The observation of one rank.

    ``token_weights`` has the weight of every response token for each step of the job, float64 and
    flat like ``Step.mask``.
    """

    token_weights: tuple[NDArray[np.float64], ...]
    pending_reduction: PendingReduction = PendingReduction.REPLICATED
    counted_tokens: tuple[float, ...] = ()
    """For each step, the tokens that the framework counted here, for `SUM_PER_COUNTED_TOKEN`."""

    forward_passes: tuple[NDArray[np.int32], ...] = ()
    """For each step, the index of the forward pass in which this rank held each response token, or
    -1: how the framework cut the step. Empty if the adapter does not report it."""

    reported: Mapping[Metric, tuple[float | None, ...]] = field(default_factory=dict)
    """For each step, the metrics that the framework logs on this rank, after its own reduction over
    micro-batches and ranks; None if this rank logs none. Unknown metrics are absent; empty below
    depth `step`."""
