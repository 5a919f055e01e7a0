"""Runs of several versions of a framework, each in a process of its own.

`history` runs a list of commits, `watch` the newest version of every framework, `review` a version
and the one that it is based on.
"""
