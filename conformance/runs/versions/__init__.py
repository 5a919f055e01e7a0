"""Runs of several versions of a framework, each in a process of its own.

`history` runs a list of commits, `watch` the newest version of every framework, and `review` a
version and its base.
"""
