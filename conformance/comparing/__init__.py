"""Reports on disk and what changed between two of them.

In come findings and report files; out come report files, differences, and the decision whether a
run fails.
"""
