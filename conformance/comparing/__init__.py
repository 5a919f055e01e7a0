"""Reports on disk and what changed between two of them.

In come findings and report files; out come report files, differences, groups of
findings that share a mistake, and the decision whether a run fails.
"""
