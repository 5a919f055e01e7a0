"""Explains observations by known mistakes, for a single finding and for a whole report.

The input is the ranks' observations of a step or a logged number, right or wrong, with the expected
terms. The output is the diagnosis of a finding, its clues, and the causes of a report.
`catalogue` has the known mistakes. `engine` tests them against one observation; `cover` chooses the
fewest mistakes and conditions that explain all findings together; `causes` turns these into causes.
"""
