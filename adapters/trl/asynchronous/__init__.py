"""TRL's experimental `AsyncGRPOTrainer`: the jobs that it can train, and a run of it."""
