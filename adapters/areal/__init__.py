"""Adapters of inclusionAI/AReaL, one for each of its training engines."""

from adapters.areal.fsdp import ArealFsdpAdapter
from adapters.areal.megatron import ArealMegatronAdapter

ENGINES = (ArealFsdpAdapter, ArealMegatronAdapter)
