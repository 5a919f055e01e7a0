"""Adapters of volcengine/verl, one for each of its training engines.

Both trainers and both kinds of engines share one record (`framework`), with what each engine sets
besides; versions with the legacy trainer alone have a part of it.
"""

from adapters.verl.fsdp import VerlFsdp2Adapter, VerlFsdpAdapter
from adapters.verl.megatron import VerlMegatronAdapter

ENGINES = (VerlFsdpAdapter, VerlFsdp2Adapter, VerlMegatronAdapter)
