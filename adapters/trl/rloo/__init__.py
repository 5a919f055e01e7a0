"""TRL's `RLOOTrainer`: the jobs that it can train, and a run of it."""
