"""Code that a user may plug into slime and miles: custom functions, and faulty rollouts.

The frameworks find custom functions by name. A function for truncated importance sampling gets the
log-probabilities on a context-parallel rank and the masks of whole samples. It returns the losses
on the rank and, again, the masks of whole samples.
"""

from __future__ import annotations

import math
from itertools import repeat
from typing import TYPE_CHECKING, Any

from adapters.contract import Job, Unsupported
from adapters.contract.framework import Substitute
from adapters.contract.job import REDUCER_DIVISOR, FaultInjection
from adapters.toolkit.calls import call_supported

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType

    import torch

    Columns = dict[str, Any]
    Conversion = Callable[[Any, Sequence[Any]], Columns]

# Largest ratio of policy to rollout policy at which `reject` keeps a token.
LARGEST_RATIO = math.exp(2)
# Columns of train data: the token count of a sample's prompt group, and the group's index.
MASK_SUMS, GROUP_INDICES = "prompt_mask_sums", "prompt_group_indices"
# The functions that return the values of a whole response, or those on a context-parallel rank.
GATHER, SLICE = "all_gather_with_cp", "slice_log_prob_with_cp"


class CpUtils:
    """The framework's own functions for context parallelism, which custom functions call.

    Versions of early 2026 pass their parallel ``state`` to each function.
    """

    module: ModuleType
    state: Any = None

    @classmethod
    def call(
        cls, name: str, args: Any, values: torch.Tensor, *lengths: int, width: int | None
    ) -> torch.Tensor:
        """The result of a function, `GATHER` or `SLICE`, for the values of a sample's response.

        ``lengths`` are the sample's total length and the response's. The row has this ``width`` if
        rows are padded.
        """
        found: torch.Tensor = call_supported(
            getattr(cls.module, name),
            values,
            *lengths,
            parallel_state=cls.state,
            qkv_format=getattr(args, "qkv_format", "thd"),
            max_token_len=width,
            max_seq_len=width,
        )
        return found


def path(function: Callable[..., Any]) -> Substitute:
    """The import path that a user gives for a custom function."""
    return Substitute(f"{function.__module__}.{function.__name__}")


def reject(
    args: Any,
    *,
    pg_loss: torch.Tensor,
    train_log_probs: list[torch.Tensor],
    rollout_log_probs: list[torch.Tensor],
    loss_masks: list[torch.Tensor],
    total_lengths: list[int],
    response_lengths: list[int],
    max_seq_lens: list[int] | None = None,
    **others: Any,
) -> tuple[torch.Tensor, list[torch.Tensor], dict[str, torch.Tensor]]:
    """Return the losses, the masks without rejected tokens, and a metric: 1 for rejected tokens."""
    import torch

    masks, rejected = [], []
    lengths = total_lengths, response_lengths, max_seq_lens or repeat(None, len(loss_masks))
    per_sample = zip(train_log_probs, rollout_log_probs, loss_masks, *lengths, strict=True)
    for train, rollout, mask, total, response, width in per_sample:
        with torch.no_grad():
            whole = CpUtils.call(GATHER, args, train - rollout, total, response, width=width)
        keep = (whole.exp() <= LARGEST_RATIO).to(mask.dtype)
        masks.append(mask * keep)
        taken = (mask * (1 - keep)).to(pg_loss.dtype)
        rejected.append(CpUtils.call(SLICE, args, taken, total, response, width=width))
    return pg_loss, masks, {"rejected": torch.cat(rejected)}


def correct(
    *, pg_loss: torch.Tensor, loss_masks: list[torch.Tensor], **others: Any
) -> tuple[torch.Tensor, list[torch.Tensor], dict[str, torch.Tensor]]:
    """Return losses and masks unchanged: importance sampling without a correction."""
    return pg_loss, loss_masks, {}


