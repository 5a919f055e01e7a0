"""Adapters of alibaba/ROLL, one for each of its training engines."""

from adapters.roll.engines.fsdp import RollFsdpAdapter
from adapters.roll.engines.megatron import RollMegatronAdapter

ENGINES = (RollFsdpAdapter, RollMegatronAdapter)
