"""Compares observations with the reference.

The input is a trained job: the observations of its ranks and the adapter's description. The output
is a judgement: verdict, error, bound, and the diagnosis of a mismatch. Each kind of check has a
module; `outcome` chooses among them, and `further_jobs` runs the further jobs that a judgement
needs.
"""
