"""Holds observations against the reference.

In come what the ranks observed of one job and the adapter's description; out comes a judgement: the
verdict, its error and bound, and the diagnosis of a mismatch. One module for each kind of check.
"""
