"""Adapters of modelscope/ms-swift, one for each of its trainers and engines."""

from adapters.ms_swift import engines

ENGINES = (
    engines.MsSwiftDdpAdapter,
    engines.MsSwiftFsdp2Adapter,
    engines.MsSwiftDeepspeedAdapter,
    engines.MsSwiftMegatronAdapter,
)
