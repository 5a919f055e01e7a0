"""Adapters of huggingface/trl, one for each of its trainers and engines."""

from adapters.trl.engines import (
    TrlAsyncAdapter,
    TrlDdpAdapter,
    TrlDeepspeedAdapter,
    TrlFsdp2Adapter,
    TrlLigerAdapter,
    TrlRlooAdapter,
)

ENGINES = (
    TrlDdpAdapter,
    TrlFsdp2Adapter,
    TrlDeepspeedAdapter,
    TrlLigerAdapter,
    TrlRlooAdapter,
    TrlAsyncAdapter,
)
