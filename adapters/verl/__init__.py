"""Adapters of volcengine/verl, one for each of its training engines."""

from adapters.verl.fsdp import VerlFsdp2Adapter, VerlFsdpAdapter
from adapters.verl.megatron import VerlMegatronAdapter

ENGINES = (VerlFsdpAdapter, VerlFsdp2Adapter, VerlMegatronAdapter)
