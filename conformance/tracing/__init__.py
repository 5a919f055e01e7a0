"""From a wrong number to the line that made it: the traces of all ranks, joined and read.

In: the traces of a job whose one painted token has an advantage, and the weight that it had.
Out: a chain of factors with a line for each, whose product is the weight, and lines to look at.
"""
