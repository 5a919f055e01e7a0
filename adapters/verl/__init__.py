"""Adapters of volcengine/verl, one for each of its training engines.

Both trainers and both kinds of engines share one record (`framework`), with additional settings for
each engine. Versions with only the legacy trainer use a part of the record.
"""

from adapters.verl.fsdp import VerlFsdp2Adapter, VerlFsdpAdapter
from adapters.verl.megatron import VerlMegatronAdapter

ENGINES = (VerlFsdpAdapter, VerlFsdp2Adapter, VerlMegatronAdapter)
