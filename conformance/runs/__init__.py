"""One run: its settings, the way from a matrix cell to a finding, and who records it.

In come command-line options; out come findings, one for each cell, handed to the journal.
`settings` checks the options before any rank starts, `check` makes one finding, `recorder` keeps
it.
"""
