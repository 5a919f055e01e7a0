"""slime, on Megatron-Core."""
