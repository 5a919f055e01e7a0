"""The adapter of NVIDIA-NeMo/RL, with the first version of its DTensor workers."""
