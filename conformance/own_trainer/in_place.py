"""Watches one step of a real run: the weight of each token by the gradient of its log-probability.

Nothing in the run is replaced. Operations after `backward`, such as clipping, are not seen. The
reduction over ranks is assumed to be that of the model's wrapper.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_leaves

from adapters.contract import Depth, Job, Layout, Observation, PendingReduction
from conformance.findings.errors import WrongUseError
from conformance.findings.verdict import Verdict
from conformance.judging.weights import Trained, judge_weights
from conformance.own_trainer.jobs import Asked
from conformance.views.formatting import text_table
from reference.aggregation import AdvantageUnit, Aggregation
from reference.step import Sample, Step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from conformance.judging.weights import Judgement

AVERAGING = (DistributedDataParallel, FSDPModule)
"""Wrappers of models that average gradients over ranks."""

DTYPE = "float16"
"""The dtype whose error bound weights must keep: in a real run ratios are not exactly 1 if old
log-probabilities come from another forward pass."""

MOST_SAMPLES = 32
"""The largest number of rows of the printed table."""

UNSEEN = (
    "What the trainer does behind backward is not seen here: {reduction}; clipping and the"
    " optimizer. The fixture loss_conformance sees all of it."
)
REDUCTIONS = {
    PendingReduction.REPLICATED: "there is one rank",
    PendingReduction.MEAN: "the model's wrapper is taken to average gradients over ranks",
    PendingReduction.SUM: "gradients are taken to be added up over ranks",
}


@dataclass(frozen=True, kw_only=True, eq=False)
class _Rows:
    """The rows that one rank trains: masks, groups, and gradients divided by minus the advantages.

    ``passes`` has the forward pass of each row. Arrays of a row have an entry for each column, from
    the first active column on.
    """

    masks: list[NDArray[np.bool_]]
    groups: list[int]
    weights: list[NDArray[np.float64]]
    passes: list[int]


@dataclass(eq=False)
class Seen:
    """The observation of a step, once its context has been left.

    ``weights`` has the effective weight of every token of all ranks, after the assumed reduction
    over ranks; ``expected`` has the weights of the mode. Both are [tokens].
    """

    judgement: Judgement | None = None
    weights: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    expected: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    lines: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return "\n".join(self.lines)


@contextmanager
def watch(
    model: torch.nn.Module,
    *,
    log_probs: tuple[Any, str],
    mode: str,
    masks: Sequence[Any],
    advantages: Sequence[Any],
    groups: Sequence[int] | None = None,
    divisor: float | None = None,
    cu_seqlens: Sequence[Any] | None = None,
) -> Iterator[Seen]:
    """Watch the train step in the context, and print what its tokens weigh.

    ``log_probs`` names the function that returns log-probabilities, [rows, columns] or [columns],
    such as ``(trainer, "log_probs")``; it may return them in a tuple or dict with other results,
    such as entropies. Their rows are those of ``masks`` and ``advantages``, in the order in which
    this rank trains them. Masks are bool [columns]; advantages are a number, or [columns]. Packed
    rows have ``cu_seqlens``, a 0 followed by the end of each sequence, and advantages may have a
    number for each sequence. ``groups`` name the prompt of each sequence.

    Raises:
        WrongUseError: the function was not called, or returned other rows.
    """
    owner, name = log_probs
    recorded: list[torch.Tensor] = []
    original = getattr(owner, name)
    setattr(owner, name, _recording(original, recorded))
    seen = Seen()
    try:
        yield seen
    finally:
        setattr(owner, name, original)
    mine = _rows(recorded, masks, advantages, groups, cu_seqlens)
    aggregation = Aggregation(mode, divisor)  # type: ignore[arg-type]  # which it checks
    _judge(seen, _gather(mine), aggregation, _reduction(model))
    if not dist.is_initialized() or dist.get_rank() == 0:
        print(seen)


def _recording(function: Callable[..., Any], recorded: list[torch.Tensor]) -> Callable[..., Any]:
    """Wrap a function to record its first result that may be log-probabilities, with a gradient."""

    @wraps(function)
    def recording(*arguments: Any, **named: Any) -> Any:
        result = function(*arguments, **named)
        for found in islice(filter(_may_be_log_probs, tree_leaves(result)), 1):
            found.retain_grad()
            recorded.append(found)
        return result

    return recording


def _may_be_log_probs(one: Any) -> bool:
    """Whether a value may be log-probabilities: a tensor with gradients and no positive entry."""
    return isinstance(one, torch.Tensor) and one.requires_grad and not bool((one > 0).any())


def _rows(
    recorded: Sequence[torch.Tensor],
    masks: Sequence[Any],
    advantages: Sequence[Any],
    groups: Sequence[int] | None,
    cu_seqlens: Sequence[Any] | None,
) -> _Rows:
    passes, gradients = [], []
    for index, log_probs in enumerate(recorded):
        gradient = torch.zeros_like(log_probs) if log_probs.grad is None else log_probs.grad
        for row in gradient.reshape(-1, gradient.shape[-1]).detach().double().cpu().numpy():
            passes.append(index)
            gradients.append(row)
    if not gradients:
        raise WrongUseError(
            "the function of log_probs was not called with gradients in the context, or returned"
            " no log-probabilities",
            "name the one that the loss calls, as (owner, 'name')",
        )
    if len(gradients) != len(masks):
        raise WrongUseError(
            f"the step trained {len(gradients)} rows, and there are {len(masks)} masks",
            "give the masks of the rows that this rank trains, in their order; of packed rows one"
            " mask for each row, with cu_seqlens",
        )
    rows = _Rows(masks=[], groups=[], weights=[], passes=[])
    for index, gradient in enumerate(gradients):
        width = len(gradient)
        parts = [*_parts([0, width] if cu_seqlens is None else _ends(cu_seqlens, index), width)]
        active = _as_wide(masks[index], width).astype(bool)
        weights = _weights(gradient, _advantages(advantages[index], parts, width))
        for part in parts:
            first = part.start + int(np.argmax(active[part]))
            rows.masks.append(active[first : part.stop])
            rows.weights.append(weights[first : part.stop])
            rows.passes.append(passes[index])
    size = len(rows.masks)
    rank = dist.get_rank() if dist.is_initialized() else 0
    rows.groups.extend(
        range(rank * size, (rank + 1) * size) if groups is None else map(int, groups)
    )
    if len(rows.groups) != size:
        raise WrongUseError(
            f"the step trained {size} sequences, and there are {len(rows.groups)} groups",
            "name the prompt of each",
        )
    return rows


def _ends(cu_seqlens: Sequence[Any], row: int) -> list[int]:
    ends = [int(end) for end in cu_seqlens[row]] if row < len(cu_seqlens) else []
    if len(ends) < 2 or ends[0] or ends != sorted({*ends}):
        raise WrongUseError(
            f"packed row {row} has no ends of sequences",
            "give cu_seqlens for each row, as [0, end of the first sequence, end of the next, …]",
        )
    return ends


def _parts(ends: Sequence[int], width: int) -> Iterator[slice]:
    """The columns of each sequence of a row; the first token may have no log-probability."""
    shift = int(width == ends[-1] - 1)
    for start, end in pairwise(ends):
        is_last = end == ends[-1]
        yield slice(max(start - shift, 0), width if is_last else end - shift)


def _advantages(given: Any, parts: Sequence[slice], width: int) -> NDArray[np.float64]:
    """The advantages of a row's columns, given for each column, each sequence, or the whole row."""
    several = _as_array(given)
    if several.shape != (len(parts),) or len(parts) == width:
        return _as_wide(several, width)
    return np.repeat(several, [part.stop - part.start for part in parts])


