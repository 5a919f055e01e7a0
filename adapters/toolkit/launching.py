"""What a launcher of processes tells them in environment variables."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from adapters.contract import Rank


def set_what_ray_sets(rank: Rank) -> None:
    """The process group is there already, and no address is called."""
    os.environ |= {"RANK": str(rank.index), "WORLD_SIZE": str(rank.world_size)}
    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": "0"}
    os.environ.setdefault("LOCAL_RANK", "0")
