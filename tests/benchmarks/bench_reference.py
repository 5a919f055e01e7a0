"""The reference on a production-shaped step, against one `numpy` sum over the same masks."""

import time
import tracemalloc
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from reference.aggregation import Aggregation, Mode
from reference.step import Step
from reference.weights import sample_weights

SAMPLES = 512 * 8
LONGEST = 32_768
REPETITIONS = 5

TOOL_USERS = 8
"""One sample in this number alternates between trained turns and masked tool output."""


def main() -> None:
    """Print time and memory as ratios, then time per token from 10^4 to 10^8 tokens."""
    lengths = log_normal_lengths(SAMPLES, median=3_300)
    step = build(lengths)
    masks = len(step.mask)
    baseline = seconds(step.mask.sum)
    ours = seconds(lambda: weights(step))
    peak = memory(lambda: weights(step))
    print(f"reference: {masks:,} tokens in {SAMPLES:,} samples")
    print(f"  time of weights / time of one sum over the masks: {ours / baseline:.2f}")
    print(f"  memory of weights / memory of the masks: {peak / masks:.3f}")
    for exponent in range(4, 9):
        tokens = 10**exponent
        step = build(np.full(max(tokens // 5_000, 1), min(tokens, 5_000)))
        per_token = seconds(lambda: weights(step)) / tokens  # noqa: B023
        print(f"  10^{exponent} tokens: {per_token * 1e9:.2f} ns per token")


def weights(step: Step) -> NDArray[np.float64]:
    """The weights of a step, computed from masks without cached counts."""
    step.__dict__.pop("active_tokens", None)
    return sample_weights(step, Aggregation(Mode.PROMPT_MEAN))


def log_normal_lengths(samples: int, median: float) -> NDArray[np.int64]:
    """Response lengths as they come in reasoning runs: log-normal, cut at the longest allowed."""
    drawn = np.random.default_rng(0).lognormal(np.log(median), 0.9, samples)
    return np.clip(drawn, 1, LONGEST).astype(np.int64)


def build(lengths: NDArray[np.int64]) -> Step:
    """A step of groups of 8 with responses of these lengths."""
    mask = np.ones(int(lengths.sum()), np.bool_)
    ends = np.cumsum(lengths)
    for start, end in zip((ends - lengths)[::TOOL_USERS], ends[::TOOL_USERS], strict=True):
        turns = np.arange(end - start) // 400
        mask[start:end] = turns % 3 != 1
    return Step(
        prompt_lengths=np.full(len(lengths), 500),
        response_lengths=lengths,
        mask=mask,
        groups=np.arange(len(lengths)) // 8,
        rollouts=np.arange(len(lengths)),
    )


def seconds(call: Callable[[], object]) -> float:
    """The shortest time of several calls."""
    times = []
    for _ in range(REPETITIONS):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def memory(call: Callable[[], object]) -> int:
    """The most bytes that a call allocates, beyond those that were allocated before it."""
    tracemalloc.start()
    call()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak
