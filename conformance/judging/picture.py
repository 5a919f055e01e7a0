"""Makes a picture of wrong weights: expected and observed weights, in runs of equal tokens."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from conformance.findings.finding import Picture, PicturedSample, Run

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from conformance.expected.step_context import StepContext

MOST_SAMPLES = 48
"""Largest number of samples in a picture, chosen to fit on a screen."""

MOST_RUNS = 24
"""Largest number of runs of equal tokens in a sample."""

BITS, DIGITS = 20, 6
"""Significant bits and digits: coarser than float32, so that tokens of one weight make one run.
Error and diagnosis of a finding use the unrounded weights."""


def picture(
    context: StepContext, observed: NDArray[np.float64], expected: NDArray[np.float64]
) -> Picture:
    """The picture of a step's weights, [tokens]: samples with the largest errors, in step order."""
    step, responses = context.step, list(context.step.responses)
    off = np.nan_to_num(np.abs(observed - expected), nan=np.inf, posinf=np.inf)
    of_sample = np.array([off[tokens].max(initial=0.0) for tokens in responses])
    shown = np.sort(np.argsort(-of_sample, kind="stable")[:MOST_SAMPLES])
    columns = _columns(context, observed, expected)
    return Picture(
        step=context.step_index,
        samples_of_step=step.size,
        samples=[
            PicturedSample(
                sample=int(sample),
                group=int(step.groups[sample]),
                tokens=int(step.response_lengths[sample]),
                runs=_runs(columns[responses[sample]]),
            )
            for sample in shown
        ],
    )


def _columns(
    context: StepContext, observed: NDArray[np.float64], expected: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The five values of a `Run` for every token, NaN if unknown: [tokens, 5]."""
    placement = context.placement
    unknown = np.full(len(expected), np.nan)
    places = (
        [unknown] * 3
        if placement is None
        else [placement.dp_rank, placement.cp_rank, placement.micro_batch]
    )
    finite = [np.where(np.isfinite(weights), weights, np.nan) for weights in (expected, observed)]
    return np.column_stack([*finite, *places])


def _runs(columns: NDArray[np.float64]) -> list[Run]:
    """The first runs of tokens that are equal in all columns."""
    alike = np.nan_to_num(_rounded(columns), nan=-1.0)
    differs = (alike[1:] != alike[:-1]).any(axis=1)
    borders = [0, *(np.flatnonzero(differs) + 1).tolist(), len(columns)][: MOST_RUNS + 1]
    return [_run(end - start, columns[start].tolist()) for start, end in pairwise(borders)]


def _run(tokens: int, columns: list[float]) -> Run:
    expected, observed, *places = columns
    dp_rank, cp_rank, micro_batch = (None if math.isnan(p) else int(p) for p in places)
    return Run(
        tokens=tokens,
        expected=_shortened(expected) or 0.0,
        observed=_shortened(observed),
        dp_rank=dp_rank,
        cp_rank=cp_rank,
        micro_batch=micro_batch,
    )


def _rounded(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Values rounded to `BITS` significant bits."""
    mantissas, exponents = np.frexp(values)
    rounded: NDArray[np.float64] = np.ldexp(np.round(np.ldexp(mantissas, BITS)), exponents - BITS)
    return rounded


def _shortened(weight: float) -> float | None:
    """A weight rounded to `DIGITS`, with -0 as 0; None if it is not finite."""
    return None if math.isnan(weight) else float(f"{weight:.{DIGITS}g}") + 0.0
