"""The right denominators of a step, each composed from its counts."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from reference.aggregation import DenominatorMask, EmptyUnits, MicroBatchWeight, Mode, SampleUnit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from conformance.expected.step_context import StepContext

MOST_NAMED = 32
"""Summands of a count, and samples of a prompt, that are written out."""


class Denominator(NamedTuple):
    """The right denominator of some tokens of a step, written out."""

    whose: str
    """What they belong to, such as ``prompt 0 (samples 0 and 1)``."""

    composition: str
    """Such as ``3 + 0 = 3 active tokens · 4 prompts = 12``."""

    weight: float
    """What each of them must weigh; 0 if there are none."""

    tokens: NDArray[np.bool_]
    """Which they are: [tokens]."""


def denominators(context: StepContext) -> Iterator[Denominator]:
    """Yields the right denominators of a step, each composed from its counts.

    Of a mean over micro-batches, it must be known how the step was cut.
    """
    part = _parts(context)
    for number in np.unique(part):
        tokens = (part == number) & context.step.mask
        samples = np.unique(context.sample[part == number])
        weight = float(context.expected[tokens].max(initial=0.0))
        whose, composition = _whose(context, samples), _composition(context, samples, weight)
        yield Denominator(whose, composition, weight, tokens)


def _parts(context: StepContext) -> NDArray[np.int64]:
    """Number of the part of the step within which tokens share a denominator: [tokens]."""
    if context.mode is Mode.CONSTANT:
        return np.zeros_like(context.sample)
    if not context.per_micro_batch:
        return context.unit[context.sample]
    assert context.placement is not None
    per_token = context.mode is Mode.TOKEN_MEAN
    return context.placement.micro_batch_number if per_token else context.sample


def _whose(context: StepContext, samples: NDArray[np.int64]) -> str:
    members = _enumerated("sample", samples.tolist())
    if context.per_micro_batch and context.mode is Mode.TOKEN_MEAN:
        return f"{_micro_batch(context, int(samples[0]))} ({members})"
    if context.mode in (Mode.TOKEN_MEAN, Mode.CONSTANT):
        return "all samples"
    if context.mode is Mode.PROMPT_MEAN:
        return f"prompt {context.step.groups[samples[0]]} ({members})"
    rollout = f"rollout {context.step.rollouts[samples[0]]} ({members})"
    return rollout if _unit(context) == "rollout" else members


def _micro_batch(context: StepContext, sample: int) -> str:
    assert context.placement is not None
    token = context.step.offsets[sample]
    number, rank = context.placement.micro_batch[token], context.placement.dp_rank[token]
    return f"micro-batch {number} of data-parallel rank {rank}"


def _unit(context: StepContext) -> str:
    """Returns what the mode takes a mean over."""
    if context.mode is Mode.PROMPT_MEAN:
        return "prompt"
    shared = len(np.unique(context.step.rollouts)) < context.step.size
    by_rollout = shared and context.conventions.sample_unit is SampleUnit.ROLLOUT
    return "rollout" if by_rollout else "sample"


def _composition(context: StepContext, samples: NDArray[np.int64], weight: float) -> str:
    units = _count(context.units, _unit(context))
    if context.aggregation.divisor is not None:
        return f"L = {context.aggregation.divisor:g} · {units}{_equals(weight)}"
    counts = (context.step.active_tokens if context.per_micro_batch else context.counted)[samples]
    total = f"{_summed(counts.tolist())} {_counted(context)}{'' if counts.sum() == 1 else 's'}"
    if not weight:
        counts_too = context.conventions.empty_units is EmptyUnits.COUNTED
        return f"{total}: adds 0{', and counts' if counts_too else ', and does not count'}"
    if context.per_micro_batch:
        others = 1 / (weight * counts.sum())
        return f"{total} · {_of_micro_batches(context, int(samples[0]), others)}{_equals(weight)}"
    return total if context.mode is Mode.TOKEN_MEAN else f"{total} · {units}{_equals(weight)}"


def _of_micro_batches(context: StepContext, sample: int, factor: float) -> str:
    """Returns what a denominator has besides the tokens, in a mean over micro-batches."""
    assert context.placement is not None
    micro_batches = int(context.placement.micro_batches[context.step.offsets[sample]])
    total = micro_batches * context.layout.dp
    if context.conventions.micro_batch_weight is not MicroBatchWeight.EQUAL:
        return f"{factor:g} by the samples of its micro-batch"
    if context.mode is Mode.TOKEN_MEAN:
        return _count(total, "micro-batch", "es")
    held = _count(round(factor / total), "sample")
    return f"{held} of {_micro_batch(context, sample)} · {_count(total, 'micro-batch', 'es')}"


def _count(number: int, what: str, plural: str = "s") -> str:
    return f"{number} {what}{'' if number == 1 else plural}"


def _counted(context: StepContext) -> str:
    """Returns what denominators count one of."""
    original = context.conventions.denominator_mask is DenominatorMask.ORIGINAL
    before = original and context.step.original_mask is not None and not context.per_micro_batch
    return "active or rejected token" if before else "active token"


def _equals(weight: float) -> str:
    return f" = {1 / weight:.7g}" if weight else ""


def _summed(counts: list[int]) -> str:
    """Returns a sum written out, such as ``3 + 0 = 3``; of a long one only the total."""
    if len(counts) == 1 or len(counts) > MOST_NAMED:
        return f"{sum(counts):,}"
    return f"{' + '.join(map(str, counts))} = {sum(counts)}"


def _enumerated(what: str, numbers: list[int]) -> str:
    """Returns numbered things in words, such as ``samples 0, 1 and 4``."""
    if len(numbers) > MOST_NAMED:
        return f"{len(numbers)} {what}s"
    *others, last = map(str, numbers)
    return f"{what}s {', '.join(others)} and {last}" if others else f"{what} {last}"
