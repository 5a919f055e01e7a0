"""The adapter of THUDM/slime, on Megatron-Core."""
