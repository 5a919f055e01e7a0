"""Answers whether known mistakes reach a user's recipe: its options, run together and scaled down.

The framework itself reads a recipe as its user wrote it, and `matching` compares it with the
adapter's record. The checks that look at its options are run on a small layout of the same shape
(`scaling`, `running`). The result is an `Answer`, with the finding behind each statement.
"""
