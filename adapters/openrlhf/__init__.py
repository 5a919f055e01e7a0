"""The adapter of OpenRLHF/OpenRLHF, whose only training engine is DeepSpeed."""
