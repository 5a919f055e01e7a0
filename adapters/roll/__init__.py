"""Adapters of alibaba/ROLL, one for each of its training engines."""

from adapters.roll.fsdp import RollFsdpAdapter
from adapters.roll.megatron import RollMegatronAdapter

ENGINES = (RollFsdpAdapter, RollMegatronAdapter)
