"""Recognises gradients that a trainer clips or scales before the optimizer reads them.

A trainer that clips gradients is right, although its token weights are all too small. Several steps
with different gradients reveal it: after clipping, all gradients have the same norm or the same
largest value. A loss scale multiplies all gradients by the same power of two.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from adapters.contract.job import DEFAULT_CONFIGURATION
from adapters.contract.objective import Objective
from conformance.corpus.cases import fewest_micro_batches
from conformance.findings.finding import Diagnosis
from reference.step import Sample, Step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from adapters.contract import Job, Layout
    from conformance.explain.measurement import Measurement

    Array = NDArray[np.float64]

SAME = 1e-4
"""The largest relative difference between sizes that count as equal: torch adds 1e-6 to the norm
that it divides by, and norms are sums in float32."""

SMALLEST_LOSS_SCALE = 2.0**8
"""The smallest factor that is recognised as a loss scale. A smaller power of two may be a count of
tokens or samples in a small step."""

WAYS_OUT = {
    "gradients_clipped": (
        "gradients are clipped to norm {size:.4g} before the optimizer reads them: their direction"
        " is right, and their length says nothing about counts. Turn clipping off where the adapter"
        " configures the trainer, or read gradients before they are clipped"
    ),
    "gradient_values_clipped": (
        "gradients are clipped to values of at most {size:.4g} before the optimizer reads them, and"
        " are otherwise right. Turn clipping off where the adapter configures the trainer, or"
        " read gradients before they are clipped"
    ),
    "loss_scaled": (
        "every gradient is {size:.6g} = 2^{exponent:g} times the right one: it is read while the"
        " loss scale is still in it. Read gradients after they are unscaled, as"
        " torch.amp.GradScaler.unscale_ does, or turn loss scaling off where the adapter configures"
        " the trainer"
    ),
}
"""For each kind of rescaling, a description and the way out."""


class Rescaling(NamedTuple):
    """A rescaling of right gradients: its name in `WAYS_OUT`, and the norm, value or factor."""

    name: str
    size: float

    @property
    def diagnosis(self) -> Diagnosis:
        """The diagnosis, with the way out."""
        words = WAYS_OUT[self.name].format(size=self.size, exponent=math.log2(self.size))
        return Diagnosis(name=self.name, explanation=words, numbers={"size": self.size})

    def is_same(self, other: Rescaling) -> bool:
        """Whether another job shows the same rescaling."""
        same_size = math.isclose(self.size, other.size, rel_tol=SAME)
        return self.name == other.name and same_size


def rescalings(measurements: Sequence[Measurement], wrong: Measurement) -> Iterator[Rescaling]:
    """Yield rescalings that explain all gradients of a job, including the ``wrong`` one.

    A single step proves nothing, since many mistakes change the norm of a gradient.
    """
    if not wrong.is_per_token or not wrong.observed.any() or not wrong.expected.any():
        return
    for name, (size_of, rescaled) in KINDS.items():
        size = size_of(wrong.observed * wrong.derivatives, wrong.expected * wrong.derivatives)
        if size is not None and all(_fits(one, rescaled, size) for one in measurements):
            yield Rescaling(name, size)


def _fits(measurement: Measurement, rescaled: Callable[[Array, float], Array], size: float) -> bool:
    right = measurement.expected * measurement.derivatives
    predicted = rescaled(right, size)
    shrunk = float(np.linalg.norm(predicted) / (np.linalg.norm(right) or 1.0))
    magnitude = measurement.magnitude * np.abs(measurement.derivatives) * shrunk
    off = np.abs(measurement.observed * measurement.derivatives - predicted)
    return bool((off <= (SAME + measurement.tolerance) * magnitude).all())


def _clipped(gradient: Array, norm: float) -> Array:
    """The gradient as `torch.nn.utils.clip_grad_norm_` leaves it."""
    return gradient * min(1.0, norm / (float(np.linalg.norm(gradient)) or 1.0))


def _values_clipped(gradient: Array, value: float) -> Array:
    return np.clip(gradient, -value, value)


def _scaled(gradient: Array, factor: float) -> Array:
    return gradient * factor


def _norm(observed: Array, _: Array) -> float:
    return float(np.linalg.norm(observed))


def _largest(observed: Array, _: Array) -> float:
    return float(np.abs(observed).max())


def _loss_scale(observed: Array, right: Array) -> float | None:
    """The factor by which a gradient is too large, if it is a large power of two; else None."""
    factor = float(np.linalg.norm(observed) / np.linalg.norm(right))
    if not math.isfinite(factor) or factor < SMALLEST_LOSS_SCALE * (1 - SAME):
        return None
    nearest = 2.0 ** round(math.log2(factor))
    return nearest if math.isclose(factor, nearest, rel_tol=SAME) else None


KINDS: dict[str, tuple[Callable[[Array, Array], float | None], Callable[[Array, float], Array]]] = {
    "gradients_clipped": (_norm, _clipped),
    "gradient_values_clipped": (_largest, _values_clipped),
    "loss_scaled": (_loss_scale, _scaled),
}
"""For each kind of rescaling: the function that finds its size, given an observed and a right
gradient, and the function that rescales a right gradient."""


def trial(job: Job) -> Job:
    """A job like the given one, with two steps whose gradients are large and differ in norm.

    Each sample has one or two active tokens, and its first token has the largest advantage.
    """
    steps = _large_gradients(_samples(job.layout))
    return replace(
        job, steps=steps, objective=Objective.POLICY, configuration=DEFAULT_CONFIGURATION
    )


def _samples(layout: Layout) -> int:
    """The smallest even number of samples that fills all micro-batches."""
    fewest = layout.dp * fewest_micro_batches(layout)
    return fewest + fewest % 2


@lru_cache
def _large_gradients(samples: int) -> tuple[Step, Step]:
    """Steps in which the first token of every response has an id of the form 7k + 6.

    `adapters.contract.batch.token_values.ADVANTAGES` is largest for these ids.
    """
    one = [Sample(prompt_length=5 + (i > 0), loss_mask=[1], group=i // 2) for i in range(samples)]
    two = [
        Sample(prompt_length=5 + (i == 0), loss_mask=[1, 1], group=i // 2) for i in range(samples)
    ]
    return Step.of(one), Step.of(two)
