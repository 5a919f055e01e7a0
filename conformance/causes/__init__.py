"""Finds the few mistakes behind the many wrong findings of a report.

The input is what every judged finding says about the known mistakes, right ones included; the
output is the report's causes. `consistent` and `clues` hold one finding against the catalogue;
`table` and `cover` choose the fewest mistakes and conditions that explain all findings together.
"""
