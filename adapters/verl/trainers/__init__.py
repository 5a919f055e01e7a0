"""verl's trainers, run on every rank: the default one, the legacy one, and fine-tuning.

Batches are kept in memory, and worker groups call this rank's workers.
"""
