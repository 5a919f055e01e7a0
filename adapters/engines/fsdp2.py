"""FSDP2 as frameworks wrap models in it."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest import mock

from torch.distributed import device_mesh, fsdp

if TYPE_CHECKING:
    from collections.abc import Iterator

    from adapters.contract import Rank


@contextmanager
def full_precision() -> Iterator[None]:
    """Ignore mixed-precision policies, some hard-coded, as bfloat16 leaves two digits."""
    default = fsdp.MixedPrecisionPolicy()
    with mock.patch.object(fsdp, "MixedPrecisionPolicy", return_value=default):
        yield


def mesh_of_one(rank: Rank) -> Any:
    """A mesh of this rank alone, for depths that end before gradients are reduced."""
    shape = (rank.world_size, 1)
    return device_mesh.init_device_mesh("cuda", shape, mesh_dim_names=("ranks", "one"))["one"]