def _as_wide(values: Any, width: int) -> NDArray[np.float64]:
    """Values of a row, [width]: a single value is repeated, missing last columns are 0."""
    given = _as_array(values)
    if given.ndim == 0:
        return np.full(width, given)
    return np.pad(given, (0, max(width - len(given), 0)))[:width]


def _as_array(values: Any) -> NDArray[np.float64]:
    if isinstance(values, torch.Tensor):  # perhaps in bfloat16, or on a GPU
        values = values.detach().double().cpu()
    return np.asarray(values, np.float64)


def _weights(gradient: NDArray[np.float64], advantages: NDArray[np.float64]) -> NDArray[np.float64]:
    """The weights of tokens; where the advantage is 0, the gradient itself, which should be 0."""
    return -gradient / np.where(advantages == 0, -1.0, advantages)


def _gather(mine: _Rows) -> list[_Rows]:
    if not dist.is_initialized():
        return [mine]
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, mine)
    return found


def _reduction(model: torch.nn.Module) -> PendingReduction:
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return PendingReduction.REPLICATED
    is_averaging = isinstance(model, AVERAGING)
    return PendingReduction.MEAN if is_averaging else PendingReduction.SUM


def _judge(
    seen: Seen, ranks: list[_Rows], aggregation: Aggregation, reduction: PendingReduction
) -> None:
    samples = [
        Sample(prompt_length=1, loss_mask=mask, group=group)
        for rows in ranks
        for mask, group in zip(rows.masks, rows.groups, strict=True)
    ]
    step = Step.of(samples)
    micro_batches = max(max(rows.passes) + 1 for rows in ranks)
    job = Job(
        steps=(step,),
        aggregation=aggregation,
        layout=Layout(dp=len(ranks), micro_batches=micro_batches),
        depth=Depth.STEP,
    )
    observations = [_observation(ranks, index, reduction) for index in range(len(ranks))]
    asked = Asked(aggregation=aggregation)
    description = asked.description(AdvantageUnit.TOKEN, DTYPE)
    trained = Trained(job, observations, description)
    seen.judgement = judge_weights(trained)
    [(context, _, [seen.weights, *_])] = trained.steps()
    seen.expected = context.expected
    seen.lines = [*_lines(seen, step, aggregation, reduction)]


