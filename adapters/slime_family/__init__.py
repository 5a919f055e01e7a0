"""What slime and miles share, on Megatron-Core and for every other engine."""
