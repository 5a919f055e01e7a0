"""Shared by slime and miles, on Megatron-Core and for every other engine."""
