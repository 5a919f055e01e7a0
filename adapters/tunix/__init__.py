"""The adapter of google/tunix, whose ranks are JAX devices of one process."""