def reducer(
    total_lengths: list[int],
    response_lengths: list[int],
    loss_masks: list[torch.Tensor],
    calculate_per_token_loss: bool,
) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a custom reducer: the framework's masked sum divided by `REDUCER_DIVISOR`."""
    masked_sum = call_supported(
        CpUtils.module.get_sum_of_sample_mean,
        total_lengths,
        response_lengths,
        loss_masks,
        calculate_per_token_loss=True,
        parallel_state=CpUtils.state,
    )
    return lambda losses: masked_sum(losses) / REDUCER_DIVISOR


def samples_to_convert(samples: list[Any], job: Job) -> list[Any]:
    """Return a job's sample objects, as the rollout side passes them to conversion."""
    configuration = job.configuration
    for sample in samples:
        if configuration.corrects and getattr(sample, "rollout_log_probs", None) is None:
            sample.rollout_log_probs = [0.0] * sample.response_length
        if configuration.fault_injection is FaultInjection.GROUPS_MISSING:
            sample.group_index = None
    if configuration.fault_injection is FaultInjection.GROUP_INCOMPLETE:
        _take_from_first_group(samples)
    return samples


def conversion(job: Job, own: Conversion) -> Conversion | None:
    """Return a job's custom conversion, if any: the framework's ``own`` with an injected fault."""
    fault = job.configuration.fault_injection
    if fault is None or fault not in FAULTS:
        return None
    inject = FAULTS[fault]

    def convert(args: Any, samples: Sequence[Any]) -> Columns:
        columns = own(args, samples)
        if MASK_SUMS not in columns:
            raise Unsupported(f"no {MASK_SUMS} in train data")
        inject(columns, [sample.group_index for sample in samples])
        return columns

    return convert


def _take_from_first_group(samples: list[Any]) -> None:
    """Move the last sample of the first group to a new group."""
    groups = [sample.group_index for sample in samples]
    members = [sample for sample in samples if sample.group_index == groups[0]]
    if len(members) < 2:
        raise Unsupported("no group with a missing sample if groups have only one")
    members[-1].group_index = max(groups) + 1


def _drop_denominators(columns: Columns, groups: list[int]) -> None:
    for name in (MASK_SUMS, GROUP_INDICES):
        columns.pop(name, None)


def _leave_a_gap(columns: Columns, groups: list[int]) -> None:
    """Leave the last sample of the first group without a group."""
    stray = max(i for i, group in enumerate(groups) if group == groups[0])
    _count(columns, groups, group=groups[0], sample=stray, sign=-1)
    columns[MASK_SUMS][stray] = 0
    if GROUP_INDICES in columns:
        columns[GROUP_INDICES][stray] = None


def _overlap(columns: Columns, groups: list[int]) -> None:
    """Count the first sample of another group in the first group as well."""
    others = [i for i, group in enumerate(groups) if group != groups[0]]
    if not others:
        raise Unsupported("no overlap of groups if there is only one")
    _count(columns, groups, group=groups[0], sample=others[0], sign=1)


def _end_short(columns: Columns, groups: list[int]) -> None:
    """End the last group before the last sample, which then has no entry in the columns."""
    _count(columns, groups, group=groups[-1], sample=len(groups) - 1, sign=-1)
    for name in (MASK_SUMS, GROUP_INDICES):
        if name in columns:
            del columns[name][-1]


def _count(columns: Columns, groups: list[int], *, group: int, sample: int, sign: int) -> None:
    """Add a sample's tokens to a group's count (sign 1) or subtract them (-1)."""
    tokens = sign * sum(columns["loss_masks"][sample])
    columns[MASK_SUMS] = [
        total + tokens if other == group else total
        for total, other in zip(columns[MASK_SUMS], groups, strict=True)
    ]


FAULTS: dict[FaultInjection, Callable[[Columns, list[int]], None]] = {
    FaultInjection.DENOMINATORS_DROPPED: _drop_denominators,
    FaultInjection.BOUNDARY_GAP: _leave_a_gap,
    FaultInjection.BOUNDARY_OVERLAP: _overlap,
    FaultInjection.BOUNDARY_SHORT: _end_short,
}
"""Faults that a custom conversion injects into the framework's columns, in place."""
