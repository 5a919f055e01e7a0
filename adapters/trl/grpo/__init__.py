"""TRL's `GRPOTrainer`: its settings for each objective, its versions, and a run of it."""
