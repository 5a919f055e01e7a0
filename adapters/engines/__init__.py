"""Training engines that several frameworks share, each driven in one place.

`shells` has what can be known without importing an engine: layouts, and base classes of adapters on
FSDP or Megatron-Core. The other modules drive Megatron-Core, DeepSpeed and Accelerate on a rank.
"""
