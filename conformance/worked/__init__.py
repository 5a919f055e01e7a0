"""A cause, shown on its smallest step and worked out by hand.

In come a report and one of its causes; out come the finding that shows the cause best, that
finding's step with its right denominators, and the formulas that its weights are multiplied by.
Right numbers are the reference's, observed ones stand in the report. `conformance.views` words it.
"""
