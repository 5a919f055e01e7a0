"""Adapters of NovaSky-AI/SkyRL, one for each of its training engines."""

from adapters.skyrl.fsdp import SkyRLFsdpAdapter
from adapters.skyrl.megatron import SkyRLMegatronAdapter

ENGINES = (SkyRLFsdpAdapter, SkyRLMegatronAdapter)
