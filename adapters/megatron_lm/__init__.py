"""The adapter of Megatron-LM's own reinforcement learning, `train_rl.py` and `megatron/rl`."""
