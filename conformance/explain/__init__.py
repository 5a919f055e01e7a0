"""Explains what was observed by known mistakes, one finding at a time and a whole report.

The input is what ranks observed of a step or of a logged number, right or wrong, with the terms
that are expected; the output is the diagnosis of a finding, its clues, and the causes of a report.
`catalogue` has the known mistakes. `engine` tests them against one observation; `cover` chooses the
fewest mistakes and conditions that explain all findings together; `causes` makes causes of them.
"""
