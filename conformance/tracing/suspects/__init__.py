"""The lines to look at for a wrong weight, the likeliest first.

In: the chain of a traced token. Out: at most three lines, each with why it is suspected.
"""
