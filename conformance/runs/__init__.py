"""One run: its settings, and how each matrix cell becomes a recorded finding.

The input is command-line options; the output is one finding for each cell, written to the journal.
`settings` checks the options before any rank starts, `check` makes a finding, and `recorder`
records it.
"""
