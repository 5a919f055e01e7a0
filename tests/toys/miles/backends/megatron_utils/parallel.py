"""Megatron's process groups, as the framework describes them."""

from megatron.core import mpu
from megatron.training import get_args
from miles.backends.training_utils.parallel import ParallelState
from miles.lineage import megatron_grid
from miles.utils.ft_utils.process_group_utils import GroupInfo


def create_megatron_parallel_state(indep_dp: GroupInfo) -> ParallelState:
    gloo = mpu.get_data_parallel_group_gloo()
    dp = GroupInfo(gloo.rank(), gloo.size() * indep_dp.size, gloo)
    _, cp, tp = megatron_grid()
    assert cp.size == get_args().context_parallel_size
    return ParallelState(dp, cp, tp)
