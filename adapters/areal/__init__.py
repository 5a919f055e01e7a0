"""The adapter of inclusionAI/AReaL with its FSDP2 engine."""
