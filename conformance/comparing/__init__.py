"""Reports on disk and what changed between two of them.

The input is findings and report files; the output is report files, differences, and the decision
whether a run fails.
"""
