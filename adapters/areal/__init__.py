"""Adapters of inclusionAI/AReaL, one for each of its training engines."""

from adapters.areal.engines import ArealFsdpAdapter, ArealMegatronAdapter

ENGINES = (ArealFsdpAdapter, ArealMegatronAdapter)
