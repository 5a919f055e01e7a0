"""Reads a framework's source for what no operation of torch shows: plain Python and its names.

In: the lines that asked for an operation. Out: the lines that its operands come from.
"""
