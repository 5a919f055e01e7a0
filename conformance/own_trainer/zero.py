"""The probe's gradient under the stages of ZeRO, whose optimizers hold parts of parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from adapters.toolkit.probe import as_array

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def partitioned_gradient(
    optimizer: torch.optim.Optimizer, parameter: torch.Tensor
) -> NDArray[np.float32] | None:
    """The whole gradient of a parameter that the optimizer of a ZeRO stage is about to step.

    On each rank, that optimizer holds different flat parts of all parameters, whose gradients are
    unscaled and clipped. Returns None if the optimizer holds no part of this parameter.
    """
    if (part := _part(parameter)) is None:
        return None
    storage = part.held.untyped_storage().data_ptr()
    for flat in (one for group in optimizer.param_groups for one in group["params"]):
        if flat.untyped_storage().data_ptr() == storage and flat.grad is not None:
            whole = torch.zeros(part.size, dtype=flat.grad.dtype, device=flat.device)
            count, offset = part.held.numel(), part.held.storage_offset() - flat.storage_offset()
            whole[part.start : part.start + count] = flat.grad[offset : offset + count]
            torch.distributed.all_reduce(whole, group=part.group)
            return as_array(whole)
    return None


class _PartOnRank(NamedTuple):
    """The entries of a parameter that a rank's optimizer holds: ``start`` onwards, of ``size``."""

    held: torch.Tensor
    start: int
    size: int
    group: Any


def _part(parameter: Any) -> _PartOnRank | None:
    """This rank's part of a parameter that ZeRO has partitioned; None for any other parameter."""
    if (mapping := getattr(parameter, "_hp_mapping", None)) is not None:  # ZeRO stages 1 and 2
        start, size = mapping.lp_fragment_address.start, parameter.numel()
        return _PartOnRank(mapping.hp_fragment, start, size, parameter._dp_group)
    if (zero := getattr(parameter, "_z3_optimizer", None)) is not None:
        index, offset, count = zero.grad_position[zero.get_param_id(parameter)]
        held = zero.fp32_partitioned_groups_flat[index][offset : offset + count]
        group = parameter.ds_process_group
        ranks, rank = torch.distributed.get_world_size(group), torch.distributed.get_rank(group)
        return _PartOnRank(held, rank * count, ranks * count, group)
    return None
