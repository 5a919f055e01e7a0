"""The lines to look at for a wrong weight, the likeliest first.

The input is the chain of a traced token; the output is at most three lines, each with a reason.
"""
