"""The source of a framework's code, and its changes.

`source` finds an installed package, a checkout, a commit or a release without modifying it.
`changes` finds the base version of a version and the lines that differ.
"""