def _observation(ranks: list[_Rows], index: int, reduction: PendingReduction) -> Observation:
    """The observation of one rank, with entries for the tokens of all ranks."""

    def flat(elsewhere: float, of_row: Callable[[_Rows, int], Any]) -> NDArray[Any]:
        parts = [
            np.full(len(mask), of_row(rows, row) if rank == index else elsewhere)
            for rank, rows in enumerate(ranks)
            for row, mask in enumerate(rows.masks)
        ]
        return np.concatenate(parts)

    return Observation(
        token_weights=(flat(0.0, lambda rows, row: rows.weights[row]),),
        pending_reduction=reduction,
        forward_passes=(flat(-1, lambda rows, row: rows.passes[row]).astype(np.int32),),
    )


def _lines(
    seen: Seen, step: Step, aggregation: Aggregation, reduction: PendingReduction
) -> Iterator[str]:
    judgement = seen.judgement
    assert judgement is not None
    is_right = judgement.verdict is not Verdict.MISMATCH
    yield (
        f"every token weighs as {aggregation.mode} says"
        if is_right
        else (f"tokens do not weigh as {aggregation.mode} says")
    )
    if judgement.diagnosis is not None:
        yield f"  {judgement.diagnosis.explanation} [{judgement.diagnosis.name}]"
    header = ["sample", "active tokens", "weight", "expected", "factor"]
    rows = [_row(seen, step, index) for index in range(min(step.size, MOST_SAMPLES))]
    yield from text_table([header, *rows])
    if step.size > MOST_SAMPLES:
        yield f"… {step.size - MOST_SAMPLES} more samples"
    yield UNSEEN.format(reduction=REDUCTIONS[reduction])


def _row(seen: Seen, step: Step, index: int) -> list[str]:
    tokens = slice(*step.offsets[index : index + 2])
    active = step.mask[tokens]
    observed, expected = seen.weights[tokens][active], seen.expected[tokens][active]
    if not len(observed):
        return [str(index), "0", "", "", ""]
    factors = observed / expected
    return [
        str(index),
        str(len(observed)),
        _range(observed),
        _range(expected),
        _range(factors),
    ]


def _range(values: NDArray[np.float64]) -> str:
    low, high = f"{values.min():.4g}", f"{values.max():.4g}"
    return low if low == high else f"{low} to {high}"
