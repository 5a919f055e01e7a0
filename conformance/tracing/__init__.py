"""From a wrong number to the line that made it: the traces of all ranks, joined and read.

The input is the traces of a job in which only one token, the painted one, has an advantage, and
the weight of that token. The output is a chain of factors, each with its line, whose product is the
weight, and the lines to look at if the weight is wrong.
"""
