"""Answers whether known mistakes reach a user's recipe: its options, run together and scaled down.

A recipe enters as its user wrote it, is read by the framework itself (`reading`), and held against
the adapter's record (`matching`). The checks that look at its options are run on a small layout of
the same shape (`scaling`, `running`), and an `Answer` leaves, with what every number rests on.
"""
