"""Adapters of NovaSky-AI/SkyRL, one for each of its training engines."""

from adapters.skyrl.adapter import SkyRLFsdpAdapter, SkyRLMegatronAdapter

ENGINES = (SkyRLFsdpAdapter, SkyRLMegatronAdapter)
