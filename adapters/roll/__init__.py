"""The adapter of alibaba/ROLL with its FSDP2 engine."""
