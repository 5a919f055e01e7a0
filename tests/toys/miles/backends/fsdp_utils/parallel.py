"""The process groups of an engine that has data parallelism alone."""

from argparse import Namespace

import torch.distributed as dist
from miles.backends.training_utils.parallel import ParallelState
from miles.lineage import Grid
from miles.utils import distributed_utils
from miles.utils.ft_utils.process_group_utils import GroupInfo
from torch.distributed import device_mesh


class FsdpParallelState(Grid):
    dp_mesh: device_mesh.DeviceMesh


def create_fsdp_parallel_state(args: Namespace) -> ParallelState:
    rank, size = dist.get_rank(), dist.get_world_size()
    alone = GroupInfo(0, 1, dist.new_group([rank], use_local_synchronization=True))
    dp = GroupInfo(rank, size, distributed_utils.GLOO_GROUP)
    state = FsdpParallelState(dp, alone, alone)
    mesh = device_mesh.init_device_mesh("cuda", (size,), mesh_dim_names=("dp",))
    state.dp_mesh = mesh["dp"]
    return state
