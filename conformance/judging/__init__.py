"""Compares observations with the reference.

The input is the observations of one job's ranks and the adapter's description; the output is a
judgement: verdict, error, bound, and the diagnosis of a mismatch. Each kind of check has a module.
"""
