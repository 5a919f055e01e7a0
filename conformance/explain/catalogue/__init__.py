"""The known mistakes: a record of each, and its predicted effect on a step.

``mistakes.toml`` has the records, which `mistake` reads. Every other module predicts the weights or
factors of the mistakes of its subject. `predictions` yields the predictions that need only the
step, the most plausible first; `misalignments` also needs the observed numbers.
"""
