"""A cause, shown on its smallest step and worked out by hand.

The input is a report and one of its causes; the output is the finding that shows the cause best,
its step with the right denominators, and the formulas of the factors on its weights. Right numbers
are the reference's; observed numbers are read from the report. `conformance.views` puts this into
words.
"""
