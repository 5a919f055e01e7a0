"""Explains a mismatch by a known mistake.

The input is observed weights or a logged number, with the context of their step; the output is the
mistake that predicts them within the bound. `catalogue` has the known mistakes with the weights
that each would give; `explain` picks one or reports that none fits.
"""
