"""TRL's `RLOOTrainer`: what it takes of a job, and a run of it."""
