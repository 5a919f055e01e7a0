"""Training engines that several frameworks share, each driven in one place.

`shells` has what can be known without importing an engine: options, departures, and base classes
of adapters. The other modules drive Megatron-Core, DeepSpeed, Accelerate and FSDP on a rank.
"""
