"""Megatron-Core: what every adapter of a framework that trains with it needs."""
