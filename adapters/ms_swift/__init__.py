"""Adapters of modelscope/ms-swift, one for each of its trainers and engines."""

from adapters.ms_swift.engines import (
    MsSwiftDdpAdapter,
    MsSwiftFsdp2Adapter,
    MsSwiftMegatronAdapter,
)

ENGINES = (MsSwiftDdpAdapter, MsSwiftFsdp2Adapter, MsSwiftMegatronAdapter)
