"""Adapters of NovaSky-AI/SkyRL, one for each of its training engines."""

from adapters.skyrl.fsdp import SkyRLFsdpAdapter

ENGINES = (SkyRLFsdpAdapter,)
