"""Adapters of radixark/miles, one for each of its training engines."""

from adapters.miles.fsdp import MilesFsdpAdapter
from adapters.miles.megatron import MilesMegatronAdapter

ENGINES = (MilesMegatronAdapter, MilesFsdpAdapter)
