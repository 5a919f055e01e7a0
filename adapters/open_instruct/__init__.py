"""The adapter of allenai/open-instruct: GRPO on DeepSpeed (`grpo_fast`)."""
