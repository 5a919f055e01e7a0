"""Training engines that several frameworks share, each driven once.

`shells` has what is known of them without importing them: layouts, and the frame of an adapter on
FSDP or Megatron-Core. The others drive Megatron-Core, DeepSpeed and Accelerate on a rank.
"""
