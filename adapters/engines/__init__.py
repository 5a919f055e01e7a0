"""Training engines that several frameworks share, each driven in one place.

`shells` imports no engine: it has options, departures and base classes of adapters. The other
modules drive Megatron-Core, DeepSpeed, Accelerate and FSDP on a rank.
"""
