"""TRL's experimental `AsyncGRPOTrainer`: what it takes of a job, and a run of it."""
