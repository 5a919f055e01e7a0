"""Edits of a framework's statements, to find a statement whose edit makes a finding conform.

`statements` yields the statements that may be wrong, `search` tries their edits. Every other module
makes one kind of edit.
"""
