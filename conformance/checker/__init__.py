"""Tells the author of an adapter what the adapter gets wrong, before its findings mean anything.

The input is an adapter; the output is complaints, each with a name and a sentence or two. `probing`
runs `jobs` in which all tokens weigh the same, and `explanations` says what the gradients show.
Only if the gradients are right, `coverage` chooses a few cells that together show every declared
capability, and `complaint` reads their findings. `check` runs all of this.
"""
