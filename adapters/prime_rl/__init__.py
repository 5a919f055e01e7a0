"""The adapter of PrimeIntellect-ai/prime-rl, whose only training engine is FSDP2."""
