"""Adapters of RLinf/RLinf, one for each of its FSDP strategies."""

from adapters.rlinf.adapter import RlinfFsdp2Adapter, RlinfFsdpAdapter

ENGINES = (RlinfFsdpAdapter, RlinfFsdp2Adapter)
