"""Tells the author of an adapter what the adapter gets wrong, before its findings mean anything.

In comes an adapter; out come complaints, each with a name and a sentence or two. `probing` runs
`jobs` in which all tokens weigh the same, and `explanations` says what their gradients show. Only
if they are right, `coverage` chooses a few cells that show all that is declared, and `complaint`
reads their findings. `check` is the whole.
"""
